// The client against a node that behaves: what each call promises.
#include "client/client.h"

#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "client/client_parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/clock.h"
#include "tests/client/fake_node.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

class ClientTest : public ::testing::Test {
 protected:
  BlockKey Key(uint32_t n, uint16_t shard = 0) const {
    BlockKey key{node_.ns().id, Sha256(AsBytes(std::to_string(n))), shard};
    return key;
  }
  std::vector<std::byte> Bytes(const BlockKey& key) const {
    return PatternBytes(key, node_.ns().shape.length);
  }
  // A chain whose block i is stored where `stored` says so.
  Chain MakeChain(const std::vector<bool>& stored, std::vector<uint16_t> shards = {0}) {
    std::vector<Digest> engine;
    for (size_t i = 0; i < stored.size(); ++i) engine.push_back(Sha256(AsBytes(std::to_string(i))));
    std::vector<ByteSpan> digests;
    for (const Digest& digest : engine) digests.push_back(std::as_bytes(std::span(digest.bytes)));
    Chain chain = *Chain::FromDigests(node_.ns(), digests, std::move(shards));
    for (size_t i = 0; i < stored.size(); ++i) {
      for (size_t s = 0; stored[i] && s < chain.shards().size(); ++s) {
        node_.Store(chain.key(i, s), Bytes(chain.key(i, s)));
      }
    }
    return chain;
  }

  FakeNode node_;
  std::unique_ptr<Client> client_ = node_.Connect();
};

TEST_F(ClientTest, PutThenGetGivesTheBytesBack) {
  const BlockKey key = Key(1);
  const std::vector<std::byte> bytes = Bytes(key);
  PutRequest put{key, {bytes}, {}};
  put.metadata.depth = 5;
  put.metadata.opaque = "mine";
  put.metadata.traffic_class = TrafficClass::kAgent;
  Operation stored = client_->Put(node_.ns(), {put});
  stored.Wait();
  ASSERT_EQ(stored.results().size(), 1u);
  EXPECT_EQ(stored.results()[0].outcome, Outcome::kOk);
  EXPECT_FALSE(stored.results()[0].existed);
  EXPECT_TRUE(node_.Holds(key));

  std::vector<std::byte> landed(bytes.size());
  Operation read = client_->Get(node_.ns(), {{key, {MutableByteSpan(landed)}}});
  read.Wait();
  const BlockResult& result = read.results()[0];
  ASSERT_EQ(result.outcome, Outcome::kOk) << result.message;
  EXPECT_EQ(landed, bytes);
  EXPECT_EQ(result.metadata.depth, 5u);
  EXPECT_EQ(result.metadata.opaque, "mine");
  EXPECT_EQ(result.metadata.traffic_class, TrafficClass::kAgent);
  EXPECT_EQ(read.succeeded(), 1u);
}

TEST_F(ClientTest, PutOfWhatIsThereTransfersNothing) {
  const BlockKey key = Key(1);
  const std::vector<std::byte> bytes = Bytes(key);
  node_.Store(key, bytes);
  node_.Store(Key(2), Bytes(Key(2)));
  Operation put = client_->Put(node_.ns(), {{key, {bytes}, {}}, {Key(2), {bytes}, {}}});
  put.Wait();
  for (const BlockResult& result : put.results()) {
    EXPECT_EQ(result.outcome, Outcome::kOk);
    EXPECT_TRUE(result.existed);
  }
  EXPECT_EQ(node_.values_received(), 0u);
  // One alone is sent without asking, and changes nothing.
  Operation one = client_->Put(node_.ns(), {{key, {bytes}, {}}});
  one.Wait();
  EXPECT_EQ(one.results()[0].outcome, Outcome::kOk);
  EXPECT_TRUE(one.results()[0].existed);
  EXPECT_EQ(node_.values_received(), 0u);
}

