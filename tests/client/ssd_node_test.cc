// A node with an ssd tier as people run it: restarts, kills, scrubs, and folders that are wrong.
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "client/client.h"
#include "client/load/payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/clock.h"
#include "tests/client/node_process.h"
#include "tests/storage/cold_support.h"

namespace terrace {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::TempFolder;

constexpr uint32_t kBlockBytes = 256 << 10;
constexpr size_t kBlocks = 512;  // twice the host tier

class SsdNodeTest : public ::testing::Test {
 protected:
  SsdNodeTest() { Connect(); }

  void Connect() {
    client_ = Client::Connect({.address = node_.address(), .transport = "tcp"}).value();
    NamespaceDefinition definition{.name = "test"};
    definition.layout = {.model = "test",
                         .block_tokens = 16,
                         .layers = 1,
                         .kv_heads = 1,
                         .head_dim = 1,
                         .block_bytes = kBlockBytes,
                         .segments = 8};
    ns_ = client_->OpenNamespace(definition).value();
  }
  void Restart() {
    client_.reset();
    node_.Restart();
    Connect();
  }
  Chain MakeChain() {
    std::vector<uint32_t> tokens(kBlocks * 16, 7);
    return *Chain::FromTokens(ns_, tokens);
  }
  // As a worker does: what a match has not found is put. Puts that are faster than the device cost
  // blocks, which are put again.
  void PutAll(const Chain& chain) {
    std::vector<std::byte> bytes(kBlockBytes);
    const absl::Duration until = Clock::Real()->Now() + absl::Seconds(60);
    size_t found = client_->Match(chain, {})->blocks;
    for (; found < kBlocks && Clock::Real()->Now() < until;
         found = client_->Match(chain, {})->blocks) {
      Payload(chain.key(found)).Fill(bytes);
      Operation put = client_->Put(ns_, {{chain.key(found), {ByteSpan(bytes)}, {}}},
                                   {.timeout = absl::Seconds(10)});
      put.Wait();
      ASSERT_EQ(put.succeeded(), 1) << found;
    }
    ASSERT_EQ(found, kBlocks);
  }
  void AwaitLoaded(const Chain& chain) {
    const absl::Duration until = Clock::Real()->Now() + absl::Seconds(20);
    while (client_->Match(chain, {})->ask_again && Clock::Real()->Now() < until) continue;
  }
  // Blocks that are there; each is judged. A node that has just started is asked again.
  size_t ReadAll(const Chain& chain) {
    AwaitLoaded(chain);
    std::vector<std::byte> landed(kBlockBytes);
    size_t here = 0;
    for (size_t i = 0; i < chain.blocks(); ++i) {
      Operation get = client_->Get(ns_, {{chain.key(i), {MutableByteSpan(landed)}}},
                                   {.timeout = absl::Seconds(10)});
      get.Wait();
      if (get.results()[0].outcome != Outcome::kOk) continue;
      EXPECT_EQ(Payload(chain.key(i)).CountWrong(landed), 0) << i;
      ++here;
    }
    return here;
  }
  // In the folder of a node that does not run; found by what the value begins with.
  bool FlipAByteOf(const BlockKey& key) {
    std::vector<std::byte> begin(64);
    Payload(key).Fill(begin);
    for (const auto& entry : std::filesystem::directory_iterator(ssd_ + "/extents")) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      std::vector<char> page(4096);
      for (uint64_t at = 0; file.seekg(at) && file.read(page.data(), 4096); at += 4096) {
        if (std::memcmp(page.data(), begin.data(), begin.size()) != 0) continue;
        file.seekp(at + 1000);
        file.put(static_cast<char>(page[1000] ^ 1));
        return file.good();
      }
    }
    return false;
  }
  struct Said {
    std::optional<int> code;
    std::string output, errors;
  };
  Said Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), BinaryPath("terracectl"));
    arguments.push_back("--address=" + node_.address());
    ChildProcess process = *ChildProcess::Start(arguments);
    const std::optional<int> code = process.Wait();
    return {code, process.output(), process.errors()};
  }
  uint64_t SsdBlocks() {
    const json tiers = json::parse(Ctl({"tiers", "--json"}).output);
    return tiers["tiers"][1]["blocks"].get<uint64_t>();
  }

  TempFolder folder_;
  const std::string ssd_ = folder_.path() + "/ssd";
  NodeProcess node_{{"--ssd=" + ssd_ + ":512MiB"}};
  std::unique_ptr<Client> client_;
  Namespace ns_;
};

