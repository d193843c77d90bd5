// A node whose serving process dies: its memory, its ports and its clients go on.
#include <signal.h>

#include <fstream>
#include <string>
#include <vector>

#include "client/client.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/clock.h"
#include "tests/client/node_process.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr uint32_t kBlockBytes = 256 << 10;
constexpr size_t kBlocks = 64;

pid_t ChildOf(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/children", pid, pid));
  pid_t child = 0;
  file >> child;
  return child;
}

class SupervisorTest : public testing::TestWithParam<bool> {
 protected:
  void Connect() {
    ClientOptions options;
    options.address = node_.address();
    options.transport = "tcp";
    options.local = GetParam();
    client_ = Client::Connect(options).value();
    NamespaceDefinition definition;
    definition.name = "test";
    definition.layout.model = "test";
    definition.layout.block_bytes = kBlockBytes;
    definition.layout.segments = 8;
    definition.layout.block_tokens = 16;
    ns_ = client_->OpenNamespace(definition).value();
    const std::vector<uint32_t> tokens(kBlocks * 16, 1);
    chain_ = Chain::FromTokens(ns_, tokens).value();
  }
  std::vector<std::byte> Payload(size_t i) const {
    return std::vector<std::byte>(kBlockBytes, static_cast<std::byte>(i + 1));
  }
  size_t PutAll() {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<PutRequest> puts;
    for (size_t i = 0; i < kBlocks; ++i) bytes.push_back(Payload(i));
    for (size_t i = 0; i < kBlocks; ++i) puts.push_back({chain_->key(i), {bytes[i]}, {}});
    Operation put = client_->Put(ns_, std::move(puts), {.timeout = absl::Seconds(10)});
    put.Wait();
    return put.succeeded();
  }
  // How many blocks come back; none with other bytes, or with another outcome than a miss.
  size_t GetAll() {
    std::vector<std::vector<std::byte>> landed(kBlocks, std::vector<std::byte>(kBlockBytes));
    std::vector<GetRequest> gets;
    for (size_t i = 0; i < kBlocks; ++i) {
      gets.push_back({chain_->key(i), {MutableByteSpan(landed[i])}});
    }
    Operation get = client_->Get(ns_, std::move(gets), {.timeout = absl::Seconds(10)});
    get.Wait();
    for (size_t i = 0; i < kBlocks; ++i) {
      const Outcome outcome = get.results()[i].outcome;
      EXPECT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kMiss) << ToString(outcome);
      EXPECT_TRUE(outcome != Outcome::kOk || landed[i] == Payload(i)) << i;
    }
    return get.succeeded();
  }
  // From the kill until blocks come again.
  absl::Duration KillAndWait(int signal) {
    const absl::Duration began = Clock::Real()->Now();
    const pid_t child = ChildOf(node_.process().pid());
    EXPECT_GT(child, 0);
    kill(child, signal);
    const uint64_t before = client_->Stats().reconnects;
    while (client_->Stats().reconnects == before || !client_->Stats().connected) {
      if (Clock::Real()->Now() - began > absl::Seconds(30)) break;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return Clock::Real()->Now() - began;
  }

  NodeProcess node_{{}, /*supervised=*/true};
  std::unique_ptr<Client> client_;
  Namespace ns_;
  std::optional<Chain> chain_;
};

TEST_P(SupervisorTest, BlocksAreThereAgainAfterAKill) {
  Connect();
  ASSERT_EQ(PutAll(), kBlocks);
  for (const int signal : {SIGKILL, SIGABRT, SIGSEGV}) {
    const absl::Duration took = KillAndWait(signal);
    EXPECT_LT(took, absl::Seconds(5));  // the soak judges the second
    EXPECT_EQ(GetAll(), kBlocks) << strsignal(signal);
  }
  EXPECT_EQ(client_->Stats().namespace_epoch, 0u);
  EXPECT_THAT(node_.process().errors(), HasSubstr("killed by signal 6 (Aborted)"));
  EXPECT_THAT(node_.process().errors(), HasSubstr("host memory was kept: 64 blocks (16.0 MiB)"));
}

TEST_P(SupervisorTest, StopsAsANodeDoes) {
  Connect();
  node_.Signal(SIGTERM);
  EXPECT_TRUE(node_.WaitForEnd());
  EXPECT_THAT(node_.process().errors(), testing::Not(HasSubstr("started again")));
}

TEST_P(SupervisorTest, TheServingProcessEndsWithItsSupervisor) {
  Connect();
  const pid_t child = ChildOf(node_.process().pid());
  node_.Signal(SIGKILL);
  EXPECT_TRUE(node_.WaitForEnd());
  const absl::Duration began = Clock::Real()->Now();
  while (kill(child, 0) == 0 && Clock::Real()->Now() - began < absl::Seconds(30)) {
    absl::SleepFor(absl::Milliseconds(1));  // whoever reaps it
    std::ifstream stat(fmt::format("/proc/{}/stat", child));
    std::string pid, name, state;
    stat >> pid >> name >> state;
    if (state == "Z") break;
  }
  EXPECT_LT(Clock::Real()->Now() - began, absl::Seconds(30));
}

INSTANTIATE_TEST_SUITE_P(Paths, SupervisorTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Local" : "Remote"; });

}  // namespace
}  // namespace terrace