TEST_F(ClientTest, GetScattersAndMissesOneByOne) {
  node_.Store(Key(1), Bytes(Key(1)));
  const size_t length = node_.ns().shape.length;
  std::vector<std::byte> head(1000), tail(length - 1000), none(length);
  Operation get =
      client_->Get(node_.ns(), {{Key(2), {MutableByteSpan(none)}},
                                {Key(1), {MutableByteSpan(head), MutableByteSpan(tail)}}});
  get.Wait();
  EXPECT_EQ(get.results()[0].outcome, Outcome::kMiss);
  EXPECT_EQ(get.results()[1].outcome, Outcome::kOk);
  EXPECT_EQ(get.results()[1].generation, 7u);
  head.insert(head.end(), tail.begin(), tail.end());
  EXPECT_EQ(head, Bytes(Key(1)));
}

TEST_F(ClientTest, RangeOfSegmentsIsVerifiedByItself) {
  node_.Store(Key(1), Bytes(Key(1)));
  const uint32_t segment = node_.ns().shape.segment_bytes();
  std::vector<std::byte> landed(2 * segment);
  Operation get = client_->Get(node_.ns(), {{Key(1), {MutableByteSpan(landed)}, 1, 2}});
  get.Wait();
  ASSERT_EQ(get.results()[0].outcome, Outcome::kOk) << get.results()[0].message;
  const std::vector<std::byte> whole = Bytes(Key(1));
  EXPECT_TRUE(std::equal(landed.begin(), landed.end(), whole.begin() + segment));
}

TEST_F(ClientTest, WrongRequestsEndAloneAndSayWhy) {
  node_.Store(Key(1), Bytes(Key(1)));
  const size_t length = node_.ns().shape.length;
  std::vector<std::byte> good(length), small(10);
  BlockKey foreign = Key(1);
  foreign.ns.value = 77;
  Operation get = client_->Get(node_.ns(), {{Key(1), {MutableByteSpan(small)}},
                                            {foreign, {MutableByteSpan(good)}},
                                            {Key(1), {MutableByteSpan(good)}, 3, 2},
                                            {Key(1), {MutableByteSpan(good)}}});
  get.Wait();
  EXPECT_EQ(get.results()[0].outcome, Outcome::kInvalid);
  EXPECT_THAT(get.results()[0].message, HasSubstr("destination has 10 bytes"));
  EXPECT_THAT(get.results()[1].message, HasSubstr("another namespace"));
  EXPECT_THAT(get.results()[2].message, HasSubstr("segments 3 to 4 of a block with 4"));
  EXPECT_EQ(get.results()[3].outcome, Outcome::kOk);
  Operation put = client_->Put(node_.ns(), {{Key(9), {ByteSpan(small)}, {}}});
  put.Wait();
  EXPECT_THAT(put.results()[0].message, HasSubstr("source has 10 bytes"));
}

TEST_F(ClientTest, LargeBatchesPassInBoundedFrames) {
  SessionLimits limits;
  limits.max_bytes_in_flight = 1 << 20;  // sixteen blocks
  limits.max_reservations = 8;
  node_.set_limits(limits);
  client_ = node_.Connect();
  constexpr uint32_t kBlocks = 100;
  std::vector<std::vector<std::byte>> blocks;
  std::vector<PutRequest> puts;
  for (uint32_t i = 0; i < kBlocks; ++i) blocks.push_back(Bytes(Key(i)));
  for (uint32_t i = 0; i < kBlocks; ++i) puts.push_back({Key(i), {blocks[i]}, {}});
  Operation put = client_->Put(node_.ns(), std::move(puts), {.timeout = absl::Seconds(10)});
  put.Wait();
  EXPECT_EQ(put.succeeded(), kBlocks);
  std::vector<std::vector<std::byte>> landed(kBlocks, std::vector<std::byte>(blocks[0].size()));
  std::vector<GetRequest> gets;
  for (uint32_t i = 0; i < kBlocks; ++i) gets.push_back({Key(i), {MutableByteSpan(landed[i])}});
  Operation get = client_->Get(node_.ns(), std::move(gets), {.timeout = absl::Seconds(10)});
  get.Wait();
  EXPECT_EQ(get.succeeded(), kBlocks);
  EXPECT_EQ(landed, blocks);
  EXPECT_EQ(client_->Stats().get_bytes, kBlocks * uint64_t{node_.ns().shape.length});
}

