// A stream of transport pieces as a peer may send it: DecodePieceHeader and InboundMessage. What
// the handler is told never exceeds what was announced, and one header has one encoding.
//
// The input: pieces of u8 mode, u16 length, and that many bytes of header and frame part. Mode 0
// has as much data as its payload; mode 1 has none; any other says itself how much.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "cluster/inbound_message.h"
#include "cluster/piece.h"
#include "cluster/transport.h"
#include "tests/fuzz/require.h"

namespace terrace {
namespace {

constexpr size_t kPayloadBytesAt = 32;

void JudgeHeader(const PieceHeader& header, ByteSpan bytes) {
  Require(header.frame_bytes <= kMaxFrameBytes, "frame within its bound");
  Require(header.payload_bytes <= kMaxPayloadBytes, "payload within its bound");
  Require(header.frame_part <= header.frame_bytes &&
              header.frame_offset <= header.frame_bytes - header.frame_part,
          "frame part within the frame");
  Require(header.data_bytes() <= header.payload_bytes, "no more than the payload");
  std::array<std::byte, kPieceHeaderBytes> again;
  EncodePieceHeader(header, again);
  Require(std::ranges::equal(again, bytes.first(kPieceHeaderBytes)), "one header, one encoding");
}

// What one message of the connection has brought so far, kept apart from the code under test.
class Oracle {
 public:
  void Taken(const PieceHeader& header, ByteSpan frame_part, const InboundMessage& message) {
    if (!begun_) *this = Oracle(header, sequence_);
    Require(header.sequence == sequence_, "messages in order");
    Require(header.frame_bytes == announced_.frame_bytes &&
                header.payload_bytes == announced_.payload_bytes,
            "sizes stay");
    Require(header.frame_offset == frame_.size(), "parts in order");
    frame_.insert(frame_.end(), frame_part.begin(), frame_part.end());
    Require(frame_.size() <= announced_.frame_bytes, "no more frame than announced");
    Require(message.frame_arrived() || header.data_bytes() == 0, "no payload before its frame");
    if (message.frame_arrived()) {
      Require(std::ranges::equal(message.frame(), frame_), "the frame is what arrived");
      Require(frame_.size() == announced_.frame_bytes, "a frame is told when it is whole");
      begun_ = false;
      ++sequence_;
    }
  }
  Oracle() = default;

 private:
  Oracle(const PieceHeader& first, uint64_t sequence)
      : begun_(true), announced_(first), sequence_(sequence) {}

  bool begun_ = false;
  PieceHeader announced_;
  uint64_t sequence_ = 0;
  std::vector<std::byte> frame_;
};

}  // namespace
}  // namespace terrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  ByteSpan rest = std::as_bytes(std::span(data, size));
  InboundMessage message;
  Oracle oracle;
  while (rest.size() >= 3) {
    const auto mode = static_cast<uint8_t>(rest[0]);
    uint16_t length;
    std::memcpy(&length, &rest[1], sizeof(length));
    const ByteSpan piece = rest.subspan(3, std::min<size_t>(length, rest.size() - 3));
    rest = rest.subspan(3 + piece.size());
    uint64_t data_bytes = mode - (mode == 1 ? 1 : 0);
    if (mode == 0 && piece.size() >= kPieceHeaderBytes) {
      std::memcpy(&data_bytes, &piece[kPayloadBytesAt], sizeof(data_bytes));
    }
    const auto header = DecodePieceHeader(piece, data_bytes);
    if (!header.ok()) break;  // the connection is broken
    JudgeHeader(*header, piece);
    if (header->kind != PieceKind::kData) continue;
    const ByteSpan frame_part = piece.subspan(kPieceHeaderBytes);
    if (!message.Take(*header, frame_part).ok()) break;
    oracle.Taken(*header, frame_part, message);
  }
  return 0;
}
