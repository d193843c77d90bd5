#include "cache_node/outbox.h"

#include <algorithm>

namespace terrace {

absl::Duration RequestDeadline(absl::Duration now, uint32_t deadline_ms) {
  if (deadline_ms == 0) return now + kDefaultPatience;
  return now + std::min(absl::Milliseconds(deadline_ms), kLongestPatience);
}

Outbox::Outbox(Transport* transport, ConnectionId connection, Clock* clock,
               std::function<void()> on_sent)
    : transport_(transport), connection_(connection), clock_(clock), on_sent_(std::move(on_sent)) {}

void Outbox::Send(uint64_t request_id, const FrameBody& body) {
  Enqueue(Encode(request_id, body), {}, {}, clock_->Now() + kDefaultPatience);
}

void Outbox::SendBlock(uint64_t request_id, const BlockFrame& frame, BlockRef block,
                       ByteSpan payload, absl::Duration deadline) {
  Enqueue(Encode(request_id, frame), std::move(block), payload, deadline + kGrace);
}

void Outbox::Enqueue(std::vector<std::byte> frame, BlockRef block, ByteSpan payload,
                     absl::Duration deadline) {
  const uint64_t id = next_send_++;
  sends_[id] = deadline;
  bytes_ += payload.size();
  OutgoingMessage message;
  message.frame = std::move(frame);
  if (!payload.empty()) message.payload.push_back(payload);
  // The reference is a part of the callback: it is gone exactly when the transport let go.
  message.sent = [self = weak_from_this(), id, bytes = payload.size(),
                  block = std::move(block)](absl::Status status) mutable {
    block.Release();
    if (auto outbox = self.lock()) outbox->Sent(id, bytes, status);
  };
  transport_->Send(connection_, std::move(message));
}

void Outbox::Sent(uint64_t send_id, uint64_t payload_bytes, const absl::Status& status) {
  sends_.erase(send_id);
  bytes_ -= payload_bytes;
  if (status.ok()) {
    on_sent_();
  } else {
    transport_->Close(connection_, status);
  }
}

bool Outbox::Overdue(absl::Duration now) const {
  return std::ranges::any_of(sends_, [now](const auto& send) { return send.second < now; });
}

}  // namespace terrace
