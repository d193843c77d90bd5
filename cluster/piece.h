// What the UCX transport puts on the wire. A message travels as pieces in order, each with a part
// of its frame; the one that completes the frame carries the payload, whole. Each piece is one
// active message: this header and the frame part form its header, the payload its data. Everything
// here comes from outside and is checked before it is used.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "proto/bytes.h"

namespace terrace {

constexpr size_t kPieceHeaderBytes = 40;

// The active message that carries pieces. The highest there is: UCX 1.13 looks an arriving id up
// in a table that reaches to the highest id in use, without asking whether it does.
constexpr unsigned kPieceMessageId = 0xffff;

enum class PieceKind : uint8_t {
  kHello = 1,    // the connecting side's first
  kWelcome = 2,  // the accepting side's answer; the connection is up
  kData = 3,
};

struct PieceHeader {
  PieceKind kind = PieceKind::kData;
  uint32_t frame_bytes = 0;   // of the whole message
  uint32_t frame_offset = 0;  // of this piece's part
  uint32_t frame_part = 0;
  uint64_t sequence = 0;  // of the message in its connection and direction
  uint64_t payload_bytes = 0;

  // The last piece of its message.
  bool frame_complete() const { return frame_offset + frame_part == frame_bytes; }
  uint64_t data_bytes() const { return frame_complete() ? payload_bytes : 0; }
};

void EncodePieceHeader(const PieceHeader& header, std::span<std::byte, kPieceHeaderBytes> out);

// `bytes` is the active message's header (piece header and frame part), `data_bytes` the length
// of its data. InvalidArgument unless magic, version, kind and every bound hold and the lengths
// agree with what was received.
absl::StatusOr<PieceHeader> DecodePieceHeader(ByteSpan bytes, uint64_t data_bytes);

}  // namespace terrace
