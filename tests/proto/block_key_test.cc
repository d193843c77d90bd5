#include "proto/block_key.h"

#include <numeric>

#include "absl/hash/hash.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

BlockKey SampleKey() {
  BlockKey key{{0x0123456789abcdef}, {}, 7};
  std::iota(key.digest.bytes.begin(), key.digest.bytes.end(), uint8_t{0xf0});
  return key;
}

TEST(KeyedDigest, IsHmacSha256) {
  // RFC 4231 has no 32-byte key; this vector is from Python: hmac.new(bytes(range(32)),
  // b"terrace-vector-1", "sha256").
  NamespaceSecret secret;
  std::iota(secret.begin(), secret.end(), uint8_t{0});
  auto digest = KeyedDigest(secret, AsBytes("terrace-vector-1"));
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(ToHex(std::as_bytes(std::span(digest->bytes))),
            "93f4667ff8840754c5a3e159c5c3b8537ce968a26113520250160a02103d699f");
}

TEST(KeyedDigest, SecretsSeparateTenants) {
  const NamespaceSecret a{1}, b{2};
  EXPECT_NE(*KeyedDigest(a, AsBytes("0123456789abcdef")),
            *KeyedDigest(b, AsBytes("0123456789abcdef")));
}

TEST(KeyedDigest, RefusesOtherLengths) {
  for (size_t bytes : {0u, 15u, 65u, 4096u}) {
    const std::string text(bytes, 'x');
    EXPECT_EQ(KeyedDigest({}, AsBytes(text)).status().code(), absl::StatusCode::kInvalidArgument)
        << bytes;
  }
  for (size_t bytes : {16u, 20u, 32u, 64u}) {
    EXPECT_TRUE(KeyedDigest({}, AsBytes(std::string(bytes, 'x'))).ok()) << bytes;
  }
}

TEST(Sha256, KnownVector) {
  const Digest digest = Sha256(AsBytes("abc"));
  EXPECT_EQ(ToHex(std::as_bytes(std::span(digest.bytes))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(BlockKeyText, RoundTrips) {
  const BlockKey key = SampleKey();
  auto parsed = ParseBlockKey(ToString(key));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, key);
}

TEST(BlockKeyText, RefusesWhatIsNoKey) {
  const std::string good = ToString(SampleKey());
  for (std::string bad : {std::string(), std::string("x"), good.substr(1), good + "x",
                          good.substr(0, good.size() - 1), "g" + good.substr(1), good + "99999"}) {
    EXPECT_EQ(ParseBlockKey(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(BlockKey, HashFollowsEquality) {
  BlockKey a = SampleKey(), b = a;
  EXPECT_EQ(absl::HashOf(a), absl::HashOf(b));
  b.shard = 8;
  EXPECT_NE(a, b);
  EXPECT_NE(absl::HashOf(a), absl::HashOf(b));
}

TEST(RandomBytes, AreOfTheLengthAskedForAndDiffer) {
  EXPECT_EQ(RandomBytes(32).size(), 32u);
  EXPECT_NE(RandomBytes(32), RandomBytes(32));
}

}  // namespace
}  // namespace terrace
