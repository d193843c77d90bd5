// What the TCP transport puts on the wire. Each side of a connection first sends a greeting, then
// messages; each is this header, its frame, its payload. Everything here comes from outside and is
// checked before it is used.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "proto/bytes.h"

namespace terrace {

constexpr size_t kMessageHeaderBytes = 24;

enum class MessageKind : uint16_t {
  kHello = 1,    // the connecting side's first
  kWelcome = 2,  // the accepting side's answer; the connection is up
  kFull = 3,     // its other answer: it has all the connections that it takes
  kData = 4,
};

struct MessageHeader {
  MessageKind kind = MessageKind::kData;
  uint32_t frame_bytes = 0;
  uint64_t payload_bytes = 0;
};

void EncodeMessageHeader(const MessageHeader& header,
                         std::span<std::byte, kMessageHeaderBytes> out);

// The header at the beginning of `bytes`; nullopt while it is incomplete. A stranger is known by
// his first bytes already: InvalidArgument as soon as the magic disagrees, or once complete.
// FailedPrecondition names both versions where they differ.
absl::StatusOr<std::optional<MessageHeader>> DecodeMessageHeader(ByteSpan bytes);

}  // namespace terrace
