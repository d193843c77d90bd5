// A program of ours, or a peer's, run by a test: started without fork (UCX forbids it), its output
// read line by line, its complaints kept, stopped and reaped at the end whatever happens.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace terrace {

class ChildProcess {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(30);

  // `arguments[0]` is the program, looked up in PATH when it has no slash; `environment`
  // ("NAME=value") goes before ours. NotFound when it cannot be started.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& arguments,
                                            const std::vector<std::string>& environment = {});

  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();  // SIGKILL unless it has ended

  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  // Reads on until a line of standard output that begins with `prefix`. Unavailable when the
  // output ends or the time is up first, with what was printed and complained.
  absl::StatusOr<std::string> WaitForLine(const std::string& prefix,
                                          absl::Duration timeout = kPatience);
  // Waits for the end: the exit code, or 128 + the signal's number. Nothing while it still runs.
  std::optional<int> Wait(absl::Duration timeout = kPatience);
  const std::string& output() const { return output_; }  // what WaitForLine has not taken
  std::string errors() const;                            // standard error so far
  // User and system time of the process so far.
  absl::Duration CpuTime() const;

 private:
  // Reads a piece of standard output; false at its end and at the deadline.
  bool ReadMore(absl::Duration deadline);
  bool running() const { return pid_ > 0 && !code_; }

  pid_t pid_ = -1;
  int output_pipe_ = -1;
  int errors_file_ = -1;
  std::string output_;
  std::optional<int> code_;
};

// The program under test, where the build put it.
std::string BinaryPath(const std::string& name);

// The value of ` name=value` in a line of such pairs, without its quotes; empty when absent.
std::string Field(const std::string& line, const std::string& name);

// User and system time of this process so far.
absl::Duration OwnCpuTime();

}  // namespace terrace
