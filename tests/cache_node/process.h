// A child process whose output a test reads. Killed with this object.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace terrace {

class Process {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(30);

  // argv[0] is the program's path. `environment` is added to ours ("NAME=value").
  explicit Process(const std::vector<std::string>& argv,
                   const std::vector<std::string>& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The next line of standard output; nothing when it ends or kPatience has passed.
  std::optional<std::string> ReadLine();
  // Waits for the end: the exit code, or 128 + signal. Nothing when kPatience has passed.
  std::optional<int> Wait();
  void Signal(int number);
  const std::string& output() const { return buffered_; }  // what ReadLine has not taken
  std::string errors();                                    // standard error so far

  double cpu_seconds() const;
  pid_t pid() const { return pid_; }

 private:
  // Reads a piece of standard output; false at its end and at the deadline.
  bool ReadMore(absl::Duration deadline);

  pid_t pid_ = -1;
  int out_ = -1;
  std::string buffered_;
  std::string errors_path_;
  std::optional<int> code_;
};

// The program under test, where the build put it.
std::string BinaryPath(const std::string& name);
// The value behind `name=` in a ready line; quotes removed.
std::string Field(const std::string& line, const std::string& name);

}  // namespace terrace
