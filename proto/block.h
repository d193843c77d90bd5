// What a block is, apart from its bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/block_key.h"

namespace terrace {

constexpr uint32_t kMinBlockBytes = 4 << 10;
constexpr uint32_t kMaxBlockBytes = 64 << 20;
constexpr uint32_t kMaxSegments = 256;
constexpr uint32_t kMaxOpaqueBytes = 1 << 10;

enum class Tier : uint8_t { kNone = 0, kGpu = 1, kHost = 2, kSsd = 3 };
const char* ToString(Tier tier);

// How the bytes of a block are encoded. Only raw is known so far.
enum class Codec : uint8_t { kRaw = 0 };

// The kind of traffic that made a block; slower tiers admit by it.
enum class TrafficClass : uint8_t {
  kUnspecified = 0,
  kChat = 1,
  kAgent = 2,
  kRag = 3,
  kSingleShot = 4,
  kReasoning = 5
};

// Size and division of a block: `segments` equal parts, normally one per layer.
struct BlockShape {
  uint32_t length = 0;
  uint32_t segments = 1;

  uint32_t segment_bytes() const { return length / segments; }
  auto operator<=>(const BlockShape&) const = default;
};

// OK when length is 4 KiB to 64 MiB (and at most `max_length`), segments is 1 to 256 and
// divides length. InvalidArgument names the field and its bound.
absl::Status Validate(const BlockShape& shape, uint32_t max_length = kMaxBlockBytes);

// What a writer may say about a block beside its bytes.
struct BlockMetadata {
  std::optional<Digest> parent;  // the block before it in its chain
  uint32_t depth = 0;            // index in its chain
  TrafficClass traffic_class = TrafficClass::kUnspecified;
  std::string opaque;  // up to 1 KiB, handed back as it came
};

}  // namespace terrace
