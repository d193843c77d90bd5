#include "client/get_task.h"

#include <algorithm>

#include "client/data_channel.h"
#include "fmt/format.h"
#include "proto/checksum.h"
#include "proto/status.h"

namespace terrace {

GetTask::GetTask(const Namespace& ns, Mode mode, std::vector<GetRequest> requests,
                 std::shared_ptr<Operation::State> state, absl::Duration deadline)
    : Task(state->id, deadline),
      ns_(ns),
      mode_(mode),
      requests_(std::move(requests)),
      state_(std::move(state)) {
  items_.reserve(requests_.size());
  for (uint32_t i = 0; i < requests_.size(); ++i) {
    if (absl::Status valid = Validate(requests_[i]); valid.ok()) {
      items_.push_back({i});
    } else {
      state_->results[i].message = std::string(valid.message());
      state_->SetOutcome(i, Outcome::kInvalid);
    }
  }
  open_ = static_cast<uint32_t>(items_.size());
  allowed_ = mode_ == Mode::kEach ? open_ : 0;
}

BlockShape GetTask::RangeOf(const GetRequest& request) const {
  const uint32_t segments = request.segment_count == 0 ? ns_.shape.segments : request.segment_count;
  return {segments * ns_.shape.segment_bytes(), segments};
}

absl::Status GetTask::Validate(const GetRequest& request) const {
  TERRACE_RETURN_IF_ERROR(terrace::Validate(ns_.shape));
  if (request.key.ns != ns_.id) return absl::InvalidArgumentError("key of another namespace");
  const BlockShape range = RangeOf(request);
  if (request.first_segment + range.segments > ns_.shape.segments) {
    return absl::InvalidArgumentError(
        fmt::format("segments {} to {} of a block with {}", request.first_segment,
                    request.first_segment + range.segments - 1, ns_.shape.segments));
  }
  size_t bytes = 0;
  for (MutableByteSpan piece : request.destination) bytes += piece.size();
  if (bytes != range.length) {
    return absl::InvalidArgumentError(
        fmt::format("the destination has {} bytes, the range {}", bytes, range.length));
  }
  return absl::OkStatus();
}

Turn GetTask::SendRequest(DataChannel& channel) {
  if (next_ == allowed_) {
    const bool more_run = allowed_ < items_.size() && run_request_ == 0;
    return mode_ == Mode::kLeadingRun && more_run ? AskForRun(channel) : Turn::kNothing;
  }
  // A quarter of what may be in flight per frame keeps the next one ready while bytes arrive.
  const SessionLimits& limits = channel.limits();
  const uint64_t most = limits.max_bytes_in_flight / 4;
  GetFrame frame{ns_.id, MillisecondsUntil(deadline()), {}};
  uint64_t bytes = 0;
  uint32_t end = next_;
  while (end < allowed_ && frame.items.size() < limits.max_keys_per_frame) {
    const GetRequest& request = requests_[items_[end].index];
    const uint64_t more = RangeOf(request).length;
    if (!frame.items.empty() && bytes + more > most) break;
    bytes += more;
    frame.items.push_back(
        {{request.key.digest, request.key.shard}, request.first_segment, request.segment_count});
    ++end;
  }
  if (!channel.HasRoom(bytes, 0)) return Turn::kNoRoom;
  for (uint32_t i = next_; i < end; ++i) items_[i].state = Item::kAsked;
  const uint64_t request = channel.OpenRequest(this, bytes, 0);
  batches_.emplace(request, Batch{next_, end, end - next_});
  next_ = end;
  channel.Send(request, frame);
  return Turn::kSent;
}

// A lease keeps what the answer promises until it has been read.
Turn GetTask::AskForRun(DataChannel& channel) {
  if (!channel.HasRoom(0, 0)) return Turn::kNoRoom;
  MatchFrame frame{ns_.id, /*count_use=*/false, MillisecondsUntil(deadline()), {}};
  const size_t end =
      std::min<size_t>(items_.size(), allowed_ + channel.limits().max_keys_per_frame);
  for (size_t i = allowed_; i < end; ++i) {
    const BlockKey& key = requests_[items_[i].index].key;
    frame.keys.push_back({key.digest, key.shard});
  }
  run_asked_ = static_cast<uint32_t>(frame.keys.size());
  run_request_ = channel.OpenRequest(this, 0, 0);
  channel.Send(run_request_, frame);
  return Turn::kNothing;
}

absl::Status GetTask::OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                              uint64_t payload_bytes, Landing* landing) {
  if (request == run_request_) {
    const auto* run = std::get_if<MatchReplyFrame>(&reply);
    if (run == nullptr) return absl::DataLossError("a Match was answered by another frame");
    return OnRun(channel, *run);
  }
  auto* block = std::get_if<BlockFrame>(&reply);
  if (block == nullptr) return absl::DataLossError("a Get was answered by another frame");
  return OnBlock(channel, request, *block, payload_bytes, landing);
}

