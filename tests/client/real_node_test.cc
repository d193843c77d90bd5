// The client against terraced, over gRPC and TCP.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/time/clock.h"
#include "client/client.h"
#include "client/load/payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/clock.h"
#include "tests/cache_node/certificates.h"
#include "tests/client/node_process.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlockBytes = 256 << 10;
constexpr absl::Duration kSlack = absl::Seconds(1);  // tests share their machine

// Blocks are read from the node's memory, or their bytes travel.
class RealNodeTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ClientOptions options;
    options.address = node_.address();
    options.transport = "tcp";
    options.local = GetParam();
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    EXPECT_EQ(client_->Stats().local, GetParam()) << client_->Stats().local_reason;
    ns_ = Open();
  }

  Namespace Open() {
    NamespaceDefinition definition;
    definition.name = "test";
    definition.layout.model = "test";
    definition.layout.block_bytes = kBlockBytes;
    definition.layout.segments = 8;
    definition.layout.block_tokens = 16;
    auto ns = client_->OpenNamespace(definition);
    EXPECT_TRUE(ns.ok()) << ns.status();
    return ns.ok() ? *ns : Namespace();
  }
  Chain MakeChain(size_t blocks, uint32_t salt = 0) {
    std::vector<uint32_t> tokens(blocks * 16, salt);
    return *Chain::FromTokens(ns_, tokens);
  }
  Operation PutAll(const Chain& chain) {
    bytes_.assign(chain.blocks(), std::vector<std::byte>(kBlockBytes));
    std::vector<PutRequest> puts;
    for (size_t i = 0; i < chain.blocks(); ++i) {
      Payload(chain.key(i)).Fill(bytes_[i]);
      puts.push_back({chain.key(i), {ByteSpan(bytes_[i])}, {}});
    }
    Operation put = client_->Put(ns_, std::move(puts), {.timeout = absl::Seconds(10)});
    put.Wait();
    return put;
  }
  Operation GetAll(const Chain& chain, absl::Duration timeout = absl::Seconds(10)) {
    landed_.assign(chain.blocks(), std::vector<std::byte>(kBlockBytes));
    std::vector<GetRequest> gets;
    for (size_t i = 0; i < chain.blocks(); ++i) {
      gets.push_back({chain.key(i), {MutableByteSpan(landed_[i])}});
    }
    Operation get = client_->Get(ns_, std::move(gets), {.timeout = timeout});
    get.Wait();
    return get;
  }

  // Drives out what nobody holds: the node has 64 MiB.
  void Churn(uint32_t salt) {
    const std::vector<std::byte> bytes(kBlockBytes);
    const Chain chain = MakeChain(300, salt);
    for (size_t i = 0; i < chain.blocks(); ++i) {
      client_->Put(ns_, {{chain.key(i), {ByteSpan(bytes)}, {}}}).Wait();
    }
  }

  NodeProcess node_;
  std::unique_ptr<Client> client_;
  Namespace ns_;
  std::vector<std::vector<std::byte>> bytes_, landed_;
};

INSTANTIATE_TEST_SUITE_P(Paths, RealNodeTest, ::testing::Bool(),
                         [](const auto& path) { return path.param ? "Local" : "Remote"; });

TEST_P(RealNodeTest, WhatWasPutIsMatchedAndRead) {
  const Chain chain = MakeChain(64);
  EXPECT_EQ(client_->Match(chain)->blocks, 0u);
  Operation put = PutAll(chain);
  EXPECT_EQ(put.succeeded(), 64u);
  EXPECT_FALSE(put.results()[0].existed);
  EXPECT_TRUE(PutAll(chain).results()[63].existed);
  MatchOptions options;
  options.lease = absl::Seconds(5);
  auto match = client_->Match(chain, options);
  EXPECT_EQ(match->blocks, 64u);
  EXPECT_EQ(match->tiers[0], Tier::kHost);
  EXPECT_TRUE(match->lease);
  EXPECT_EQ(GetAll(chain).succeeded(), 64u);
  EXPECT_EQ(landed_, bytes_);
  EXPECT_THAT(client_->Stats().transport, HasSubstr("tcp"));
}

