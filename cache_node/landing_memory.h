// Memory that a client on this machine writes the blocks into which it puts; the node copies them
// from there, and judges its own copy: what the client does to the memory meanwhile or afterwards
// can make its put fail, and nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/bytes.h"
#include "proto/descriptor.h"

namespace terrace {

class LandingMemory {
 public:
  // For reading. May change at any moment.
  ByteSpan bytes() const { return bytes_; }
  // What the client maps; it cannot be made shorter or longer.
  absl::StatusOr<Descriptor> Open() const;
  ~LandingMemory();
  LandingMemory(const LandingMemory&) = delete;
  LandingMemory& operator=(const LandingMemory&) = delete;

 private:
  friend class LandingMemories;
  explicit LandingMemory(std::shared_ptr<std::atomic<uint64_t>> total) : total_(std::move(total)) {}

  Descriptor fd_;
  ByteSpan bytes_;
  const std::shared_ptr<std::atomic<uint64_t>> total_;
};

// One per session, all of them together bounded. Thread-safe.
class LandingMemories {
 public:
  static constexpr uint64_t kBytes = 16 << 20;  // of one; filled by the kernel as it is used

  explicit LandingMemories(uint64_t most) : most_(most) {}
  // ResourceExhausted: as many as there may be, or no memory or descriptors.
  absl::StatusOr<std::shared_ptr<const LandingMemory>> Create();
  uint64_t bytes() const { return total_->load(std::memory_order_relaxed); }

 private:
  const uint64_t most_;
  const std::shared_ptr<std::atomic<uint64_t>> total_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace terrace