TEST_F(ClientTest, MatchIsTheLeadingRun) {
  const Chain chain = MakeChain({true, true, false, true});
  auto match = client_->Match(chain);
  ASSERT_TRUE(match.ok());
  EXPECT_EQ(match->blocks, 2u);
  EXPECT_EQ(match->tiers, (std::vector<Tier>{Tier::kHost, Tier::kHost}));
  EXPECT_FALSE(match->ask_again);
  EXPECT_FALSE(match->lease);
}

TEST_F(ClientTest, MatchGoesOnOverFrames) {
  std::vector<bool> stored(kMaxKeysPerFrame * 2 + 10, true);
  stored[kMaxKeysPerFrame + 7] = false;
  auto match = client_->Match(MakeChain(stored));
  EXPECT_EQ(match->blocks, kMaxKeysPerFrame + 7);
}

TEST_F(ClientTest, MatchIsTheShortestOverShards) {
  Chain chain = MakeChain({true, true, true, false}, {0, 1});
  auto all = client_->Match(chain);
  EXPECT_EQ(all->blocks, 3u);
  EXPECT_EQ(all->tiers[0], Tier::kSsd);  // the slowest
  Chain three = *Chain::FromTokens(node_.ns(), std::vector<uint32_t>(16), {0, 1});
  node_.Store(three.key(0, 1), Bytes(three.key(0, 1)));
  EXPECT_EQ(client_->Match(three)->blocks, 0u);
}

TEST_F(ClientTest, MatchRefusesLongChainsAndTakesEmptyOnes) {
  EXPECT_EQ(client_->Match(MakeChain({}))->blocks, 0u);
  auto long_chain = Chain::FromTokens(node_.ns(), std::vector<uint32_t>(16 * 16385));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Match(*long_chain).status()));
}

TEST_F(ClientTest, LeaseIsReleasedOnce) {
  const Chain chain = MakeChain({true});
  MatchOptions options;
  options.lease = absl::Seconds(60);
  {
    auto match = client_->Match(chain, options);
    ASSERT_TRUE(match->lease);
    EXPECT_EQ(match->lease.duration(), absl::Seconds(10));  // capped by the node
    match->lease.Release();
    match->lease.Release();
  }
  ASSERT_TRUE(client_->Match(chain).ok());  // frames arrive in order
  EXPECT_EQ(node_.releases(), 1u);
  auto match = client_->Match(chain, options);
  client_.reset();
  match->lease.Release();  // outlives the client
}

TEST_F(ClientTest, ALeaseCoversAllOfAMatchOrIsNone) {
  const Chain chain = MakeChain({true, true}, {0, 2});
  node_.set_leases_left(1);  // each shard asks for its own
  auto match = client_->Match(chain, {.lease = absl::Seconds(5)});
  EXPECT_EQ(match->blocks, 2u);
  EXPECT_FALSE(match->lease);
  ASSERT_TRUE(client_->Match(chain).ok());  // frames arrive in order
  EXPECT_EQ(node_.releases(), 1u);
}

TEST_F(ClientTest, APutOfOneBlockAsksFirstAfterOneThatWasNotWanted) {
  const auto put_one = [&](uint32_t n) {
    const std::vector<std::byte> bytes = Bytes(Key(n));
    Operation put = client_->Put(node_.ns(), {{Key(n), {bytes}, {}}}, {absl::Seconds(30)});
    put.Wait();
    EXPECT_EQ(put.results()[0].outcome, Outcome::kOk) << put.results()[0].message;
  };
  put_one(1);
  EXPECT_EQ(node_.reserves(), 0u);
  put_one(1);  // the node has it
  for (uint32_t n = 2; n < 17; ++n) put_one(n);
  EXPECT_EQ(node_.reserves(), 15u);
  put_one(17);
  EXPECT_EQ(node_.reserves(), 15u);
}

