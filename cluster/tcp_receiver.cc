#include "cluster/tcp_receiver.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cluster/tcp_socket.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Of a payload at once: still in the second-level cache when `progress` looks at it.
constexpr size_t kPartBytes = 256 << 10;
// Of one connection before the others and the sending side get their turn.
constexpr uint64_t kBytesPerTurn = 512 << 10;
// After a payload of at least kLargePayload another is likely: of it no more than this is read into
// the buffer, and copied, along with its header and frame.
constexpr size_t kLargePayload = 32 << 10;
constexpr size_t kHeadBytes = 4 << 10;
constexpr size_t kMaxPlaces = 16;

// Bytes that have arrived, at least one, or 0 when there are none for now.
absl::StatusOr<size_t> Receive(int fd, std::span<iovec> places) {
  msghdr header{};
  header.msg_iov = places.data();
  header.msg_iovlen = places.size();
  while (true) {
    const ssize_t got = recvmsg(fd, &header, 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return absl::UnavailableError("peer: connection closed");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return FromErrno(errno, "peer");
  }
}

}  // namespace

TcpReceiver::TcpReceiver(ConnectionId connection, TransportHandler* handler,
                         TransportCounters* counters,
                         absl::AnyInvocable<absl::Status(MessageKind)> greeted)
    : connection_(connection),
      handler_(handler),
      counters_(counters),
      greeted_(std::move(greeted)) {}

absl::Status TcpReceiver::Read(int fd, MutableByteSpan buffer) {
  for (uint64_t taken = 0; taken < kBytesPerTurn;) {
    size_t asked = 0;
    const bool straight = payload_left_ > 0 && !writer_.landing().pieces.empty();
    TERRACE_ASSIGN_OR_RETURN(const size_t got, straight ? ReadPayload(fd, buffer, &asked)
                                                        : ReadMessages(fd, buffer, &asked));
    taken += got;
    if (got < asked) break;  // the socket is empty, or will be reported again
  }
  return absl::OkStatus();
}

// The next part of the payload goes where it lands, and what follows it to the buffer.
absl::StatusOr<size_t> TcpReceiver::ReadPayload(int fd, MutableByteSpan buffer, size_t* asked) {
  std::array<iovec, kMaxPlaces + 1> places;
  size_t count = writer_.NextPlaces(kPartBytes, std::span(places).first<kMaxPlaces>());
  uint64_t room = 0;
  for (const iovec& place : std::span(places).first(count)) room += place.iov_len;
  *asked = room;
  if (room == payload_left_) {
    places[count++] = {.iov_base = buffer.data(), .iov_len = BufferBytes()};
    *asked += BufferBytes();
  }
  TERRACE_ASSIGN_OR_RETURN(const size_t got, Receive(fd, std::span(places).first(count)));
  const size_t landed = std::min<uint64_t>(got, room);
  writer_.Written(landed);
  PayloadArrived(landed);
  TERRACE_RETURN_IF_ERROR(TakeMessages(buffer.first(got - landed)));
  return got;
}

absl::StatusOr<size_t> TcpReceiver::ReadMessages(int fd, MutableByteSpan buffer, size_t* asked) {
  *asked = BufferBytes();
  iovec place{.iov_base = buffer.data(), .iov_len = *asked};
  TERRACE_ASSIGN_OR_RETURN(const size_t got, Receive(fd, {&place, 1}));
  TERRACE_RETURN_IF_ERROR(TakeMessages(buffer.first(got)));
  return got;
}

size_t TcpReceiver::BufferBytes() const {
  return last_payload_bytes_ >= kLargePayload ? kHeadBytes : kReceiveBufferBytes;
}

absl::Status TcpReceiver::TakeMessages(ByteSpan bytes) {
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      TakePayload(&bytes);
      continue;
    }
    if (!begun_.empty()) {
      TERRACE_RETURN_IF_ERROR(TakeRest(&bytes));
      continue;
    }
    TERRACE_ASSIGN_OR_RETURN(const bool taken, TakeHeader(&bytes));
    if (taken) continue;
    begun_.assign(bytes.begin(), bytes.end());
    break;
  }
  return absl::OkStatus();
}

// Adds to what has begun, up to its header's or its frame's end: each byte is copied once, however
// small the parts that it comes in.
absl::Status TcpReceiver::TakeRest(ByteSpan* bytes) {
  size_t whole = kMessageHeaderBytes;
  if (begun_.size() >= kMessageHeaderBytes) {
    TERRACE_ASSIGN_OR_RETURN(const std::optional<MessageHeader> header,
                             DecodeMessageHeader(begun_));
    whole += header->frame_bytes;
  }
  const ByteSpan rest = bytes->first(std::min(bytes->size(), whole - begun_.size()));
  *bytes = bytes->subspan(rest.size());
  begun_.insert(begun_.end(), rest.begin(), rest.end());
  ByteSpan message(begun_);
  TERRACE_ASSIGN_OR_RETURN(const bool taken, TakeHeader(&message));
  if (taken) begun_.clear();
  return absl::OkStatus();
}

void TcpReceiver::TakePayload(ByteSpan* bytes) {
  const size_t count = std::min<uint64_t>(bytes->size(), payload_left_);
  writer_.Write(bytes->first(count));
  *bytes = bytes->subspan(count);
  PayloadArrived(count);
}

void TcpReceiver::PayloadArrived(uint64_t bytes) {
  Add(counters_->bytes_received, bytes);
  payload_left_ -= bytes;
  if (payload_left_ > 0) return;
  Add(counters_->messages_received, 1);
  writer_.Finish(absl::OkStatus());
}

// Takes a header and its frame; false while they are incomplete.
absl::StatusOr<bool> TcpReceiver::TakeHeader(ByteSpan* bytes) {
  TERRACE_ASSIGN_OR_RETURN(const std::optional<MessageHeader> header, DecodeMessageHeader(*bytes));
  if (!header.has_value()) return false;
  if (header->kind != MessageKind::kData) {
    *bytes = bytes->subspan(kMessageHeaderBytes);
    TERRACE_RETURN_IF_ERROR(greeted_(header->kind));
    return true;
  }
  if (!open_) return absl::InvalidArgumentError("transport header: a message before the greeting");
  if (bytes->size() < kMessageHeaderBytes + header->frame_bytes) return false;
  const ByteSpan frame = bytes->subspan(kMessageHeaderBytes, header->frame_bytes);
  *bytes = bytes->subspan(kMessageHeaderBytes + frame.size());
  last_payload_bytes_ = header->payload_bytes;
  Add(counters_->bytes_received, frame.size());
  if (header->payload_bytes == 0) Add(counters_->messages_received, 1);
  Landing landing = handler_->OnMessage(connection_, frame, header->payload_bytes);
  if (header->payload_bytes > 0) {
    writer_ = LandingWriter(std::move(landing), header->payload_bytes);
    payload_left_ = header->payload_bytes;
  }
  return true;
}

void TcpReceiver::Fail(const absl::Status& why) {
  if (std::exchange(payload_left_, 0) > 0) writer_.Finish(why);
}

}  // namespace terrace