TEST_F(SsdNodeTest, BlocksOutliveHostMemoryAndTheProcess) {
  const Chain chain = MakeChain();
  PutAll(chain);
  EXPECT_EQ(ReadAll(chain), kBlocks);
  const MatchResult match = client_->Match(chain, {.lease = absl::Seconds(5)}).value();
  EXPECT_EQ(match.blocks, kBlocks);
  EXPECT_THAT(match.tiers, ::testing::Contains(Tier::kSsd));
  EXPECT_THAT(match.tiers, ::testing::Contains(Tier::kHost));

  node_.Signal(SIGTERM);  // and what the ssd tier does not have goes there
  ASSERT_TRUE(node_.WaitForEnd());
  Restart();
  EXPECT_EQ(ReadAll(MakeChain()), kBlocks);
  EXPECT_THAT(Ctl({"tiers"}).output, HasSubstr("ssd"));
  const Said scrub = Ctl({"scrub"});
  EXPECT_EQ(scrub.code, 0);
  EXPECT_THAT(scrub.output, HasSubstr("scrubbed 512 of 512 blocks"));
}

TEST_F(SsdNodeTest, AKillCostsWhatWasInMemoryAlone) {
  const Chain chain = MakeChain();
  PutAll(chain);
  const uint64_t on_ssd = SsdBlocks();
  ASSERT_GT(on_ssd, kBlocks / 4);
  Restart();  // SIGKILL
  EXPECT_GE(ReadAll(MakeChain()), on_ssd);
}

TEST_F(SsdNodeTest, WhatIsAcknowledgedAsDurableSurvivesAKill) {
  const Chain chain = MakeChain();
  std::vector<BlockKey> keys;
  std::vector<std::byte> bytes(kBlockBytes);
  for (size_t i = 0; i < 64; ++i) {  // little enough to stay in host memory
    keys.push_back(chain.key(i));
    Payload(keys.back()).Fill(bytes);
    client_->Put(ns_, {{keys.back(), {ByteSpan(bytes)}, {}}}, {.timeout = absl::Seconds(10)})
        .Wait();
  }
  EXPECT_EQ(SsdBlocks(), 0);
  keys.push_back(chain.key(100));  // is not there
  Operation persist = client_->Persist(ns_, keys, {.timeout = absl::Seconds(10)});
  persist.Wait();
  EXPECT_EQ(persist.succeeded(), 64);
  EXPECT_EQ(persist.results().back().outcome, Outcome::kMiss);
  Restart();  // SIGKILL
  EXPECT_EQ(ReadAll(MakeChain()), 64);
}

TEST_F(SsdNodeTest, FlippedBitsAreMissesAndScrubFindsThem) {
  const Chain chain = MakeChain();
  PutAll(chain);
  node_.Signal(SIGTERM);
  ASSERT_TRUE(node_.WaitForEnd());
  for (const size_t block : {10, 20}) ASSERT_TRUE(FlipAByteOf(chain.key(block)));
  Restart();
  AwaitLoaded(MakeChain());
  const Said scrub = Ctl({"scrub", "--json"});
  EXPECT_EQ(scrub.code, 1) << scrub.output;
  EXPECT_THAT(scrub.output, HasSubstr("\"corrupt\":2"));
  EXPECT_EQ(ReadAll(MakeChain()), kBlocks - 2);
  EXPECT_EQ(Ctl({"scrub"}).code, 0) << "they are gone";
}

TEST_F(SsdNodeTest, OperatorsSeeTheFoldersAndWhatBecameOfBlocks) {
  PutAll(MakeChain());
  const std::string tiers = Ctl({"tiers"}).output;
  EXPECT_THAT(tiers, HasSubstr("FOLDER"));
  EXPECT_THAT(tiers, ContainsRegex(ssd_ + " .*512.0 MiB.* ready\n"));
  EXPECT_THAT(tiers, ContainsRegex("host to ssd: [0-9,]+ demoted: written\n"));
  EXPECT_THAT(Ctl({"status"}).output, ContainsRegex("ssd " + ssd_ + " +ready\n"));
  const json folder = json::parse(Ctl({"tiers", "--json"}).output)["tiers"][1]["folders"][0];
  EXPECT_EQ(folder["path"], ssd_);
  EXPECT_GT(folder["blocks"], 0);
  EXPECT_GT(folder["commits"], 0);
  EXPECT_GE(folder["disk_bytes"], folder["occupied_bytes"]);

  const Said deleted = Ctl({"namespace", "delete", "test"});
  EXPECT_EQ(deleted.code, 0) << deleted.errors;
  EXPECT_THAT(deleted.output, ContainsRegex("namespace test is deleted; blocks forgotten: [0-9]+ "
                                            "in host memory, [0-9]+ on ssd\n"));
}