// As over RDMA: the envelope goes in the frame.
TEST_F(ClientTest, PutsOverATransportThatDoesNotStream) {
  client_ = node_.Connect({}, {.streams = false});
  std::vector<std::vector<std::byte>> blocks;
  for (uint32_t n = 1; n <= 3; ++n) blocks.push_back(Bytes(Key(n)));
  Operation one = client_->Put(node_.ns(), {{Key(1), {blocks[0]}, {}}});
  Operation two = client_->Put(node_.ns(), {{Key(2), {blocks[1]}, {}}, {Key(3), {blocks[2]}, {}}});
  one.Wait();
  two.Wait();
  EXPECT_EQ(one.succeeded() + two.succeeded(), 3u);
  EXPECT_EQ(node_.envelopes_in_frames(), 3u);
  for (uint32_t n = 1; n <= 3; ++n) {
    std::vector<std::byte> landed(blocks[0].size());
    Operation get = client_->Get(node_.ns(), {{Key(n), {MutableByteSpan(landed)}}});
    get.Wait();
    EXPECT_EQ(get.succeeded(), 1u);
    EXPECT_EQ(landed, blocks[n - 1]);
  }
}

TEST_F(ClientTest, RefusedOperationsAreNotPolled) {
  ClientOptions options;
  options.max_operations = 1;
  client_ = node_.Connect(options);
  node_.Hold();
  std::vector<std::byte> landed(node_.ns().shape.length);
  Operation first = client_->Get(node_.ns(), {{Key(1), {MutableByteSpan(landed)}}},
                                 {.timeout = absl::Seconds(30), .notify = true});
  Operation refused = client_->Get(node_.ns(), {{Key(2), {MutableByteSpan(landed)}}},
                                   {.timeout = absl::Seconds(30), .notify = true});
  ASSERT_TRUE(refused.done());
  EXPECT_EQ(refused.results()[0].outcome, Outcome::kOverloaded);
  node_.AwaitHeld(1);
  node_.Unhold();
  first.Wait();
  std::vector<Operation> done;
  while (done.empty()) client_->Poll(&done, 10);
  EXPECT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id(), first.id());
}

// Blocks that wait for room do not hold up a question about other blocks.
TEST_F(ClientTest, AMatchOvertakesBlocksThatWaitForRoom) {
  SessionLimits limits;
  limits.max_bytes_in_flight = node_.ns().shape.length;
  node_.set_limits(limits);
  client_ = node_.Connect();
  const Chain chain = MakeChain({true, true});
  node_.Hold();
  std::vector<std::byte> landed(node_.ns().shape.length);
  std::vector<Operation> gets;
  for (int i = 0; i < 3; ++i) {  // room for the first
    gets.push_back(client_->Get(node_.ns(), {{Key(1), {MutableByteSpan(landed)}}},
                                {.timeout = absl::Seconds(30)}));
  }
  node_.AwaitHeld(1);
  std::thread releaser([this] {
    node_.AwaitHeld(2);  // the match
    node_.Unhold();
  });
  auto match = client_->Match(chain, {.timeout = absl::Seconds(30)});
  releaser.join();
  EXPECT_EQ(match->blocks, 2u);
  for (const Operation& get : gets) get.Wait();
}

TEST_F(ClientTest, PrefetchBringsTheRunAndNothingBehindIt) {
  const Chain chain = MakeChain({true, true, false, true});
  const size_t length = node_.ns().shape.length;
  std::vector<std::vector<std::byte>> slots(5, std::vector<std::byte>(length));
  std::vector<Pieces> pieces;
  for (auto& slot : slots) pieces.push_back({MutableByteSpan(slot)});
  Operation prefetch = client_->Prefetch(chain, 0, 0, std::move(pieces));
  prefetch.Wait();
  EXPECT_EQ(prefetch.succeeded(), 2u);
  EXPECT_EQ(slots[1], Bytes(chain.key(1)));
  EXPECT_EQ(prefetch.results()[0].tier, Tier::kHost);
  EXPECT_EQ(prefetch.results()[2].outcome, Outcome::kMiss);
  EXPECT_EQ(prefetch.results()[3].outcome, Outcome::kMiss);
  EXPECT_EQ(slots[3], std::vector<std::byte>(length));  // untried
  EXPECT_EQ(prefetch.results()[4].outcome, Outcome::kInvalid);
  std::vector<std::byte> one(length);
  Operation tail = client_->Prefetch(chain, 0, 3, {{MutableByteSpan(one)}});
  tail.Wait();
  EXPECT_EQ(tail.succeeded(), 1u);
}

