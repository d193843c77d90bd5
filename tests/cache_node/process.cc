#include "tests/cache_node/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "proto/clock.h"

namespace terrace {
namespace {

int RemainingMs(absl::Duration deadline) {
  return static_cast<int>(absl::ToInt64Milliseconds(deadline - Clock::Real()->Now()));
}

}  // namespace

Process::Process(const std::vector<std::string>& argv,
                 const std::vector<std::string>& environment) {
  static int number = 0;
  errors_path_ = fmt::format("{}process-{}-{}.err", testing::TempDir(), getpid(), number++);
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors_path_.c_str(),
                                   O_CREAT | O_TRUNC | O_WRONLY, 0600);
  std::vector<char*> arguments, variables;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  for (const std::string& variable : environment) {
    variables.push_back(const_cast<char*>(variable.c_str()));
  }
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  const int failed =
      posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  out_ = pipe_ends[0];
  if (failed != 0) {
    fmt::print(stderr, "cannot start {}\n", argv[0]);
    std::abort();
  }
}

Process::~Process() {
  if (!code_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(out_);
  unlink(errors_path_.c_str());
}

bool Process::ReadMore(absl::Duration deadline) {
  pollfd readable{out_, POLLIN, 0};
  if (const int left = RemainingMs(deadline); left <= 0 || poll(&readable, 1, left) <= 0) {
    return false;
  }
  char piece[4096];
  const ssize_t count = read(out_, piece, sizeof(piece));
  if (count > 0) buffered_.append(piece, static_cast<size_t>(count));
  return count > 0;
}

std::optional<std::string> Process::ReadLine() {
  const absl::Duration deadline = Clock::Real()->Now() + kPatience;
  size_t end;
  while ((end = buffered_.find('\n')) == std::string::npos) {
    if (!ReadMore(deadline)) return std::nullopt;
  }
  std::string line = buffered_.substr(0, end);
  buffered_.erase(0, end + 1);
  return line;
}

std::optional<int> Process::Wait() {
  if (code_) return code_;
  const absl::Duration deadline = Clock::Real()->Now() + kPatience;
  while (ReadMore(deadline)) continue;  // the pipe ends with the process
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  pollfd ended{fd, POLLIN, 0};
  const bool over = poll(&ended, 1, std::max(0, RemainingMs(deadline))) > 0;
  close(fd);
  int status = 0;
  if (!over || waitpid(pid_, &status, 0) != pid_) return std::nullopt;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_;
}

void Process::Signal(int number) { kill(pid_, number); }

std::string Process::errors() {
  std::ostringstream text;
  text << std::ifstream(errors_path_).rdbuf();
  return text.str();
}

double Process::cpu_seconds() const {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid_));
  std::string text;
  std::getline(stat, text);
  // Fields 14 and 15, counted from 1; the second one, the name, may hold blanks.
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::string BinaryPath(const std::string& name) {
  const char* folder = std::getenv("TERRACE_BIN_DIR");
  if (folder != nullptr) return fmt::format("{}/{}", folder, name);
  // Started by hand: beside the tests' folder.
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) std::abort();
  const std::string tests = std::string(self).substr(0, std::string(self).rfind('/'));
  return fmt::format("{}/../bin/{}", tests, name);
}

std::string Field(const std::string& line, const std::string& name) {
  const size_t begin = line.find(" " + name + "=");
  if (begin == std::string::npos) return "";
  const std::string rest = line.substr(begin + name.size() + 2);
  if (rest.starts_with('"')) return rest.substr(1, rest.find('"', 1) - 1);
  return rest.substr(0, rest.find(' '));
}

}  // namespace terrace
