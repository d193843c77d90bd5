#include "cluster/inbound_message.h"

namespace terrace {
namespace {

absl::Status OutOfOrder(const char* what) {
  return absl::InvalidArgumentError(std::string("transport piece out of order: ") + what);
}

}  // namespace

absl::Status InboundMessage::Take(const PieceHeader& header, ByteSpan frame_part) {
  if (!started_) {
    expected_ = {.frame_bytes = header.frame_bytes, .payload_bytes = header.payload_bytes};
    started_ = true;
    gathered_.clear();
  }
  if (header.sequence != sequence_) return OutOfOrder("message");
  if (header.frame_bytes != expected_.frame_bytes ||
      header.payload_bytes != expected_.payload_bytes) {
    return OutOfOrder("sizes change within a message");
  }
  if (header.frame_offset != expected_.frame_offset) return OutOfOrder("offset");
  if (header.frame_part == header.frame_bytes) {
    frame_ = frame_part;
  } else if (header.frame_part > 0) {
    gathered_.insert(gathered_.end(), frame_part.begin(), frame_part.end());
    frame_ = gathered_;
  }
  expected_.frame_offset += header.frame_part;
  if (header.frame_complete()) {
    started_ = false;
    ++sequence_;
  }
  return absl::OkStatus();
}

}  // namespace terrace
