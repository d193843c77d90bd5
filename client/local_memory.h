// The memory of a node on this machine, mapped for reading, and its landing memory for what is put
// (proto/local_memory.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/bytes.h"
#include "proto/envelope.h"
#include "proto/frame.h"

namespace terrace {

// What is in it changes under the reader's eyes: whatever is read from it is copied first and
// judged then, or judged by its generation afterwards (proto/envelope.h). Reading never faults.
class LocalMemory {
 public:
  // Blocks, at most `timeout`. Unavailable: no such socket in reach (another container, say), or
  // the node does not share; DeadlineExceeded; DataLoss: what came is not safe to map.
  static absl::StatusOr<std::shared_ptr<const LocalMemory>> Open(const std::string& address,
                                                                 const SessionToken& token,
                                                                 absl::Duration timeout);
  // Takes the mappings over.
  LocalMemory(ByteSpan bytes, MutableByteSpan landing) : bytes_(bytes), landing_(landing) {}
  ~LocalMemory();
  LocalMemory(const LocalMemory&) = delete;
  LocalMemory& operator=(const LocalMemory&) = delete;

  ByteSpan bytes() const { return bytes_; }
  MutableByteSpan landing() const { return landing_; }  // empty: puts travel
  // Whether a place that the node names lies within.
  bool Holds(uint64_t offset, uint64_t length) const {
    return length <= bytes_.size() && offset <= bytes_.size() - length;
  }
  bool HoldsEnvelope(uint64_t offset, uint32_t segments) const {
    return offset % 8 == 0 && Holds(offset, EnvelopeBytes(segments, kMaxOpaqueBytes));
  }
  // At least the envelope there. Its bytes may change: copy them before they are judged.
  ByteSpan EnvelopeAt(uint64_t offset, uint32_t segments) const {
    return bytes_.subspan(offset, EnvelopeBytes(segments, kMaxOpaqueBytes));
  }

 private:
  const ByteSpan bytes_;
  const MutableByteSpan landing_;
};

}  // namespace terrace
