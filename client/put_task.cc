#include "client/put_task.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "client/data_channel.h"
#include "fmt/format.h"
#include "proto/checksum.h"
#include "proto/status.h"

namespace terrace {
namespace {

// The largest block that is put without asking: at 2 GB/s it takes a dozen round trips.
constexpr uint32_t kMostUnasked = 1 << 20;

// Computes a block's checksums as its bytes go by, and writes its envelope with the last of them.
class BlockSealer {
 public:
  BlockSealer(const PutRequest& put, const Namespace& ns)
      : value_{put.key, 0, ns.layout_id, ns.shape, Codec::kRaw, put.metadata, {}},
        encoded_(EnvelopeBytes(ns.shape.segments, put.metadata.opaque.size())) {
    value_.checksums.resize(ns.shape.segments);
    checksummer_.emplace(ns.shape.segment_bytes(), value_.checksums);
  }
  BlockSealer(const BlockSealer&) = delete;
  BlockSealer& operator=(const BlockSealer&) = delete;

  // The block's bytes in order; what comes behind them is ignored.
  void Update(ByteSpan bytes) {
    if (checksummer_->finished() == value_.shape.segments) return;
    checksummer_->Update(bytes);
    if (checksummer_->finished() == value_.shape.segments) value_.EncodeTo(encoded_);
  }
  // Its place; complete once all bytes have gone by.
  const std::vector<std::byte>& envelope() const { return encoded_; }

 private:
  Envelope value_;
  std::vector<std::byte> encoded_;
  std::optional<SegmentChecksummer> checksummer_;
};

}  // namespace

PutTask::PutTask(const Namespace& ns, std::vector<PutRequest> requests,
                 std::shared_ptr<Operation::State> state, absl::Duration deadline)
    : Task(state->id, deadline), ns_(ns), requests_(std::move(requests)), state_(std::move(state)) {
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
}

absl::Status PutTask::Validate(const PutRequest& request) const {
  TERRACE_RETURN_IF_ERROR(terrace::Validate(ns_.shape));
  if (request.key.ns != ns_.id) return absl::InvalidArgumentError("key of another namespace");
  if (request.metadata.opaque.size() > kMaxOpaqueBytes) {
    return absl::InvalidArgumentError(fmt::format("opaque metadata has {} bytes, {} are accepted",
                                                  request.metadata.opaque.size(), kMaxOpaqueBytes));
  }
  size_t bytes = 0;
  for (ByteSpan piece : request.source) bytes += piece.size();
  if (bytes != ns_.shape.length) {
    return absl::InvalidArgumentError(
        fmt::format("the source has {} bytes, a block {}", bytes, ns_.shape.length));
  }
  return absl::OkStatus();
}

Turn PutTask::SendRequest(DataChannel& channel) {
  const auto left = static_cast<uint32_t>(items_.size()) - next_;
  if (left == 0) return Turn::kNothing;
  // A quarter of what may be in flight per frame keeps the wire busy while the next is reserved.
  const SessionLimits& limits = channel.limits();
  const uint64_t count = std::min<uint64_t>(
      {left, limits.max_keys_per_frame, std::max(limits.max_reservations / 4, 1u),
       std::max<uint64_t>(limits.max_bytes_in_flight / 4 / ns_.shape.length, 1)});
  const uint64_t bytes = count * ns_.shape.length;
  if (!channel.HasRoom(bytes, count)) return Turn::kNoRoom;
  const uint64_t request = channel.OpenRequest(this, bytes, count);
  if (items_.size() == 1 && ns_.shape.length <= kMostUnasked && !channel.AsksBeforePut()) {
    items_[0].request = request;
    batches_.emplace(request, Batch{.begin = 0, .end = 1, .open = 1, .granted = true});
    next_ = 1;
    Grant(channel, 0, /*reservation=*/0);
    return Turn::kNothing;
  }
  ReserveFrame frame{ns_.id, MillisecondsUntil(deadline()), {}};
  const auto end = static_cast<uint32_t>(next_ + count);
  for (uint32_t i = next_; i < end; ++i) {
    const PutRequest& put = requests_[items_[i].index];
    items_[i].state = Item::kReserving;
    items_[i].request = request;
    frame.items.push_back(ToReserve(put));
  }
  batches_.emplace(request, Batch{next_, end, end - next_});
  next_ = end;
  channel.Send(request, frame);
  return Turn::kSent;
}

absl::Status PutTask::OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                              uint64_t /*payload_bytes*/, Landing* /*landing*/) {
  if (const auto* reserved = std::get_if<ReserveReplyFrame>(&reply)) {
    return OnReserved(channel, request, *reserved);
  }
  if (const auto* put = std::get_if<PutReplyFrame>(&reply)) return OnPut(channel, request, *put);
  return absl::DataLossError("a Put was answered by another frame");
}

