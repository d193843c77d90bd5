#include "tests/support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "fmt/format.h"
#include "proto/clock.h"

namespace terrace {
namespace {

int RemainingMs(absl::Duration deadline) {
  const absl::Duration left = deadline - Clock::Real()->Now();
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left)));
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& arguments,
                                                 const std::vector<std::string>& environment) {
  ChildProcess child;
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return absl::InternalError("pipe2 failed");
  child.output_pipe_ = pipe_ends[0];
  child.errors_file_ = memfd_create("standard error", MFD_CLOEXEC);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child.errors_file_, STDERR_FILENO);
  std::vector<char*> argv, variables;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  for (const std::string& variable : environment) {
    variables.push_back(const_cast<char*>(variable.c_str()));
  }
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  argv.push_back(nullptr);
  variables.push_back(nullptr);
  const int error =
      posix_spawnp(&child.pid_, argv[0], &actions, nullptr, argv.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  if (error == 0) return child;
  child.pid_ = -1;
  return absl::NotFoundError(fmt::format("cannot start {}: {}", arguments[0], strerror(error)));
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(output_pipe_, other.output_pipe_);
  std::swap(errors_file_, other.errors_file_);
  std::swap(output_, other.output_);
  std::swap(code_, other.code_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (running()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (output_pipe_ >= 0) close(output_pipe_);
  if (errors_file_ >= 0) close(errors_file_);
}

void ChildProcess::Signal(int number) const {
  if (running()) kill(pid_, number);
}

bool ChildProcess::ReadMore(absl::Duration deadline) {
  pollfd readable{output_pipe_, POLLIN, 0};
  if (poll(&readable, 1, RemainingMs(deadline)) <= 0) return false;
  char piece[4096];
  const ssize_t count = read(output_pipe_, piece, sizeof(piece));
  if (count > 0) output_.append(piece, static_cast<size_t>(count));
  return count > 0;
}

absl::StatusOr<std::string> ChildProcess::WaitForLine(const std::string& prefix,
                                                      absl::Duration timeout) {
  const absl::Duration deadline = Clock::Real()->Now() + timeout;
  std::string seen;
  while (true) {
    size_t end;
    while ((end = output_.find('\n')) == std::string::npos) {
      if (!ReadMore(deadline)) {
        return absl::UnavailableError(fmt::format("no line '{}…' in time; output:\n{}{}\n{}",
                                                  prefix, seen, output_, errors()));
      }
    }
    const std::string line = output_.substr(0, end);
    output_.erase(0, end + 1);
    if (line.starts_with(prefix)) return line;
    seen += line + "\n";
  }
}

std::optional<int> ChildProcess::Wait(absl::Duration timeout) {
  if (!running()) return code_;
  const absl::Duration deadline = Clock::Real()->Now() + timeout;
  while (ReadMore(deadline)) continue;  // a full pipe would keep it from ending
  // glibc 2.36 wraps pidfd_open, older ones do not.
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  pollfd ended{pidfd, POLLIN, 0};
  const bool over = poll(&ended, 1, RemainingMs(deadline)) > 0;
  close(pidfd);
  int status = 0;
  if (!over || waitpid(pid_, &status, 0) != pid_) return std::nullopt;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_;
}

std::string ChildProcess::errors() const {
  std::string text;
  char piece[4096];
  ssize_t count;
  while ((count = pread(errors_file_, piece, sizeof(piece), static_cast<off_t>(text.size()))) > 0) {
    text.append(piece, static_cast<size_t>(count));
  }
  return text;
}

absl::Duration ChildProcess::CpuTime() const {
  std::ifstream file(fmt::format("/proc/{}/stat", pid_));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  // Fields 14 and 15, counted after the parenthesised name (proc(5)).
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return absl::ZeroDuration();
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  int64_t user = 0, system = 0;
  fields >> user >> system;
  return absl::Seconds(static_cast<double>(user + system) /
                       static_cast<double>(sysconf(_SC_CLK_TCK)));
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
  const std::string mark = " " + name + "=";
  size_t begin = line.find(mark);
  if (begin == std::string::npos) return "";
  begin += mark.size();
  const bool quoted = begin < line.size() && line[begin] == '"';
  if (quoted) ++begin;
  return line.substr(begin, line.find(quoted ? '"' : ' ', begin) - begin);
}

absl::Duration OwnCpuTime() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

}  // namespace terrace
