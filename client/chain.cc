#include "client/chain.h"

#include <algorithm>

#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

absl::Status CheckShards(std::vector<uint16_t> shards) {
  if (shards.empty()) return absl::InvalidArgumentError("chain: the list of shards is empty");
  std::ranges::sort(shards);
  if (auto twice = std::ranges::adjacent_find(shards); twice != shards.end()) {
    return absl::InvalidArgumentError(fmt::format("chain: shard {} is listed twice", *twice));
  }
  return absl::OkStatus();
}

// SGLang's page hash: SHA-256 over the predecessor's digest, then each token as four
// little-endian bytes.
Digest TokenDigest(const Digest* previous, std::span<const uint32_t> tokens,
                   std::vector<std::byte>* scratch) {
  scratch->clear();
  if (previous != nullptr) {
    const ByteSpan bytes = std::as_bytes(std::span(previous->bytes));
    scratch->insert(scratch->end(), bytes.begin(), bytes.end());
  }
  const ByteSpan bytes = std::as_bytes(tokens);
  scratch->insert(scratch->end(), bytes.begin(), bytes.end());
  return Sha256(*scratch);
}

}  // namespace

absl::StatusOr<Chain> Chain::FromDigests(const Namespace& ns, std::span<const ByteSpan> digests,
                                         std::vector<uint16_t> shards) {
  TERRACE_RETURN_IF_ERROR(CheckShards(shards));
  std::vector<Digest> keyed;
  keyed.reserve(digests.size());
  for (ByteSpan digest : digests) {
    absl::StatusOr<Digest> one = KeyedDigest(ns.secret, digest);
    if (!one.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("chain: digest {}: {}", keyed.size(), std::string(one.status().message())));
    }
    keyed.push_back(*one);
  }
  return Chain(ns, std::move(keyed), std::move(shards));
}

absl::StatusOr<Chain> Chain::FromTokens(const Namespace& ns, std::span<const uint32_t> tokens,
                                        std::vector<uint16_t> shards) {
  TERRACE_RETURN_IF_ERROR(CheckShards(shards));
  if (ns.block_tokens == 0) {
    return absl::InvalidArgumentError("chain: the namespace's block_tokens is 0");
  }
  const size_t blocks = tokens.size() / ns.block_tokens;
  std::vector<Digest> keyed;
  keyed.reserve(blocks);
  std::vector<std::byte> scratch;
  Digest previous;
  for (size_t i = 0; i < blocks; ++i) {
    previous = TokenDigest(i == 0 ? nullptr : &previous,
                           tokens.subspan(i * ns.block_tokens, ns.block_tokens), &scratch);
    TERRACE_ASSIGN_OR_RETURN(Digest one,
                             KeyedDigest(ns.secret, std::as_bytes(std::span(previous.bytes))));
    keyed.push_back(one);
  }
  return Chain(ns, std::move(keyed), std::move(shards));
}

}  // namespace terrace
