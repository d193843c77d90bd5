#include "tests/bench/bench_node.h"

#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "proto/status.h"

namespace terrace::bench {

absl::StatusOr<ChildProcess> BenchNode::StartProcess(const std::string& bin_folder,
                                                     const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {bin_folder + "/terraced",
                                        "--listen",
                                        "127.0.0.1:0",
                                        "--http-listen",
                                        "127.0.0.1:0",
                                        "--transport",
                                        "tcp",
                                        "--supervisor",
                                        "off"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return ChildProcess::Start(arguments);
}

absl::StatusOr<BenchNode> BenchNode::Connect(ChildProcess process, bool local) {
  BenchNode node{.process = std::move(process), .address = {}, .client = nullptr};
  TERRACE_ASSIGN_OR_RETURN(std::string ready,
                           node.process.WaitForLine("terraced ready", absl::Seconds(120)));
  node.address = Field(ready, "control");
  TERRACE_ASSIGN_OR_RETURN(
      node.client,
      Client::Connect(
          {.address = node.address, .name = "terrace-bench", .transport = "tcp", .local = local}));
  if (local && !node.client->Stats().local) {
    return absl::UnavailableError("the node's memory cannot be read: " +
                                  node.client->Stats().local_reason);
  }
  return node;
}

absl::StatusOr<Namespace> OpenBenchNamespace(Client* client, uint32_t block_bytes) {
  NamespaceDefinition definition{.name = fmt::format("bench-{}", block_bytes)};
  definition.layout = {.model = "bench",
                       .block_tokens = 16,
                       .layers = 1,
                       .kv_heads = 1,
                       .head_dim = 1,
                       .block_bytes = block_bytes};
  return client->OpenNamespace(definition);
}

BlockKey BenchKey(const Namespace& ns, uint64_t number) {
  BlockKey key{ns.id, {}, 0};
  std::memcpy(key.digest.bytes.data(), &number, sizeof(number));
  // The index expects digests to be spread evenly.
  key.digest = Sha256(std::as_bytes(std::span(key.digest.bytes)));
  return key;
}

absl::Status StatusOf(const Operation& operation) {
  for (const BlockResult& result : operation.results()) {
    if (result.outcome == Outcome::kOk) continue;
    return absl::UnknownError(
        fmt::format("operation ended as {} {}", ToString(result.outcome), result.message));
  }
  return absl::OkStatus();
}

}  // namespace terrace::bench
