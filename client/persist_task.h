// Persist: asks the node to make blocks durable.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/operation.h"
#include "client/task.h"

namespace terrace {

class PersistTask : public Task {
 public:
  // Keys of another namespace than `ns` end at once.
  PersistTask(const Namespace& ns, std::vector<BlockKey> keys,
              std::shared_ptr<Operation::State> state, absl::Duration deadline);

  bool needs_room() const override { return false; }
  Turn SendRequest(DataChannel& channel) override;
  absl::Status OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                       uint64_t payload_bytes, Landing* landing) override;
  void Abandon(DataChannel& channel, Outcome why) override;
  bool finished() const override { return open_ == 0; }
  void Complete(DataChannel&) override { state_->Finish(); }

 private:
  // A frame under way; it names asked_[begin, end).
  struct Batch {
    size_t begin, end;
    size_t open;
  };
  void SetFinal(size_t position, Outcome outcome);

  const Namespace ns_;
  const std::vector<BlockKey> keys_;
  const std::shared_ptr<Operation::State> state_;
  std::vector<size_t> asked_;  // positions in keys_ and in the results
  std::vector<bool> final_;    // by position in asked_
  size_t open_ = 0;            // of asked_, not final
  size_t next_ = 0;            // first of asked_ not asked for
  absl::flat_hash_map<uint64_t, Batch> batches_;
};

}  // namespace terrace
