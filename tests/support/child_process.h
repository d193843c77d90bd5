// A program of ours, or a peer's, run by a test: started without fork (UCX forbids it), its output
// read line by line, stopped and reaped at the end whatever happens.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace terrace::testing {

class ChildProcess {
 public:
  // `arguments[0]` is the program, looked up in PATH when it has no slash. Standard output is a
  // pipe to this object, standard error is inherited.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& arguments);

  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();  // SIGKILL unless it has ended

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Reads on until a line that begins with `prefix`; Unavailable when the output ends or the
  // time is up first, with what was printed.
  absl::StatusOr<std::string> WaitForLine(const std::string& prefix, absl::Duration timeout);
  // The exit code, or 128 + the signal's number; DeadlineExceeded while it still runs.
  absl::StatusOr<int> WaitForExit(absl::Duration timeout);
  // User and system time of the process so far.
  absl::Duration CpuTime() const;

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string pending_;
};

// The value of ` name=value` in a line of such pairs (a value may be quoted), or nothing.
std::optional<std::string> Field(const std::string& line, const std::string& name);

// User and system time of this process so far.
absl::Duration OwnCpuTime();

}  // namespace terrace::testing