TEST_P(RealNodeTest, BlocksThatArePutOneByOne) {
  const Chain chain = MakeChain(8);
  bytes_.assign(chain.blocks(), std::vector<std::byte>(kBlockBytes));
  for (size_t i = 0; i < chain.blocks(); ++i) Payload(chain.key(i)).Fill(bytes_[i]);
  for (int round = 0; round < 2; ++round) {
    std::vector<Operation> puts;
    for (size_t i = 0; i < 8; ++i) {
      puts.push_back(client_->Put(ns_, {{chain.key(i), {ByteSpan(bytes_[i])}, {}}},
                                  {.timeout = absl::Seconds(10)}));
    }
    for (const Operation& put : puts) {
      put.Wait();
      EXPECT_EQ(put.results()[0].outcome, Outcome::kOk) << put.results()[0].message;
      EXPECT_EQ(put.results()[0].existed, round == 1);
    }
  }
  EXPECT_EQ(GetAll(chain).succeeded(), 8u);
  EXPECT_EQ(landed_, bytes_);
}

TEST_P(RealNodeTest, ANodeWithoutAnSsdTierPromisesNothing) {
  const Chain chain = MakeChain(2);
  ASSERT_EQ(PutAll(chain).succeeded(), 2);
  BlockKey foreign = chain.key(0);
  foreign.ns.value += 1;
  Operation persist = client_->Persist(ns_, {chain.key(0), MakeChain(3, 9).key(2), foreign},
                                       {.timeout = absl::Seconds(10)});
  persist.Wait();
  EXPECT_EQ(persist.results()[0].outcome, Outcome::kNotDurable);
  EXPECT_EQ(persist.results()[1].outcome, Outcome::kMiss);
  EXPECT_EQ(persist.results()[2].outcome, Outcome::kInvalid);
}

TEST_P(RealNodeTest, RangesAndPrefetch) {
  const Chain chain = MakeChain(8);
  PutAll(chain);
  const uint32_t segment = kBlockBytes / 8;
  std::vector<std::byte> part(3 * segment);
  Operation range = client_->Get(ns_, {{chain.key(2), {MutableByteSpan(part)}, 4, 3}});
  range.Wait();
  ASSERT_EQ(range.succeeded(), 1u) << range.results()[0].message;
  EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes_[2].begin() + 4 * segment));

  std::vector<std::vector<std::byte>> slots(8, std::vector<std::byte>(kBlockBytes));
  std::vector<Pieces> pieces;
  for (auto& slot : slots) pieces.push_back({MutableByteSpan(slot)});
  Operation prefetch = client_->Prefetch(chain, 0, 0, std::move(pieces));
  prefetch.Wait();
  EXPECT_EQ(prefetch.succeeded(), 8u);
  EXPECT_EQ(slots, bytes_);
}

TEST_P(RealNodeTest, ViewsShowTheBlocksThatAreThere) {
  const Chain chain = MakeChain(20);
  PutAll(chain);
  std::vector<BlockKey> keys = {MakeChain(1, /*salt=*/9).key(0)};  // not there
  for (size_t i = 0; i < chain.blocks(); ++i) keys.push_back(chain.key(i));
  std::vector<BlockView> views = client_->View(ns_, keys, {.lease = absl::Seconds(30)});
  ASSERT_EQ(views.size(), 21u);
  EXPECT_FALSE(views[0]);
  EXPECT_FALSE(views[0].intact());
  for (size_t i = 1; i < views.size(); ++i) {
    ASSERT_TRUE(views[i]);
    EXPECT_EQ(views[i].in_place(), GetParam());
    EXPECT_EQ(views[i].segments(), 8u);
    EXPECT_TRUE(std::ranges::equal(views[i].bytes(), bytes_[i - 1]));
    EXPECT_EQ(views[i].segment(7).data(), views[i].bytes().data() + 7 * kBlockBytes / 8);
  }
  // Under its lease a block stays, whatever else comes; and after the node, and the client.
  BlockView kept = std::move(views[3]);
  views.clear();
  Churn(/*salt=*/1);
  EXPECT_TRUE(kept.intact());
  node_.Signal(SIGKILL);
  client_.reset();
  EXPECT_TRUE(kept.intact());
  EXPECT_TRUE(std::ranges::equal(kept.bytes(), bytes_[2]));
}