absl::Status PutTask::OnReserved(DataChannel& channel, uint64_t request,
                                 const ReserveReplyFrame& reply) {
  Batch& batch = batches_.find(request)->second;
  if (batch.granted || reply.items.size() != batch.end - batch.begin) {
    return absl::DataLossError("a ReserveReply that does not fit its Reserve");
  }
  batch.granted = true;
  const uint32_t begin = batch.begin;  // the batch may end with its last item
  for (uint32_t i = 0; i < reply.items.size(); ++i) {
    const uint32_t position = begin + i;
    if (reply.items[i].status == WireStatus::kOk) {
      Grant(channel, position, reply.items[i].reservation);
    } else {
      EndItem(channel, position, reply.items[i].status);
    }
  }
  return absl::OkStatus();
}

void PutTask::Grant(DataChannel& channel, uint32_t position, uint64_t reservation) {
  items_[position].state = Item::kGranted;
  items_[position].reservation = reservation;
  if (granted_.empty()) channel.WantSend(this);
  granted_.push_back(position);
}

Turn PutTask::SendValue(DataChannel& channel) {
  if (granted_.empty()) return Turn::kNothing;
  if (channel.CanLand(ns_.shape.length)) return SendLanded(channel);
  if (!channel.HasSendRoom()) return Turn::kNoRoom;
  const uint32_t position = granted_.front();
  granted_.pop_front();
  Item& item = items_[position];
  item.state = Item::kWaiting;
  ++sending_;
  const PutRequest& put = requests_[item.index];
  OutgoingMessage message;
  message.payload = put.source;
  message.sent = [this, &channel, position](const absl::Status& status) {
    OnSent(channel, position, status);
    channel.Settle(this);  // may destroy this task, but not the channel
  };
  std::vector<std::byte> envelope;  // in the frame
  if (channel.streams()) {
    SealBehind(put, &message);
  } else {
    BlockSealer sealer(put, ns_);
    for (ByteSpan piece : put.source) sealer.Update(piece);
    envelope = sealer.envelope();
  }
  if (item.reservation != 0) {
    const Batch& batch = batches_.find(item.request)->second;
    const auto index = static_cast<uint16_t>(position - batch.begin);
    channel.SendPayload(item.request, ValueFrame{index, item.reservation, std::move(envelope)},
                        std::move(message));
  } else {
    channel.SendPayload(
        item.request,
        PutFrame{ns_.id, MillisecondsUntil(deadline()), ToReserve(put), std::move(envelope)},
        std::move(message));
  }
  return granted_.empty() ? Turn::kNothing : Turn::kSent;
}

