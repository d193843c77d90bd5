// A node process of its own and this process as its worker, for the rows that measure them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "tests/support/child_process.h"

namespace terrace::bench {

struct BenchNode {
  // `terraced` from `bin_folder` over tcp, with further flags. What is started here, process or
  // client, stays on the processors of the caller: apart where they belong on different ones.
  static absl::StatusOr<ChildProcess> StartProcess(const std::string& bin_folder,
                                                   const std::vector<std::string>& flags);
  // Waits until it is ready. With `local` blocks are read from the node's memory.
  static absl::StatusOr<BenchNode> Connect(ChildProcess process, bool local);

  ChildProcess process;
  std::string address;  // of its control plane
  std::unique_ptr<Client> client;
};

// The namespace whose blocks have `block_bytes` and one segment; made where it is not there.
absl::StatusOr<Namespace> OpenBenchNamespace(Client* client, uint32_t block_bytes);
BlockKey BenchKey(const Namespace& ns, uint64_t number);
// OK when all blocks of an operation that has ended are.
absl::Status StatusOf(const Operation& operation);

}  // namespace terrace::bench
