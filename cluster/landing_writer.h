// Writes one payload into its landing, in order, and keeps the landing's promises: progress after
// each part, landed exactly once.
#pragma once

#include <sys/uio.h>

#include <span>

#include "absl/status/status.h"
#include "cluster/transport.h"
#include "proto/bytes.h"

namespace terrace {

class LandingWriter {
 public:
  LandingWriter() = default;
  // The handler's answer for a payload of `payload_bytes`. Its pieces add up to that or are none.
  LandingWriter(Landing landing, uint64_t payload_bytes);

  // Copies the next bytes of the payload; never more than are missing.
  void Write(ByteSpan bytes);
  // For who puts bytes in place himself: describes the next places, at most `max_bytes` and
  // `out.size()` of them, and returns how many. None when bytes are thrown away.
  size_t NextPlaces(size_t max_bytes, std::span<iovec> out) const;
  // The next `bytes` of the payload have been put in place.
  void Written(size_t bytes);
  // The last call; later ones do nothing.
  void Finish(absl::Status status);

  const Landing& landing() const { return landing_; }

 private:
  void SkipFullPieces();

  Landing landing_;
  size_t piece_ = 0;     // being filled; never a full one
  size_t in_piece_ = 0;  // bytes of it that are there
};

}  // namespace terrace
