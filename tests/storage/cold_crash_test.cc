// A process that writes cold blocks is killed at random moments: the folder opens every time, all
// that was acknowledged is there (a kill loses nothing), and no byte is wrong.
#include <csignal>
#include <fstream>
#include <random>
#include <set>

#include "gtest/gtest.h"
#include "tests/storage/cold_support.h"
#include "tests/support/child_process.h"

namespace terrace::testing {
namespace {

constexpr uint64_t kKeys = 600;
constexpr int kKills = 12;

// Blocks whose last line says that they are there. A last line cut short counts as not written.
std::set<uint64_t> Acknowledged(const std::string& journal) {
  std::set<uint64_t> here;
  std::ifstream file(journal);
  std::string what;
  for (uint64_t number; file >> what >> number;) {
    if (what == "deleting") {
      here.erase(number);
    } else {
      here.insert(number);
    }
  }
  return here;
}

TEST(ColdCrash, KillLosesNothingAcknowledged) {
  TempFolder temp;
  const std::string path = temp.path() + "/folder", journal = temp.path() + "/journal";
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string program = (self.parent_path() / "cold_crash_child").string();
  std::mt19937_64 random(11);
  for (int kill = 0; kill < kKills; ++kill) {
    auto child =
        ChildProcess::Start({program, path, journal, std::to_string(kill), std::to_string(kKeys)});
    ASSERT_TRUE(child.ok());
    ASSERT_TRUE(child->WaitForLine("ready", absl::Seconds(30)).ok()) << "kill " << kill;
    const uint64_t lines = 1 + random() % 4000;
    std::error_code error;
    const uint64_t before = std::filesystem::file_size(journal, error);
    EXPECT_TRUE(
        Eventually([&] { return std::filesystem::file_size(journal, error) > before + lines; }));
    child->Signal(SIGKILL);
    ASSERT_EQ(child->Wait(absl::Seconds(10)), 128 + SIGKILL);

    auto folder = OpenLoaded(SmallFolder(path));
    ASSERT_NE(folder, nullptr) << "kill " << kill;
    const std::set<uint64_t> here = Acknowledged(journal);
    for (uint64_t number = 0; number < kKeys; ++number) {
      const absl::Status got = GetAndCheck(*folder, KeyOf(number));
      if (here.contains(number)) {
        EXPECT_EQ(got, absl::OkStatus()) << number << " after kill " << kill;
      } else {
        EXPECT_TRUE(got.ok() || absl::IsNotFound(got)) << got.ToString();
      }
    }
    EXPECT_EQ(folder->Stats().lost_at_load, 0);
  }
}

}  // namespace
}  // namespace terrace::testing