TEST_P(RealNodeTest, AViewKnowsThatItsBlockHasLeft) {
  const Chain chain = MakeChain(4);
  PutAll(chain);
  std::vector<BlockView> views =
      client_->View(ns_, {{chain.key(0), chain.key(1)}}, {.lease = absl::Milliseconds(1)});
  ASSERT_TRUE(views[0] && views[1]);
  Churn(/*salt=*/1);
  // The node looks for leases that are over once a second.
  const absl::Duration begin = Clock::Real()->Now();
  for (uint32_t salt = 2; GetParam() && views[0].intact(); ++salt) {
    ASSERT_LT(Clock::Real()->Now() - begin, absl::Seconds(20));
    Churn(salt);
  }
  EXPECT_EQ(views[0].intact(), !GetParam());  // a copy stays what it is
  std::vector<std::byte> seen(views[1].bytes().begin(), views[1].bytes().end());
  EXPECT_TRUE(!views[1].intact() || seen == bytes_[1]);
}

TEST_P(RealNodeTest, DefinitionThatDiffersIsRefused) {
  NamespaceDefinition other;
  other.name = "test";
  other.layout.model = "test";
  other.layout.block_tokens = 16;
  other.layout.block_bytes = kBlockBytes * 2;
  other.layout.segments = 8;
  const absl::Status status = client_->OpenNamespace(other).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("block_bytes"));
  other.name = "missing";
  other.create = false;
  EXPECT_TRUE(absl::IsNotFound(client_->OpenNamespace(other).status()));
}

TEST_P(RealNodeTest, FrozenNodeEndsEveryCallByItsDeadline) {
  const Chain chain = MakeChain(32);
  PutAll(chain);
  node_.Signal(SIGSTOP);
  const absl::Duration begin = Clock::Real()->Now();
  Operation get = GetAll(chain, absl::Milliseconds(200));
  EXPECT_LE(Clock::Real()->Now() - begin, absl::Milliseconds(350) + kSlack);
  EXPECT_EQ(get.succeeded(), 0u);
  EXPECT_TRUE(client_->Match(chain)->ask_again);
  // The silence is noticed, and from then on calls end at once.
  while (client_->Stats().connected && Clock::Real()->Now() - begin < absl::Seconds(20)) {
    EXPECT_EQ(client_->Match(chain, {.timeout = absl::Milliseconds(20)})->blocks, 0u);
  }
  EXPECT_FALSE(client_->Stats().connected);
  EXPECT_EQ(GetAll(chain).results()[0].outcome, Outcome::kMiss);
  node_.Signal(SIGCONT);
  while (!client_->Stats().connected && Clock::Real()->Now() - begin < absl::Seconds(40)) {
    std::this_thread::yield();
  }
  EXPECT_EQ(GetAll(chain).succeeded(), 32u);
  EXPECT_EQ(landed_, bytes_);
}

TEST_P(RealNodeTest, KilledNodeIsAMissAndComesBack) {
  const Chain chain = MakeChain(32);
  PutAll(chain);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    std::vector<std::byte> landed(kBlockBytes);
    while (!stop) {
      Operation get = client_->Get(ns_, {{chain.key(0), {MutableByteSpan(landed)}}});
      get.Wait();
      const Outcome outcome = get.results()[0].outcome;
      EXPECT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kMiss ||
                  outcome == Outcome::kRefused || outcome == Outcome::kTimeout)
          << ToString(outcome);
      EXPECT_TRUE(outcome != Outcome::kOk || landed == bytes_[0]);
    }
  });
  node_.Restart();
  const absl::Duration begin = Clock::Real()->Now();
  while (client_->Stats().reconnects == 0 && Clock::Real()->Now() - begin < absl::Seconds(40)) {
    std::this_thread::yield();
  }
  stop = true;
  reader.join();
  ASSERT_GE(client_->Stats().reconnects, 1u);
  EXPECT_EQ(client_->Stats().namespace_epoch, 1u);  // a host-only node forgets its secrets
  EXPECT_EQ(GetAll(chain).results()[0].outcome, Outcome::kRefused);
  ns_ = Open();
  const Chain again = MakeChain(32);
  EXPECT_EQ(PutAll(again).succeeded(), 32u);
  EXPECT_EQ(GetAll(again).succeeded(), 32u);
}

