#include "proto/block.h"

#include "fmt/format.h"

namespace terrace {

const char* ToString(Tier tier) {
  switch (tier) {
    case Tier::kNone:
      return "none";
    case Tier::kGpu:
      return "gpu";
    case Tier::kHost:
      return "host";
    case Tier::kSsd:
      return "ssd";
  }
  return "unknown";
}

absl::Status Validate(const BlockShape& shape, uint32_t max_length) {
  if (shape.length < kMinBlockBytes || shape.length > max_length) {
    return absl::InvalidArgumentError(fmt::format("block length {} is outside {} to {} bytes",
                                                  shape.length, kMinBlockBytes, max_length));
  }
  if (shape.segments == 0 || shape.segments > kMaxSegments) {
    return absl::InvalidArgumentError(
        fmt::format("segment count {} is outside 1 to {}", shape.segments, kMaxSegments));
  }
  if (shape.length % shape.segments != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "segment count {} does not divide block length {}", shape.segments, shape.length));
  }
  return absl::OkStatus();
}

}  // namespace terrace
