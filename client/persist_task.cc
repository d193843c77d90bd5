#include "client/persist_task.h"

#include <algorithm>
#include <utility>

#include "client/data_channel.h"

namespace terrace {

PersistTask::PersistTask(const Namespace& ns, std::vector<BlockKey> keys,
                         std::shared_ptr<Operation::State> state, absl::Duration deadline)
    : Task(state->id, deadline), ns_(ns), keys_(std::move(keys)), state_(std::move(state)) {
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i].ns == ns_.id) {
      asked_.push_back(i);
    } else {
      state_->results[i].message = "key of another namespace";
      state_->SetOutcome(i, Outcome::kInvalid);
    }
  }
  open_ = asked_.size();
  final_.resize(open_);
}

Turn PersistTask::SendRequest(DataChannel& channel) {
  if (next_ == asked_.size()) return Turn::kNothing;
  if (!channel.HasRoom(0, 0)) return Turn::kNoRoom;
  const size_t end = std::min<size_t>(asked_.size(), next_ + channel.limits().max_keys_per_frame);
  PersistFrame frame{ns_.id, {}};
  for (size_t i = next_; i < end; ++i) {
    const BlockKey& key = keys_[asked_[i]];
    frame.keys.push_back({key.digest, key.shard});
  }
  const uint64_t request = channel.OpenRequest(this, 0, 0);
  batches_.emplace(request, Batch{next_, end, end - next_});
  next_ = end;
  channel.Send(request, frame);
  return Turn::kSent;
}

absl::Status PersistTask::OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                                  uint64_t /*payload_bytes*/, Landing* /*landing*/) {
  const auto* answer = std::get_if<PutReplyFrame>(&reply);
  auto batch = batches_.find(request);
  const size_t position = answer == nullptr ? 0 : batch->second.begin + answer->index;
  if (answer == nullptr || position >= batch->second.end || final_[position]) {
    return absl::DataLossError("a Persist was answered by a frame that does not fit");
  }
  SetFinal(position, ToOutcome(answer->status));
  if (--batch->second.open == 0) {
    batches_.erase(batch);
    channel.EndRequest(request);
  }
  return absl::OkStatus();
}

void PersistTask::SetFinal(size_t position, Outcome outcome) {
  final_[position] = true;
  --open_;
  state_->SetOutcome(asked_[position], outcome);
}

void PersistTask::Abandon(DataChannel& channel, Outcome why) {
  for (const auto& [request, batch] : std::exchange(batches_, {})) channel.CancelRequest(request);
  for (size_t i = 0; i < asked_.size(); ++i) {
    if (!final_[i]) SetFinal(i, why);
  }
  next_ = asked_.size();
}

}  // namespace terrace