absl::Status GetTask::OnRun(DataChannel& channel, const MatchReplyFrame& reply) {
  if (reply.tiers.size() > run_asked_) return absl::DataLossError("a run longer than asked for");
  channel.EndRequest(run_request_);
  run_request_ = 0;
  if (reply.lease != 0) leases_.push_back(reply.lease);
  for (uint32_t i = 0; i < reply.tiers.size(); ++i) {
    state_->results[items_[allowed_ + i].index].tier = reply.tiers[i];
  }
  allowed_ += static_cast<uint32_t>(reply.tiers.size());
  if (reply.tiers.size() < run_asked_) {
    const Outcome why = reply.status == WireStatus::kOk ? Outcome::kMiss : ToOutcome(reply.status);
    for (uint32_t i = allowed_; i < items_.size(); ++i) {
      SetFinal(channel, i, i == allowed_ ? why : Outcome::kMiss, {});
    }
    items_.resize(allowed_);
  }
  channel.WantTurn(this);
  return absl::OkStatus();
}

absl::Status GetTask::OnBlock(DataChannel& channel, uint64_t request, BlockFrame& block,
                              uint64_t payload_bytes, Landing* landing) {
  const Batch& batch = batches_.find(request)->second;
  const uint32_t position = batch.begin + block.index;
  if (position >= batch.end || items_[position].state != Item::kAsked) {
    return absl::DataLossError("a block that was not asked for");
  }
  if (block.status != WireStatus::kOk) {
    EndItem(channel, request, position, ToOutcome(block.status), ToString(block.status));
    return absl::OkStatus();
  }
  absl::StatusOr<EnvelopeView> envelope = EnvelopeView::Parse(block.envelope);
  absl::Status good = envelope.status();
  if (good.ok()) good = Judge(requests_[items_[position].index], *envelope, payload_bytes);
  if (!good.ok()) {
    EndItem(channel, request, position, Outcome::kCorrupt, std::string(good.message()));
    return absl::OkStatus();  // the bytes are thrown away
  }
  *landing = Land(channel, request, position, *envelope);
  return absl::OkStatus();
}

// Whether this envelope is that of the block asked for, and the bytes behind it can be the range.
absl::Status GetTask::Judge(const GetRequest& request, const EnvelopeView& envelope,
                            uint64_t payload_bytes) const {
  if (envelope.key() != request.key) {
    return absl::DataLossError("the envelope carries another key: " + ToString(envelope.key()));
  }
  if (envelope.layout_id() != ns_.layout_id) {
    return absl::DataLossError(
        fmt::format("the envelope carries layout {:016x}, the namespace has {:016x}",
                    envelope.layout_id(), ns_.layout_id));
  }
  if (envelope.shape() != ns_.shape) {
    return absl::DataLossError("the envelope carries another shape");
  }
  if (payload_bytes != RangeOf(request).length) {
    return absl::DataLossError(
        fmt::format("{} bytes came, the range has {}", payload_bytes, RangeOf(request).length));
  }
  return absl::OkStatus();
}

