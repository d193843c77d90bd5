#include "proto/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace terrace {
namespace {

// Standard error as a pipe that the test reads, or does not.
class LogTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    capacity_ = fcntl(ends_[1], F_SETPIPE_SZ, 8192);
    ASSERT_GT(capacity_, 0);
    before_ = dup(STDERR_FILENO);
    dup2(ends_[1], STDERR_FILENO);
    SetLogLevel(LogLevel::kInfo);
  }
  void TearDown() override {
    dup2(before_, STDERR_FILENO);
    for (int fd : {before_, ends_[0], ends_[1]}) close(fd);
  }
  std::string Read() {
    std::string text(static_cast<size_t>(capacity_), 0);
    const ssize_t count = read(ends_[0], text.data(), text.size());
    return text.substr(0, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }

  int ends_[2] = {-1, -1};
  int before_ = -1;
  int capacity_ = 0;
};

TEST_F(LogTest, ALineHasTimeLevelAndComponent) {
  Log(LogLevel::kWarning, "node", "{} left", 3);
  const std::string line = Read();
  EXPECT_NE(line.find(" W node: 3 left\n"), std::string::npos) << line;
  Log(LogLevel::kDebug, "node", "not now");
  Log(LogLevel::kInfo, "node", "{}", std::string(10'000, 'x'));
  const std::string cut = Read();
  EXPECT_EQ(cut.size(), 4096u);
  EXPECT_EQ(cut.back(), '\n');
}

TEST_F(LogTest, APipeThatNobodyReadsStopsNobody) {
  for (int i = 0; i < 1000; ++i) Log(LogLevel::kInfo, "node", "line {}", i);
  EXPECT_NE(Read().find("line 0\n"), std::string::npos);
  Log(LogLevel::kInfo, "node", "and on");
  EXPECT_NE(Read().find("and on\n"), std::string::npos);
}

}  // namespace
}  // namespace terrace
