// A process that works on cold blocks is killed at random moments: the store opens every time, all
// that was acknowledged is there (a kill loses nothing), and no byte is wrong. The long form is
// ./dev soak crash; what is checked is told in tests/storage/cold_oracle.h.
#include <csignal>
#include <random>

#include "gtest/gtest.h"
#include "tests/storage/cold_support.h"
#include "tests/support/child_process.h"

namespace terrace::testing {
namespace {

constexpr int kKills = 8;

TEST(ColdCrash, KillLosesNothingAcknowledged) {
  TempFolder temp;
  const std::string journal = temp.path() + "/journal";
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string program = (self.parent_path() / "cold_crash_child").string();
  std::mt19937_64 random(11);
  const auto start = [&](const std::string& mode, int seed) {
    return ChildProcess::Start(
        {program, mode, "kill", temp.path() + "/store", journal, std::to_string(seed)});
  };
  for (int kill = 0; kill < kKills; ++kill) {
    auto child = start(kill % 3 == 2 ? "eager" : "work", kill);
    ASSERT_TRUE(child.ok());
    const auto working = child->WaitForLine("working", absl::Seconds(60));
    ASSERT_TRUE(working.ok()) << "kill " << kill << ": " << working.status();
    const uint64_t bytes = 1 + random() % 30'000;
    std::error_code error;
    const uint64_t before = std::filesystem::file_size(journal, error);
    EXPECT_TRUE(
        Eventually([&] { return std::filesystem::file_size(journal, error) > before + bytes; }));
    child->Signal(SIGKILL);
    ASSERT_EQ(child->Wait(absl::Seconds(10)), 128 + SIGKILL) << child->output();
  }
  auto child = start("check", kKills);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->Wait(absl::Seconds(60)), 0) << child->output();
}

}  // namespace
}  // namespace terrace::testing
