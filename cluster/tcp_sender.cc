#include "cluster/tcp_sender.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cluster/outgoing.h"
#include "cluster/tcp_socket.h"
#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Offered to the kernel at once. A part of this size is still in the second-level cache when the
// kernel copies it, and large enough that the call costs little.
constexpr uint64_t kBatchBytes = 256 << 10;
// The rest of a payload that is no larger than this goes with the part before it.
constexpr uint64_t kSmallRest = 16 << 10;
// Of one connection before the others and the receiving side get their turn.
constexpr uint64_t kBytesPerTurn = 512 << 10;

}  // namespace

TcpSender::TcpSender(uint32_t max_queued_messages, TransportCounters* counters,
                     absl::AnyInvocable<void()> ready)
    : max_queued_messages_(max_queued_messages), counters_(counters), ready_(std::move(ready)) {}

TcpSender::Outbound TcpSender::Make(MessageKind kind, OutgoingMessage message,
                                    uint64_t payload_bytes) {
  Outbound made{.message = std::move(message)};
  made.greeting = kind != MessageKind::kData;
  const auto frame_bytes = static_cast<uint32_t>(made.message.frame.size());
  EncodeMessageHeader({kind, frame_bytes, payload_bytes}, made.header);
  made.wire_bytes = made.left = kMessageHeaderBytes + frame_bytes + payload_bytes;
  return made;
}

void TcpSender::Greet(MessageKind kind) {
  queue_.push_front(Make(kind, {}, 0));
  ready_();
}

void TcpSender::Open() {
  open_ = true;
  ready_();
}

void TcpSender::Enqueue(OutgoingMessage message) {
  message.payload.erase(std::remove_if(message.payload.begin(), message.payload.end(),
                                       [](ByteSpan part) { return part.empty(); }),
                        message.payload.end());
  uint64_t payload_bytes = 0;
  for (ByteSpan part : message.payload) payload_bytes += part.size();
  absl::Status status = CheckSizes(message.frame.size(), payload_bytes);
  if (status.ok() && queue_.size() >= max_queued_messages_) {
    status = absl::ResourceExhaustedError(
        fmt::format("{} messages wait on this connection", queue_.size()));
  }
  if (!status.ok()) {
    Tell(message, std::move(status));
    return;
  }
  queue_.push_back(Make(MessageKind::kData, std::move(message), payload_bytes));
  ready_();
}

absl::StatusOr<TcpSender::State> TcpSender::Write(int fd) {
  for (uint64_t written = 0; written < kBytesPerTurn;) {
    if (batch_begin_ == batch_end_) FillBatch();
    if (batch_begin_ == batch_end_) return State::kIdle;
    msghdr header{};
    header.msg_iov = &batch_[batch_begin_];
    header.msg_iovlen = batch_end_ - batch_begin_;
    const ssize_t taken = sendmsg(fd, &header, MSG_NOSIGNAL);
    if (taken < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return State::kBlocked;
      return FromErrno(errno, "peer");
    }
    written += static_cast<uint64_t>(taken);
    Taken(static_cast<uint64_t>(taken));
    Retire(static_cast<uint64_t>(taken));
    if (batch_begin_ != batch_end_) return State::kBlocked;
  }
  return State::kMore;
}

bool TcpSender::MayFill() const {
  // A message adds its header, its frame and a part of its payload.
  return batch_end_ + 3 <= kMaxSpans && next_ < queue_.size() && (open_ || queue_[next_].greeting);
}

void TcpSender::FillBatch() {
  batch_begin_ = batch_end_ = 0;
  for (uint64_t bytes = 0; bytes < kBatchBytes && MayFill();) {
    Outbound& outbound = queue_[next_];
    if (!std::exchange(outbound.begun, true)) {
      AddSpan(outbound.header);
      AddSpan(outbound.message.frame);
      bytes += outbound.message.frame.size();
      Add(counters_->payload_in_flight, outbound.payload_bytes());
    }
    if (bytes < kBatchBytes) bytes += AddPayload(&outbound, kBatchBytes - bytes);
    if (next_part_ < outbound.message.payload.size()) continue;
    ++next_;
    next_part_ = 0;
  }
}

// Adds about `room` bytes of what is left of the payload, and moves past them.
uint64_t TcpSender::AddPayload(Outbound* outbound, uint64_t room) {
  OutgoingMessage& message = outbound->message;
  uint64_t bytes = 0;
  while (next_part_ < message.payload.size() && bytes < room && batch_end_ < kMaxSpans) {
    const ByteSpan rest = message.payload[next_part_].subspan(next_skip_);
    const uint64_t limit = room - bytes;
    const ByteSpan part = rest.size() <= limit + kSmallRest ? rest : rest.first(limit);
    if (message.sending) message.sending(part);
    AddSpan(part);
    bytes += part.size();
    next_skip_ += part.size();
    if (part.size() < rest.size()) continue;
    ++next_part_;
    next_skip_ = 0;
  }
  return bytes;
}

void TcpSender::AddSpan(ByteSpan bytes) {
  if (bytes.empty()) return;
  batch_[batch_end_++] = {.iov_base = const_cast<std::byte*>(bytes.data()),
                          .iov_len = bytes.size()};
}

void TcpSender::Taken(uint64_t bytes) {
  while (bytes > 0) {
    iovec& first = batch_[batch_begin_];
    const size_t count = std::min<uint64_t>(bytes, first.iov_len);
    first.iov_base = static_cast<std::byte*>(first.iov_base) + count;
    first.iov_len -= count;
    bytes -= count;
    if (first.iov_len == 0) ++batch_begin_;
  }
}

// Tells the messages that the kernel has as a whole now.
void TcpSender::Retire(uint64_t bytes) {
  while (bytes > 0) {
    Outbound& front = queue_.front();
    const uint64_t count = std::min(bytes, front.left);
    front.left -= count;
    bytes -= count;
    if (front.left > 0) return;
    if (!front.greeting) {
      Add(counters_->messages_sent, 1);
      Add(counters_->bytes_sent, front.wire_bytes - kMessageHeaderBytes);
      Subtract(counters_->payload_in_flight, front.payload_bytes());
    }
    OutgoingMessage message = std::move(front.message);
    queue_.pop_front();
    --next_;
    Tell(message, absl::OkStatus());
  }
}

void TcpSender::FailAll(const absl::Status& why) {
  batch_begin_ = batch_end_ = 0;
  while (!queue_.empty()) {
    if (queue_.front().begun)
      Subtract(counters_->payload_in_flight, queue_.front().payload_bytes());
    OutgoingMessage message = std::move(queue_.front().message);
    queue_.pop_front();
    Tell(message, why);
  }
}

}  // namespace terrace
