// Writes one payload into its landing, in order, and keeps the landing's promises: progress after
// each part, landed exactly once.
#pragma once

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
  // `bytes` of the payload have been put in place by somebody else, all at once.
  void WrittenElsewhere();
  // The last call; later ones do nothing.
  void Finish(absl::Status status);

  const Landing& landing() const { return landing_; }

 private:
  Landing landing_;
  size_t piece_ = 0;     // being filled
  size_t in_piece_ = 0;  // bytes of it that are there
};

}  // namespace terrace
