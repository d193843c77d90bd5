// Command lines and config files, the same for every program: `--help`, `--version`, sizes and
// durations with units, and a TOML file (`--config FILE`) whose keys are the flags' names. An
// unknown flag or key is an error that names it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace CLI {
class App;
}

namespace terrace {

class Flags {
 public:
  Flags(const std::string& program, const std::string& description);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  // `name` as written: "--host-bytes", or "KEY" for a positional argument. `target` holds the
  // default, which --help shows, and must outlive Parse().
  void AddBytes(const std::string& name, uint64_t* target, const std::string& help);
  void AddDuration(const std::string& name, absl::Duration* target, const std::string& help);
  void AddUint(const std::string& name, uint64_t* target, const std::string& help, uint64_t minimum,
               uint64_t maximum);
  void AddDouble(const std::string& name, double* target, const std::string& help, double minimum,
                 double maximum);
  void AddString(const std::string& name, std::string* target, const std::string& help);
  // May be given several times; in a file, a list.
  void AddStrings(const std::string& name, std::vector<std::string>* target,
                  const std::string& help);
  void AddChoice(const std::string& name, std::string* target, const std::string& help,
                 const std::vector<std::string>& choices);
  void AddBool(const std::string& name, bool* target, const std::string& help);  // a switch
  // Marks the last added flag or argument as one that must be given.
  void Required();
  // Reads `--config FILE` (TOML) with the same names, without dashes in front.
  void AddConfigFile();
  // Text below the options in --help.
  void Footer(const std::string& text);

  // A subcommand; owned by this object. The program must be called with one of them.
  Flags* AddCommand(const std::string& name, const std::string& help);
  bool chosen() const;  // of a command, after Parse

  // Returns nothing when the program should go on; otherwise the exit code: 0 after --help and
  // --version (printed to standard output), 2 after an error (one line on standard error).
  std::optional<int> Parse(int argc, const char* const* argv);

  // A bash completion script for the whole tree of commands.
  std::string BashCompletion() const;

 private:
  explicit Flags(CLI::App* command);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
