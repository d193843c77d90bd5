// A real node in a process of its own, for tests of what goes through sockets and gRPC.
#pragma once

#include <string>
#include <vector>

#include "tests/support/child_process.h"

namespace terrace {

class NodeProcess {
 public:
  // Without `supervised` a signal that ends the process ends the node.
  explicit NodeProcess(std::vector<std::string> more = {}, bool supervised = false)
      : supervisor_(supervised ? "--supervisor=on" : "--supervisor=off"), more_(std::move(more)) {
    Start("127.0.0.1:0");
  }

  const std::string& address() const { return address_; }
  const ChildProcess& process() const { return process_; }
  void Signal(int number) { process_.Signal(number); }
  // Whether it ends by itself.
  bool WaitForEnd() { return process_.Wait().has_value(); }
  // Kills it, and starts another at the same address.
  void Restart() {
    process_ = ChildProcess();
    Start(address_);
  }

 private:
  void Start(const std::string& listen) {
    std::vector<std::string> argv = {BinaryPath("terraced"),      "--listen=" + listen,
                                     "--http-listen=127.0.0.1:0", "--host-bytes=64MiB",
                                     "--max-block-bytes=8MiB",    "--transport=tcp",
                                     "--node-id=under-test",      supervisor_};
    argv.insert(argv.end(), more_.begin(), more_.end());
    process_ = *ChildProcess::Start(argv);
    address_ = Field(*process_.WaitForLine("terraced ready"), "control");
  }

  const std::string supervisor_;
  const std::vector<std::string> more_;
  ChildProcess process_;
  std::string address_;
};

}  // namespace terrace
