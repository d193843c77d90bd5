// How a block is named. A key is namespace id + digest + shard; it is opaque to the node.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/bytes.h"

namespace terrace {

// Names a namespace within a cluster; 0 is never assigned.
struct NamespaceId {
  uint64_t value = 0;
  auto operator<=>(const NamespaceId&) const = default;
};

// HMAC-SHA256 of an engine's digest under the namespace's secret (KeyedDigest).
struct Digest {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const Digest&) const = default;
};

using NamespaceSecret = std::array<uint8_t, 32>;

// shard: tensor- or pipeline-parallel rank; 0 where there is none.
struct BlockKey {
  NamespaceId ns;
  Digest digest;
  uint16_t shard = 0;
  auto operator<=>(const BlockKey&) const = default;

  template <typename H>
  friend H AbslHashValue(H state, const BlockKey& key) {
    // The digest is uniformly distributed already: eight of its bytes hash as well as all.
    uint64_t prefix;
    std::memcpy(&prefix, key.digest.bytes.data(), sizeof(prefix));
    return H::combine(std::move(state), key.ns.value, prefix, key.shard);
  }
};

constexpr size_t kMinEngineDigestBytes = 16;
constexpr size_t kMaxEngineDigestBytes = 64;

// The digest that travels: HMAC-SHA256(secret, engine_digest). Nobody without the secret can
// guess or probe a key. InvalidArgument unless the engine's digest has 16 to 64 bytes.
absl::StatusOr<Digest> KeyedDigest(const NamespaceSecret& secret, ByteSpan engine_digest);

// SHA-256 of `data` (FIPS 180-4), for fingerprints and token hashes.
Digest Sha256(ByteSpan data);

// "<namespace id, 16 hex>:<digest, 64 hex>:<shard, decimal>", and back. InvalidArgument names
// what is wrong.
std::string ToString(const BlockKey& key);
absl::StatusOr<BlockKey> ParseBlockKey(std::string_view text);

std::string ToHex(ByteSpan bytes);
absl::StatusOr<std::vector<uint8_t>> FromHex(std::string_view text);

// `count` bytes from the system's cryptographic generator.
std::vector<uint8_t> RandomBytes(size_t count);

}  // namespace terrace
