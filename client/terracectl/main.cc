// terracectl: look at a node and steer it.
#include <cstdlib>

#include "client/terracectl/commands.h"
#include "fmt/format.h"
#include "proto/program.h"

namespace terrace::ctl {
namespace {

constexpr int kExitFailed = 1, kExitUsage = 2;

void AddGlobalFlags(Flags* root, GlobalOptions* options) {
  DialOptions& dial = options->dial;
  const char* address = std::getenv("TERRACE_ADDRESS");
  dial.address = address != nullptr ? address : "127.0.0.1:7470";
  root->AddString("--address", &dial.address,
                  "the node's control plane, HOST:PORT (environment: TERRACE_ADDRESS)");
  root->AddString("--token-file", &dial.token_file, "file with the bearer token");
  root->AddString("--ca", &dial.ca_file, "PEM file: CA of the node (switches TLS on)");
  root->AddString("--cert", &dial.cert_file, "PEM file: own certificate, for mTLS");
  root->AddString("--key", &dial.key_file, "PEM file: its private key");
  root->AddDuration("--timeout", &options->timeout, "bound on each call");
  root->AddBool("--json", &options->json, "for programs: one JSON object per line");
  root->Footer(
      "Exit code: 0 done; 1 failed, locate found nothing, or scrub found what is not right; 2 "
      "wrong "
      "usage; 130 interrupted.");
}

int Main(int argc, const char* const* argv) {
  Flags root("terracectl", "Looks at a Terrace node and steers it.");
  GlobalOptions options;
  std::vector<Command> commands;
  AddGlobalFlags(&root, &options);
  AddNodeCommands(&root, &options, &commands);
  AddStatsCommand(&root, &options, &commands);
  AddScrubCommand(&root, &options, &commands);
  AddNamespaceCommands(&root, &options, &commands);
  Flags* completion = root.AddCommand("completion", "print a completion script");
  commands.push_back({completion->AddCommand("bash", "eval \"$(terracectl completion bash)\""),
                      [&root]() -> absl::StatusOr<int> {
                        PrintTo(stdout, "{}", root.BashCompletion());
                        return 0;
                      }});
  if (std::optional<int> code = root.Parse(argc, argv)) return *code;
  if (options.timeout <= absl::ZeroDuration() || options.timeout > absl::Hours(24)) {
    PrintTo(stderr, "terracectl: --timeout: more than nothing and at most 24h\n");
    return kExitUsage;
  }
  for (const Command& command : commands) {
    if (!command.flags->chosen()) continue;
    absl::StatusOr<int> code = command.run();
    if (code.ok()) return *code;
    PrintTo(stderr, "{}", ErrorLine(code.status(), options));
    return absl::IsInvalidArgument(code.status()) ? kExitUsage : kExitFailed;
  }
  return kExitUsage;
}

}  // namespace
}  // namespace terrace::ctl

int main(int argc, char** argv) {
  return terrace::RunProgram("terracectl", &terrace::ctl::Main, argc, argv);
}
