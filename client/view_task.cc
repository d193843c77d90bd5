#include "client/view_task.h"

#include <algorithm>

#include "client/data_channel.h"
#include "proto/checksum.h"
#include "proto/envelope.h"

namespace terrace {

PlaceLease::~PlaceLease() {
  io_->Post([session = session_, lease = lease_](DataChannel& channel) {
    channel.EndLease(session, lease);
  });
}

ViewTask::ViewTask(uint64_t id, NamespaceId ns, std::span<const BlockKey> keys,
                   absl::Duration lease, std::shared_ptr<IoHandle> io,
                   Waiter<std::vector<LeasedPlace>>* waiter, absl::Duration deadline)
    : Task(id, deadline),
      ns_(ns),
      keys_(keys),
      lease_(lease),
      io_(std::move(io)),
      waiter_(waiter),
      places_(keys.size()),
      answered_(keys.size()),
      open_(keys.size()) {}

Turn ViewTask::SendRequest(DataChannel& channel) {
  if (next_ == keys_.size()) return Turn::kNothing;
  if (channel.memory() == nullptr) {
    Abandon(channel, Outcome::kMiss);
    return Turn::kNothing;
  }
  if (!channel.HasRoom(0, 0)) return Turn::kNoRoom;
  const absl::Duration lease = std::min(lease_, channel.limits().max_lease);
  LendFrame frame{ns_,
                  MillisecondsUntil(deadline()),
                  static_cast<uint32_t>(std::max<int64_t>(absl::ToInt64Milliseconds(lease), 1)),
                  channel.TakeEndedLeases(),
                  {}};
  const size_t end = std::min<size_t>(keys_.size(), next_ + channel.limits().max_keys_per_frame);
  for (size_t i = next_; i < end; ++i) frame.keys.push_back({keys_[i].digest, keys_[i].shard});
  const uint64_t request = channel.OpenRequest(this, 0, 0);
  batches_.emplace(request, Batch{next_, end, end - next_});
  next_ = end;
  channel.Send(request, frame);
  return Turn::kSent;
}

absl::Status ViewTask::OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                               uint64_t /*payload_bytes*/, Landing* /*landing*/) {
  const auto* lent = std::get_if<LentFrame>(&reply);
  if (lent == nullptr) return absl::DataLossError("a Lend was answered by another frame");
  Batch& batch = batches_.find(request)->second;
  std::shared_ptr<PlaceLease> lease;
  if (lent->lease != 0) {
    lease = std::make_shared<PlaceLease>(io_, channel.session_id(), lent->lease);
  }
  for (const LentFrame::Item& item : lent->items) {
    const size_t position = batch.begin + item.index;
    if (position >= batch.end || answered_[position]) {
      return absl::DataLossError("a place that was not asked for");
    }
    answered_[position] = true;
    --open_;
    --batch.open;
    places_[position] = {item.status, item, nullptr, nullptr};
    if (item.status != WireStatus::kOk) continue;
    places_[position].lease = lease;
    places_[position].memory = channel.memory();
  }
  if (batch.open == 0) {
    channel.EndRequest(request);
    batches_.erase(request);
  }
  return absl::OkStatus();
}

void ViewTask::Abandon(DataChannel& channel, Outcome /*why*/) {
  for (const auto& [request, batch] : std::exchange(batches_, {})) channel.CancelRequest(request);
  next_ = keys_.size();
  open_ = 0;
}

}  // namespace terrace
