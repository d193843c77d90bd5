#include "tests/support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "fmt/format.h"
#include "proto/clock.h"

extern char** environ;

namespace terrace::testing {

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& arguments) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return absl::InternalError("pipe2 failed");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ChildProcess child;
  const int error = posix_spawnp(&child.pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  if (error != 0) {
    close(pipe_ends[0]);
    child.pid_ = -1;
    return absl::NotFoundError(fmt::format("cannot start {}: {}", arguments[0], strerror(error)));
  }
  child.output_ = pipe_ends[0];
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      pending_(std::move(other.pending_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(output_, other.output_);
  std::swap(pending_, other.pending_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) close(output_);
}

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

absl::StatusOr<std::string> ChildProcess::WaitForLine(const std::string& prefix,
                                                      absl::Duration timeout) {
  const absl::Duration deadline = Clock::Real()->Now() + timeout;
  std::string seen;
  while (true) {
    while (pending_.find('\n') != std::string::npos) {
      const std::string line = pending_.substr(0, pending_.find('\n'));
      pending_.erase(0, line.size() + 1);
      if (line.starts_with(prefix)) return line;
      seen += line + "\n";
    }
    const absl::Duration left = deadline - Clock::Real()->Now();
    pollfd readable{output_, POLLIN, 0};
    if (left <= absl::ZeroDuration() ||
        poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) {
      return absl::UnavailableError(
          fmt::format("no line '{}…' in time; output:\n{}", prefix, seen));
    }
    char buffer[4096];
    const ssize_t n = read(output_, buffer, sizeof(buffer));
    if (n <= 0) {
      return absl::UnavailableError(
          fmt::format("output ended without a line '{}…':\n{}{}", prefix, seen, pending_));
    }
    pending_.append(buffer, static_cast<size_t>(n));
  }
}

absl::StatusOr<int> ChildProcess::WaitForExit(absl::Duration timeout) {
  if (pid_ <= 0) return absl::FailedPreconditionError("no process");
  // glibc 2.36 wraps pidfd_open, older ones do not.
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  pollfd ended{pidfd, POLLIN, 0};
  const int ready = poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  close(pidfd);
  if (ready <= 0) return absl::DeadlineExceededError(fmt::format("process {} still runs", pid_));
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
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

std::optional<std::string> Field(const std::string& line, const std::string& name) {
  const std::string mark = " " + name + "=";
  size_t begin = line.find(mark);
  if (begin == std::string::npos) return std::nullopt;
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

}  // namespace terrace::testing