TEST_P(RealNodeTest, IdleClientUsesNoProcessor) {
  const auto used = [] {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return absl::DurationFromTimespec(now);
  };
  const absl::Duration before = used();
  absl::SleepFor(absl::Seconds(2));
  EXPECT_LT(used() - before, absl::Milliseconds(50));
}

TEST(RealNode, MutualTlsAndTokensOpenTheDoor) {
  const CertificateFiles files = MakeCertificates(testing::TempDir());
  const std::string credentials = testing::TempDir() + "credentials";
  const std::string token = testing::TempDir() + "token";
  std::ofstream(credentials) << "acme worker 0123456789abcdef0123456789abcdef\n";
  std::ofstream(token) << "0123456789abcdef0123456789abcdef\n";
  std::filesystem::permissions(credentials, std::filesystem::perms::owner_read);
  NodeProcess node({"--tls-cert=" + files.server_certificate, "--tls-key=" + files.server_key,
                    "--tls-ca=" + files.ca, "--credentials=" + credentials});
  ClientOptions options;
  options.address = node.address();
  options.ca_file = files.ca;
  options.cert_file = files.client_certificate;
  options.key_file = files.client_key;
  const absl::Status without = Client::Connect(options).status();
  EXPECT_TRUE(absl::IsUnauthenticated(without)) << without;
  options.token_file = token;
  const auto client = Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  options.cert_file.clear();
  EXPECT_THAT(Client::Connect(options).status().ToString(), HasSubstr("its key go together"));
  options.key_file.clear();
  EXPECT_TRUE(absl::IsUnavailable(Client::Connect(options).status()));
}

TEST(RealNode, RdmaAndTcpDoNotMix) {
  setenv("UCX_TLS", "tcp", /*overwrite=*/1);  // rdma's ways without its devices
  NodeProcess node({"--transport=rdma"});
  ClientOptions options;
  options.address = node.address();
  options.transport = "tcp";
  const absl::Status refused = Client::Connect(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.ToString(), HasSubstr("travels by rdma"));
  options.transport = "rdma";
  const auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_THAT((*client)->Stats().transport, HasSubstr("rdma"));
  NamespaceDefinition definition{.name = "test"};
  definition.layout.model = "test";
  definition.layout.block_bytes = kBlockBytes;
  definition.layout.block_tokens = 16;
  const auto ns = (*client)->OpenNamespace(definition);
  ASSERT_TRUE(ns.ok()) << ns.status();
  const Chain chain = *Chain::FromTokens(*ns, std::vector<uint32_t>(16));
  std::vector<std::byte> sent(kBlockBytes), received(kBlockBytes);
  Payload(chain.key(0)).Fill(sent);
  Operation put = (*client)->Put(*ns, {{chain.key(0), {ByteSpan(sent)}, {}}});
  put.Wait();
  EXPECT_EQ(put.succeeded(), 1u);
  Operation get = (*client)->Get(*ns, {{chain.key(0), {MutableByteSpan(received)}}});
  get.Wait();
  EXPECT_EQ(get.succeeded(), 1u);
  EXPECT_EQ(received, sent);
}

TEST(RealNode, ConnectSaysWhyNot) {
  ClientOptions options;
  options.address = "127.0.0.1:1";
  const absl::Status refused = Client::Connect(options).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.ToString(), HasSubstr("no node answers at 127.0.0.1:1"));
  options.transport = "pigeon";
  EXPECT_THAT(Client::Connect(options).status().ToString(), HasSubstr("'pigeon'"));
  options.transport = "auto";
  options.token_file = "/nonexistent";
  EXPECT_THAT(Client::Connect(options).status().ToString(), HasSubstr("token file '/nonexistent'"));
}

}  // namespace
}  // namespace terrace
