// Places in landing memory, for blocks on their way to the node.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace terrace {

// Thread-compatible. The lowest place that fits, so that what is used stays small and warm.
class LandingSlots {
 public:
  explicit LandingSlots(uint64_t bytes) : bytes_(bytes) {}

  // A block of more than half of the memory would wait for all others, and hold them up.
  bool CanEverFit(uint64_t length) const { return length <= bytes_ / 2; }
  // None when there is no room now.
  std::optional<uint64_t> Take(uint64_t length) {
    uint64_t begin = 0;
    for (const auto& [offset, taken] : used_) {
      if (offset - begin >= length) break;
      begin = offset + taken;
    }
    if (length > bytes_ || begin > bytes_ - length) return std::nullopt;
    used_.emplace(begin, length);
    return begin;
  }
  void Free(uint64_t offset) { used_.erase(offset); }

 private:
  const uint64_t bytes_;
  std::map<uint64_t, uint64_t> used_;  // offset -> length
};

}  // namespace terrace