TEST_F(SsdNodeTest, AnInterruptedScrubSaysHowFarItCame) {
  PutAll(MakeChain());
  const std::vector<std::string> argv = {BinaryPath("terracectl"), "scrub", "--rate=64KiB",
                                         "--address=" + node_.address()};
  ChildProcess scrub = *ChildProcess::Start(argv);
  const absl::Duration until = Clock::Real()->Now() + absl::Seconds(20);
  while (scrub.errors().find("scrubbing: ") == std::string::npos) {
    ASSERT_LT(Clock::Real()->Now(), until);
    absl::SleepFor(absl::Milliseconds(10));
  }
  scrub.Signal(SIGINT);
  EXPECT_EQ(scrub.Wait(), 130);
  EXPECT_EQ(scrub.output(), "");
  EXPECT_THAT(scrub.errors(), ContainsRegex("interrupted after [0-9]+ of [0-9]+ blocks, .*; what "
                                            "was found corrupt is gone\n"));
  EXPECT_TRUE(Eventually([&] { return Ctl({"scrub"}).code == 0; })) << "it has ended there too";
}

TEST_F(SsdNodeTest, LoadAlwaysTellsTheHitsOfTheSsdTier) {
  const std::string path = folder_.path() + "/load.json";
  ChildProcess load =
      *ChildProcess::Start({BinaryPath("terrace-load"), "--address=" + node_.address(),
                            "--seconds=1", "--block-bytes=4KiB", "--json=" + path});
  EXPECT_EQ(load.Wait(), 0) << load.errors();
  EXPECT_THAT(load.output(), HasSubstr("hits in ssd"));
  std::ifstream in(path);
  EXPECT_TRUE(json::parse(in)["hits"].contains("ssd"));
}

TEST_F(SsdNodeTest, WrongFoldersAreNamedWithTheMend) {
  const auto start = [](std::vector<std::string> more) {
    std::vector<std::string> argv = {BinaryPath("terraced"), "--listen=127.0.0.1:0",
                                     "--http-listen=127.0.0.1:0", "--host-bytes=64MiB",
                                     "--max-block-bytes=8MiB"};
    argv.insert(argv.end(), more.begin(), more.end());
    ChildProcess process = *ChildProcess::Start(argv);
    const std::optional<int> code = process.Wait();
    return std::pair(code, process.errors());
  };
  const auto refused = [&](std::vector<std::string> more, int code, const std::string& words) {
    const auto [ended, errors] = start(std::move(more));
    EXPECT_EQ(ended, code) << errors;
    EXPECT_THAT(errors, HasSubstr("--ssd"));
    EXPECT_THAT(errors, HasSubstr(words));
  };
  refused({"--node-id=under-test", "--ssd=" + ssd_ + ":512MiB"}, 1, "in use by another process");
  refused({"--ssd=/dev/null/x:512MiB"}, 1, "/dev/null/x");
  refused({"--ssd=" + ssd_ + ":4096"}, 2, "256.0 MiB");
  refused({"--ssd=a:1GiB", "--ssd=./a/:1GiB"}, 2, "named twice");
  node_.Signal(SIGTERM);
  ASSERT_TRUE(node_.WaitForEnd());
  refused({"--node-id=another", "--ssd=" + ssd_ + ":512MiB"}, 1, "belongs to node under-test");
  std::ofstream(ssd_ + "/terrace-ssd") << "format 2\n";
  refused({"--node-id=under-test", "--ssd=" + ssd_ + ":512MiB"}, 1, "format 2");
  std::ofstream(folder_.path() + "/file") << "not a cache";
  refused({"--ssd=" + folder_.path() + ":512MiB"}, 1, folder_.path());
}

}  // namespace
}  // namespace terrace