Landing GetTask::Land(DataChannel& channel, uint64_t request, uint32_t position,
                      const EnvelopeView& envelope) {
  items_[position].state = Item::kLanding;
  GetRequest& wanted = requests_[items_[position].index];
  const BlockShape range = RangeOf(wanted);
  auto arrival = std::make_shared<Arrival>();
  for (uint32_t i = 0; i < range.segments; ++i) {
    arrival->expected.push_back(envelope.checksum(wanted.first_segment + i));
  }
  arrival->computed.resize(range.segments);
  arrival->checksummer.emplace(range.segment_bytes(), arrival->computed);
  arrival->generation = envelope.generation();
  arrival->metadata = envelope.metadata();
  Landing landing;
  landing.pieces = std::move(wanted.destination);
  landing.progress = [arrival](ByteSpan bytes) { arrival->checksummer->Update(bytes); };
  landing.landed = [this, &channel, request, position, arrival](const absl::Status& status) {
    OnLanded(channel, request, position, *arrival, status);
    channel.Settle(this);  // may destroy this task, but not the channel
    channel.Pump();
  };
  return landing;
}

void GetTask::OnLanded(DataChannel& channel, uint64_t request, uint32_t position, Arrival& arrival,
                       const absl::Status& status) {
  if (!status.ok()) {
    EndItem(channel, request, position, why_, std::string(status.message()));
    return;
  }
  const auto [wrong, _] = std::ranges::mismatch(arrival.expected, arrival.computed);
  if (wrong != arrival.expected.end() ||
      arrival.checksummer->finished() != arrival.expected.size()) {
    const size_t segment = wrong - arrival.expected.begin();
    EndItem(channel, request, position, Outcome::kCorrupt,
            fmt::format("segment {} fails its checksum", segment));
    return;
  }
  BlockResult& result = state_->results[items_[position].index];
  result.generation = arrival.generation;
  result.metadata = std::move(arrival.metadata);
  Count(&channel.counters().get_bytes, arrival.expected.size() * ns_.shape.segment_bytes());
  EndItem(channel, request, position, Outcome::kOk);
}

void GetTask::EndItem(DataChannel& channel, uint64_t request, uint32_t position, Outcome outcome,
                      std::string message) {
  SetFinal(channel, position, outcome, std::move(message));
  auto it = batches_.find(request);
  if (it == batches_.end()) return;  // abandoned meanwhile
  channel.GiveBack(request, RangeOf(requests_[items_[position].index]).length, 0);
  if (--it->second.open == 0) {
    channel.EndRequest(request);
    batches_.erase(it);
  }
}

void GetTask::SetFinal(DataChannel& channel, uint32_t position, Outcome outcome,
                       std::string message) {
  Item& item = items_[position];
  item.state = Item::kFinal;
  --open_;
  if (outcome != Outcome::kOk) state_->results[item.index].message = std::move(message);
  state_->SetOutcome(item.index, outcome);
  ChannelCounters& counters = channel.counters();
  Count(&counters.gets);
  if (outcome == Outcome::kMiss) Count(&counters.misses);
  if (outcome == Outcome::kCorrupt) Count(&counters.corrupt);
  if (outcome == Outcome::kTimeout) Count(&counters.timeouts);
}

void GetTask::Abandon(DataChannel& channel, Outcome why) {
  why_ = why;
  if (run_request_ != 0) channel.CancelRequest(std::exchange(run_request_, 0));
  for (const auto& [request, batch] : std::exchange(batches_, {})) channel.CancelRequest(request);
  for (uint32_t i = 0; i < items_.size(); ++i) {
    const auto state = items_[i].state;
    if (state == Item::kQueued || state == Item::kAsked) SetFinal(channel, i, why, {});
  }
  next_ = allowed_ = static_cast<uint32_t>(items_.size());
}

void GetTask::Complete(DataChannel& channel) {
  for (uint64_t lease : leases_) channel.Release(channel.session_id(), lease);
  if (mode_ == Mode::kLeadingRun) {
    // A block behind a gap is worth nothing to the caller: only the run counts.
    bool gap = false;
    size_t run = 0;
    for (BlockResult& result : state_->results) {
      gap = gap || result.outcome != Outcome::kOk;
      if (!gap) ++run;
      if (gap && result.outcome == Outcome::kOk) result.outcome = Outcome::kMiss;
    }
    state_->succeeded.store(run, std::memory_order_relaxed);
  }
  state_->Finish();
}

}  // namespace terrace
