// Put: reserves places, sends the values that the node wants, waits for its word on each. A put of
// one block that is not large is sent without asking first, as long as the node wants such puts: a
// round trip costs more than now and then a transfer for nothing.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/operation.h"
#include "client/task.h"
#include "proto/envelope.h"

namespace terrace {

class PutTask : public Task {
 public:
  // Judges each request against `ns`; those that are wrong in themselves end at once.
  PutTask(const Namespace& ns, std::vector<PutRequest> requests,
          std::shared_ptr<Operation::State> state, absl::Duration deadline);

  Turn SendRequest(DataChannel& channel) override;
  Turn SendValue(DataChannel& channel) override;
  absl::Status OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                       uint64_t payload_bytes, Landing* landing) override;
  void Abandon(DataChannel& channel, Outcome why) override;
  bool finished() const override { return open_ == 0 && sending_ == 0; }
  void Complete(DataChannel&) override { state_->Finish(); }

 private:
  struct Item {
    uint32_t index;  // in requests_ and in the results
    // kWaiting: the value is sent, or on its way, and the node has not said what became of it.
    enum { kQueued, kReserving, kGranted, kWaiting, kFinal } state = kQueued;
    uint64_t request = 0;
    uint64_t reservation = 0;
  };
  // A Reserve under way and what follows from it, for items_[begin, end).
  struct Batch {
    uint32_t begin, end;
    uint32_t open;  // items that are not final
    bool granted = false;
  };

  absl::Status Validate(const PutRequest& request) const;
  absl::Status OnReserved(DataChannel& channel, uint64_t request, const ReserveReplyFrame& reply);
  // The value may be sent now.
  void Grant(DataChannel& channel, uint32_t position, uint64_t reservation);
  absl::Status OnPut(DataChannel& channel, uint64_t request, const PutReplyFrame& reply);
  ReserveItem ToReserve(const PutRequest& put) const;
  Turn SendLanded(DataChannel& channel);
  void SealBehind(const PutRequest& put, OutgoingMessage* message) const;
  void OnSent(DataChannel& channel, uint32_t position, const absl::Status& status);
  void EndItem(DataChannel& channel, uint32_t position, WireStatus status);
  void SetFinal(DataChannel& channel, uint32_t position, Outcome outcome, std::string message);

  const Namespace ns_;
  const std::vector<PutRequest> requests_;
  const std::shared_ptr<Operation::State> state_;
  std::vector<Item> items_;       // the valid requests, in order
  uint32_t open_ = 0;             // of items_, not final
  uint32_t sending_ = 0;          // values whose memory the transport may still read
  uint32_t next_ = 0;             // first of items_ not reserved
  std::deque<uint32_t> granted_;  // of items_, to be sent; wanted a turn exactly while not empty
  absl::flat_hash_map<uint64_t, Batch> batches_;
};

}  // namespace terrace
