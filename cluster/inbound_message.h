// The receiving side's memory of one connection: which piece must come next, and the frame so far.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cluster/piece.h"
#include "proto/bytes.h"

namespace terrace {

class InboundMessage {
 public:
  // Takes a decoded piece of kind kData with its frame part, in the order of the wire.
  // InvalidArgument when it is not the one that must come next; the connection is then broken.
  absl::Status Take(const PieceHeader& header, ByteSpan frame_part);

  // Whether the piece just taken completed the frame: the moment to tell the handler.
  bool frame_arrived() const { return !started_; }
  // The complete frame. Valid until Take or the end of the piece's own memory.
  ByteSpan frame() const { return frame_; }

 private:
  uint64_t sequence_ = 0;  // of the message that is arriving
  PieceHeader expected_;   // the next piece's sizes and offsets, once the first has come
  bool started_ = false;
  ByteSpan frame_;
  std::vector<std::byte> gathered_;  // a frame that comes in several parts
};

}  // namespace terrace
