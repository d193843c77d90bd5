// The peer must be measured doing the real thing: values come back whole, from a real server.
#include "tests/bench/redis.h"

#include "gtest/gtest.h"

namespace terrace::bench {
namespace {

class Redis : public ::testing::TestWithParam<bool> {};

TEST_P(Redis, ValuesComeBackIntoTheirDestinations) {
  auto server = RedisServer::Start();
  if (!server.ok()) GTEST_SKIP() << server.status();
  auto client = GetParam() ? RedisClient::ConnectLocal((*server)->port())
                           : RedisClient::Connect((*server)->port());
  ASSERT_TRUE(client.ok()) << client.status();
  constexpr size_t kBlocks = 20, kBytes = 300'000;
  std::vector<std::vector<std::byte>> values(kBlocks), got(kBlocks);
  std::vector<std::string> names;
  std::vector<ByteSpan> sources;
  std::vector<MutableByteSpan> destinations;
  for (size_t i = 0; i < kBlocks; ++i) {
    names.push_back("block:" + std::to_string(i));
    values[i].assign(kBytes, std::byte(i + 1));
    got[i].resize(kBytes);
    sources.emplace_back(values[i]);
    destinations.emplace_back(got[i]);
  }
  ASSERT_TRUE((*client)->Set(names, sources, 8).ok());
  ASSERT_TRUE((*client)->Get(names, destinations, 8).ok());
  EXPECT_EQ(got, values);
  EXPECT_FALSE((*client)->Get({"absent"}, {destinations[0]}, 1).ok());
}

INSTANTIATE_TEST_SUITE_P(Sockets, Redis, ::testing::Bool(),
                         [](const auto& socket) { return socket.param ? "Unix" : "Tcp"; });

}  // namespace
}  // namespace terrace::bench
