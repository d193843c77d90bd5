// Match: the longest prefix of a chain that is there in every shard.
#pragma once

#include <memory>
#include <vector>

#include "client/chain.h"
#include "client/client.h"
#include "client/task.h"
#include "client/waiter.h"

namespace terrace {

class IoHandle;

class MatchTask : public Task {
 public:
  // `chain` and `waiter` are the blocked caller's; they live until Complete.
  MatchTask(uint64_t id, const Chain* chain, const MatchOptions& options,
            std::shared_ptr<IoHandle> io, Waiter<MatchResult>* waiter, absl::Duration deadline);

  bool needs_room() const override { return false; }
  Turn SendRequest(DataChannel& channel) override;
  absl::Status OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                       uint64_t payload_bytes, Landing* landing) override;
  void Abandon(DataChannel& channel, Outcome why) override;
  bool finished() const override { return open_ == 0; }
  void Complete(DataChannel& channel) override;

 private:
  // The search in one shard, frame by frame: the next is asked only when all before are there.
  struct Shard {
    std::vector<Tier> tiers;  // of the run so far
    uint64_t request = 0;     // under way
    size_t asked = 0;         // how many keys it names
    bool done = false;
  };

  void Ask(DataChannel& channel, Shard* shard, size_t index);
  Lease TakeLeases(DataChannel& channel);

  const Chain* const chain_;
  const MatchOptions options_;
  const std::shared_ptr<IoHandle> io_;
  Waiter<MatchResult>* const waiter_;
  std::vector<Shard> shards_;
  size_t open_;    // shards that are not done
  size_t blocks_;  // no shard found less so far; there is no use in looking further
  bool ask_again_ = false;
  bool lease_refused_ = false;  // by one frame of several
  std::vector<uint64_t> leases_;
};

}  // namespace terrace
