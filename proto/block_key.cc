#include "proto/block_key.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <charconv>
#include <cstdlib>

#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {

absl::StatusOr<Digest> KeyedDigest(const NamespaceSecret& secret, ByteSpan engine_digest) {
  if (engine_digest.size() < kMinEngineDigestBytes ||
      engine_digest.size() > kMaxEngineDigestBytes) {
    return absl::InvalidArgumentError(
        fmt::format("engine digest has {} bytes; {} to {} are accepted", engine_digest.size(),
                    kMinEngineDigestBytes, kMaxEngineDigestBytes));
  }
  Digest digest;
  unsigned int length = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(engine_digest.data());
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), data, engine_digest.size(),
           digest.bytes.data(), &length) == nullptr) {
    std::abort();  // only without memory or without SHA-256 in the library
  }
  return digest;
}

Digest Sha256(ByteSpan data) {
  Digest digest;
  unsigned int length = 0;
  if (EVP_Digest(data.data(), data.size(), digest.bytes.data(), &length, EVP_sha256(), nullptr) !=
      1) {
    std::abort();
  }
  return digest;
}

std::string ToHex(ByteSpan bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::byte b : bytes) {
    text.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(b) & 15]);
  }
  return text;
}

absl::StatusOr<std::vector<uint8_t>> FromHex(std::string_view text) {
  if (text.size() % 2 != 0) return absl::InvalidArgumentError("hex text has an odd length");
  std::vector<uint8_t> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* begin = text.data() + 2 * i;
    auto [end, error] = std::from_chars(begin, begin + 2, bytes[i], 16);
    if (error != std::errc() || end != begin + 2) {
      return absl::InvalidArgumentError(
          fmt::format("'{}' at position {} is not hex", text.substr(2 * i, 2), 2 * i));
    }
  }
  return bytes;
}

std::string ToString(const BlockKey& key) {
  return fmt::format("{:016x}:{}:{}", key.ns.value,
                     ToHex(std::as_bytes(std::span(key.digest.bytes))), key.shard);
}

absl::StatusOr<BlockKey> ParseBlockKey(std::string_view text) {
  constexpr size_t kNamespaceHex = 16, kDigestHex = 64;
  constexpr size_t kShown = 100;  // more than a key has; a message stays short
  const auto malformed = [&](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not a key ({}): expected <16 hex>:<64 hex>:<shard>", text.substr(0, kShown), why));
  };
  if (text.size() < kNamespaceHex + kDigestHex + 3 || text[kNamespaceHex] != ':' ||
      text[kNamespaceHex + 1 + kDigestHex] != ':') {
    return malformed("shape");
  }
  BlockKey key;
  auto ns = FromHex(text.substr(0, kNamespaceHex));
  auto digest = FromHex(text.substr(kNamespaceHex + 1, kDigestHex));
  if (!ns.ok() || !digest.ok()) return malformed("hex");
  for (uint8_t b : *ns) key.ns.value = key.ns.value << 8 | b;
  std::copy(digest->begin(), digest->end(), key.digest.bytes.begin());
  std::string_view shard = text.substr(kNamespaceHex + kDigestHex + 2);
  auto [end, error] = std::from_chars(shard.data(), shard.data() + shard.size(), key.shard);
  if (error != std::errc() || end != shard.data() + shard.size()) return malformed("shard");
  return key;
}

std::vector<uint8_t> RandomBytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  if (RAND_bytes(bytes.data(), static_cast<int>(count)) != 1) std::abort();
  return bytes;
}

}  // namespace terrace