// The node, on this machine, copies the block from landing memory.
Turn PutTask::SendLanded(DataChannel& channel) {
  constexpr size_t kPart = 32 << 10;  // stays in the cache while it is checksummed
  const uint32_t position = granted_.front();
  Item& item = items_[position];
  const auto index = static_cast<uint16_t>(position - batches_.find(item.request)->second.begin);
  const auto landed = channel.Land(item.request, index, ns_.shape.length);
  if (!landed) return Turn::kNoRoom;
  granted_.pop_front();
  item.state = Item::kWaiting;
  const PutRequest& put = requests_[item.index];
  BlockSealer sealer(put, ns_);
  MutableByteSpan to = landed->bytes;
  for (ByteSpan piece : put.source) {
    for (; !piece.empty(); piece = piece.subspan(std::min(kPart, piece.size()))) {
      const ByteSpan part = piece.first(std::min(kPart, piece.size()));
      std::memcpy(to.data(), part.data(), part.size());
      sealer.Update(to.first(part.size()));
      to = to.subspan(part.size());
    }
  }
  channel.Send(item.request,
               LandedFrame{ns_.id, MillisecondsUntil(deadline()), index, item.reservation,
                           ToReserve(put), landed->offset, sealer.envelope()});
  return granted_.empty() ? Turn::kNothing : Turn::kSent;
}

ReserveItem PutTask::ToReserve(const PutRequest& put) const {
  return {{put.key.digest, put.key.shard},
          ns_.shape,
          put.metadata.depth,
          static_cast<uint16_t>(put.metadata.opaque.size())};
}

// The source is checksummed while it leaves, each part still warm in the cache when the transport
// reads it; the envelope is written before its turn comes.
void PutTask::SealBehind(const PutRequest& put, OutgoingMessage* message) const {
  auto sealer = std::make_unique<BlockSealer>(put, ns_);
  message->payload.push_back(sealer->envelope());
  message->sending = [sealer = std::move(sealer)](ByteSpan part) { sealer->Update(part); };
}

void PutTask::OnSent(DataChannel& channel, uint32_t position, const absl::Status& status) {
  --sending_;
  if (status.ok() || items_[position].state == Item::kFinal) return;
  EndItem(channel, position,
          absl::IsResourceExhausted(status) ? WireStatus::kOverloaded : WireStatus::kMiss);
}

absl::Status PutTask::OnPut(DataChannel& channel, uint64_t request, const PutReplyFrame& reply) {
  const uint32_t position = batches_.find(request)->second.begin + reply.index;
  if (position >= items_.size() || items_[position].request != request ||
      items_[position].state != Item::kWaiting) {
    return absl::DataLossError("a PutReply for a value that was not sent");
  }
  if (reply.status == WireStatus::kOk) Count(&channel.counters().put_bytes, ns_.shape.length);
  EndItem(channel, position, reply.status);
  return absl::OkStatus();
}

void PutTask::EndItem(DataChannel& channel, uint32_t position, WireStatus status) {
  const bool existed = status == WireStatus::kExists || status == WireStatus::kPending;
  if (items_.size() == 1 && (existed || status == WireStatus::kNoSpace)) channel.PutWasNotWanted();
  const Item& item = items_[position];
  state_->results[item.index].existed = existed;
  SetFinal(channel, position, ToOutcome(status), ToString(status));
  auto it = batches_.find(item.request);
  channel.GiveBack(item.request, ns_.shape.length, 1);
  if (--it->second.open == 0) {
    channel.EndRequest(item.request);
    batches_.erase(it);
  }
}

void PutTask::SetFinal(DataChannel& channel, uint32_t position, Outcome outcome,
                       std::string message) {
  Item& item = items_[position];
  item.state = Item::kFinal;
  --open_;
  if (outcome != Outcome::kOk) state_->results[item.index].message = std::move(message);
  state_->SetOutcome(item.index, outcome);
  ChannelCounters& counters = channel.counters();
  Count(&counters.puts);
  if (outcome == Outcome::kCorrupt) Count(&counters.corrupt);
  if (outcome == Outcome::kTimeout) Count(&counters.timeouts);
}

void PutTask::Abandon(DataChannel& channel, Outcome why) {
  for (const auto& [request, batch] : std::exchange(batches_, {})) channel.CancelRequest(request);
  for (uint32_t i = 0; i < items_.size(); ++i) {
    if (items_[i].state != Item::kFinal) SetFinal(channel, i, why, {});
  }
  granted_.clear();
  next_ = static_cast<uint32_t>(items_.size());
}

}  // namespace terrace
