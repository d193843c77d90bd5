// The ordered keys of one prefix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/block.h"
#include "proto/block_key.h"

namespace terrace {

// A namespace that a client has opened. A value; copy it freely.
struct Namespace {
  NamespaceId id;
  NamespaceSecret secret{};
  uint64_t layout_id = 0;
  BlockShape shape;  // of every block in it
  uint32_t block_tokens = 0;
};

// Immutable. Holds a key per block and shard: key(i, s) is block i of shards()[s].
class Chain {
 public:
  // From the engine's own digests, root first, each 16 to 64 bytes; InvalidArgument names the
  // first that is not, or an empty or repeated shard list.
  static absl::StatusOr<Chain> FromDigests(const Namespace& ns, std::span<const ByteSpan> digests,
                                           std::vector<uint16_t> shards = {0});

  // From token ids: block i's digest is SHA-256(digest of block i-1, then each token as four
  // bytes little-endian), the first block having no predecessor (SGLang's page hash). Only whole
  // blocks of ns.block_tokens count. InvalidArgument when ns.block_tokens is 0.
  static absl::StatusOr<Chain> FromTokens(const Namespace& ns, std::span<const uint32_t> tokens,
                                          std::vector<uint16_t> shards = {0});

  size_t blocks() const { return digests_.size(); }
  const std::vector<uint16_t>& shards() const { return shards_; }
  const Namespace& ns() const { return ns_; }
  BlockKey key(size_t block, size_t shard = 0) const {
    return {ns_.id, digests_[block], shards_[shard]};
  }

 private:
  Chain(const Namespace& ns, std::vector<Digest> digests, std::vector<uint16_t> shards)
      : ns_(ns), digests_(std::move(digests)), shards_(std::move(shards)) {}

  Namespace ns_;
  std::vector<Digest> digests_;
  std::vector<uint16_t> shards_;
};

}  // namespace terrace
