// A node whose serving process dies: its memory, its ports and its clients go on.
#include <signal.h>

#include <fstream>
#include <optional>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/clock.h"
#include "tests/client/node_process.h"
#include "tests/client/test_worker.h"

namespace terrace {
namespace {

using testing::HasSubstr;

pid_t ChildOf(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/children", pid, pid));
  pid_t child = 0;
  file >> child;
  return child;
}

class SupervisorTest : public testing::TestWithParam<bool> {
 protected:
  void Connect() {
    worker_.emplace(ClientOptions{.address = node_.address(), .local = GetParam()});
  }
  // From the kill until blocks come again.
  absl::Duration KillAndWait(int signal) {
    const absl::Duration began = Clock::Real()->Now();
    const pid_t child = ChildOf(node_.process().pid());
    EXPECT_GT(child, 0);
    kill(child, signal);
    const uint64_t before = worker_->client().Stats().reconnects;
    while (worker_->client().Stats().reconnects == before || !worker_->client().Stats().connected) {
      if (Clock::Real()->Now() - began > absl::Seconds(30)) break;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return Clock::Real()->Now() - began;
  }

  NodeProcess node_{{}, /*supervised=*/true};
  std::optional<TestWorker> worker_;
};

TEST_P(SupervisorTest, BlocksAreThereAgainAfterAKill) {
  Connect();
  ASSERT_EQ(worker_->PutAll(), TestWorker::kBlocks);
  for (const int signal : {SIGKILL, SIGABRT, SIGSEGV}) {
    const absl::Duration took = KillAndWait(signal);
    EXPECT_LT(took, absl::Seconds(5));  // the soak judges the second
    EXPECT_EQ(worker_->GetAll(), TestWorker::kBlocks) << strsignal(signal);
  }
  EXPECT_EQ(worker_->client().Stats().namespace_epoch, 0u);
  EXPECT_THAT(node_.process().errors(), HasSubstr("killed by signal 6 (Aborted)"));
  EXPECT_THAT(node_.process().errors(), HasSubstr("host memory was kept: 64 blocks (16.0 MiB)"));
}

TEST_P(SupervisorTest, StopsAsANodeDoes) {
  Connect();
  // A service manager signals both, a terminal likewise.
  kill(ChildOf(node_.process().pid()), SIGTERM);
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