TEST_F(ClientTest, CallbackComesWithTheResults) {
  node_.Store(Key(1), Bytes(Key(1)));
  std::vector<std::byte> landed(node_.ns().shape.length);
  std::atomic<int> called{0};
  OperationOptions options;
  options.callback = [&](const Operation& operation) {
    if (operation.done() && operation.succeeded() == 1) ++called;
  };
  client_->Get(node_.ns(), {{Key(1), {MutableByteSpan(landed)}}}, options).Wait();
  client_.reset();  // the callback has come before
  EXPECT_EQ(called, 1);
}

TEST_F(ClientTest, CompletionsAreReadableUntilPolled) {
  node_.Store(Key(1), Bytes(Key(1)));
  std::vector<std::byte> landed(node_.ns().shape.length);
  pollfd waiting{client_->completion_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, 0), 0);
  OperationOptions options;
  options.notify = true;
  Operation first = client_->Get(node_.ns(), {{Key(1), {MutableByteSpan(landed)}}}, options);
  first.Wait();
  Operation second = client_->Get(node_.ns(), {{Key(2), {MutableByteSpan(landed)}}}, options);
  second.Wait();
  std::vector<Operation> done;
  while (done.size() < 2) {
    ASSERT_EQ(poll(&waiting, 1, 10'000), 1);
    client_->Poll(&done, 1);
  }
  EXPECT_EQ(done[0].id(), first.id());
  EXPECT_EQ(done[1].id(), second.id());
  EXPECT_EQ(poll(&waiting, 1, 0), 0);
  EXPECT_EQ(client_->Poll(&done, 1), 0u);
  EXPECT_EQ(client_->Stats().operations_in_flight, 0u);
}

TEST_F(ClientTest, WithoutDescriptorsThereIsAnErrorInsteadOfAClient) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const auto client = ConnectWith({}, {});
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(absl::IsResourceExhausted(client.status())) << client.status();
}

TEST_F(ClientTest, TooManyOperationsAreOverloaded) {
  ClientOptions options;
  options.max_operations = 2;
  client_ = node_.Connect(options);
  node_.Hold();
  std::vector<std::byte> landed(node_.ns().shape.length);
  std::vector<Operation> operations;
  for (int i = 0; i < 3; ++i) {
    operations.push_back(client_->Get(node_.ns(), {{Key(1), {MutableByteSpan(landed)}}}));
  }
  operations[2].Wait();
  EXPECT_EQ(operations[2].results()[0].outcome, Outcome::kOverloaded);
  node_.AwaitHeld(2);
  node_.Unhold();
  operations[0].Wait();
  EXPECT_EQ(operations[0].results()[0].outcome, Outcome::kMiss);
}

TEST_F(ClientTest, ManyThreadsShareAClient) {
  constexpr int kThreads = 4, kRounds = 25;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::byte> landed(node_.ns().shape.length);
      for (int round = 0; round < kRounds; ++round) {
        const BlockKey key = Key(t * kRounds + round);
        const std::vector<std::byte> bytes = Bytes(key);
        Operation put = client_->Put(node_.ns(), {{key, {bytes}, {}}}, {absl::Seconds(30)});
        put.Wait();
        Operation get =
            client_->Get(node_.ns(), {{key, {MutableByteSpan(landed)}}}, {absl::Seconds(30)});
        get.Wait();
        if (put.succeeded() != 1 || get.succeeded() != 1 || landed != bytes) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ClientTest, EndedNamespacesAreToldByTheEpoch) {
  EXPECT_EQ(client_->Stats().namespace_epoch, 0u);
  node_.Restart(/*forget=*/true);
  const absl::Duration until = Clock::Real()->Now() + absl::Seconds(20);
  while (client_->Stats().namespace_epoch == 0 && Clock::Real()->Now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(client_->Stats().namespace_epoch, 1u);
}

}  // namespace
}  // namespace terrace
