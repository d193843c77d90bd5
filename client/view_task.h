// Views of blocks in the memory of a node on this machine: leases on their places.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/block_view.h"
#include "client/client.h"
#include "client/local_memory.h"
#include "client/operation.h"
#include "client/task.h"
#include "client/waiter.h"

namespace terrace {

// A lease on the places of some blocks; ends with its last owner, on any thread.
class PlaceLease {
 public:
  PlaceLease(std::shared_ptr<IoHandle> io, uint64_t session, uint64_t lease)
      : io_(std::move(io)), session_(session), lease_(lease) {}
  ~PlaceLease();
  PlaceLease(const PlaceLease&) = delete;
  PlaceLease& operator=(const PlaceLease&) = delete;

 private:
  const std::shared_ptr<IoHandle> io_;
  const uint64_t session_, lease_;
};

struct LeasedPlace {
  WireStatus status = WireStatus::kMiss;
  LentFrame::Item place;  // when kOk
  std::shared_ptr<PlaceLease> lease;
  std::shared_ptr<const LocalMemory> memory;
};

// Makes views of what was leased or read.
class BlockViewMaker {
 public:
  // Empty unless what lies there is the block of `key`, verified.
  static BlockView InPlace(const Namespace& ns, const BlockKey& key, const LeasedPlace& leased);
  static BlockView Owned(const Namespace& ns, std::vector<std::byte> bytes,
                         const BlockResult& result);
};

class ViewTask : public Task {
 public:
  // `keys` and `waiter` are the blocked caller's; they live until Complete. One place per key.
  ViewTask(uint64_t id, NamespaceId ns, std::span<const BlockKey> keys, absl::Duration lease,
           std::shared_ptr<IoHandle> io, Waiter<std::vector<LeasedPlace>>* waiter,
           absl::Duration deadline);

  bool needs_room() const override { return false; }
  Turn SendRequest(DataChannel& channel) override;
  absl::Status OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                       uint64_t payload_bytes, Landing* landing) override;
  void Abandon(DataChannel& channel, Outcome why) override;
  bool finished() const override { return open_ == 0; }
  void Complete(DataChannel&) override { waiter_->Finish(std::move(places_)); }

 private:
  struct Batch {
    size_t begin, end;
    size_t open;
  };

  const NamespaceId ns_;
  const std::span<const BlockKey> keys_;
  const absl::Duration lease_;
  const std::shared_ptr<IoHandle> io_;
  Waiter<std::vector<LeasedPlace>>* const waiter_;
  std::vector<LeasedPlace> places_;
  std::vector<bool> answered_;
  size_t next_ = 0, open_;
  absl::flat_hash_map<uint64_t, Batch> batches_;
};

}  // namespace terrace
