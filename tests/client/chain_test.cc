#include "client/chain.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

Namespace TestNamespace(uint32_t block_tokens) {
  Namespace ns;
  ns.id.value = 3;
  ns.secret.fill(9);
  ns.block_tokens = block_tokens;
  return ns;
}

TEST(Chain, TokensGiveTheHashesOfSGLang) {
  const Namespace ns = TestNamespace(64);
  std::vector<uint32_t> tokens(130);
  std::iota(tokens.begin(), tokens.end(), 0);
  auto chain = Chain::FromTokens(ns, tokens);
  ASSERT_TRUE(chain.ok()) << chain.status();
  ASSERT_EQ(chain->blocks(), 2u);  // two tokens are no block
  const char* expected[] = {"fea7b32778ecbdd7adee1941e98c89cf96bbc762f5f1beb0be24e36a456fbbc5",
                            "1617a7384eff5e9135098c24794739af884859cdb17c1a61a834e8d6ac997351"};
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<uint8_t> digest = *FromHex(expected[i]);
    const BlockKey key = chain->key(i);
    EXPECT_EQ(key.digest, *KeyedDigest(ns.secret, std::as_bytes(std::span(digest))));
    EXPECT_EQ(key.ns.value, 3u);
    EXPECT_EQ(key.shard, 0);
  }
}

TEST(Chain, TokensAndDigestsAgree) {
  const Namespace ns = TestNamespace(4);
  const std::vector<uint32_t> tokens = {1, 2, 3, 4};
  const Digest digest = Sha256(std::as_bytes(std::span(tokens)));
  const ByteSpan digests[] = {std::as_bytes(std::span(digest.bytes))};
  auto from_tokens = Chain::FromTokens(ns, tokens);
  auto from_digests = Chain::FromDigests(ns, digests);
  ASSERT_TRUE(from_tokens.ok() && from_digests.ok());
  EXPECT_EQ(from_tokens->key(0), from_digests->key(0));
}

TEST(Chain, AnotherSecretGivesOtherKeys) {
  Namespace ns = TestNamespace(1);
  const uint32_t token = 1;
  auto one = Chain::FromTokens(ns, std::span(&token, 1));
  ns.secret[0] ^= 1;
  auto other = Chain::FromTokens(ns, std::span(&token, 1));
  EXPECT_NE(one->key(0).digest, other->key(0).digest);
}

TEST(Chain, ShardsShareDigests) {
  const uint32_t token = 1;
  auto chain = Chain::FromTokens(TestNamespace(1), std::span(&token, 1), {4, 7});
  ASSERT_TRUE(chain.ok());
  EXPECT_EQ(chain->key(0, 0).shard, 4);
  EXPECT_EQ(chain->key(0, 1).shard, 7);
  EXPECT_EQ(chain->key(0, 0).digest, chain->key(0, 1).digest);
}

TEST(Chain, NamesWhatIsWrong) {
  const std::string good(32, 'x');
  const std::string brief(15, 'x');
  const ByteSpan digests[] = {AsBytes(good), AsBytes(brief)};
  EXPECT_THAT(Chain::FromDigests(TestNamespace(1), digests).status().ToString(),
              HasSubstr("digest 1: engine digest has 15 bytes"));
  EXPECT_THAT(Chain::FromDigests(TestNamespace(1), {}, {}).status().ToString(),
              HasSubstr("list of shards is empty"));
  EXPECT_THAT(Chain::FromDigests(TestNamespace(1), {}, {2, 1, 2}).status().ToString(),
              HasSubstr("shard 2 is listed twice"));
  EXPECT_THAT(Chain::FromTokens(TestNamespace(0), {}).status().ToString(),
              HasSubstr("block_tokens is 0"));
}

}  // namespace
}  // namespace terrace
