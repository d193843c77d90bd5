// The commands of terracectl. Each adds itself to the command line and runs when it was chosen.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/terracectl/call.h"
#include "proto/flags.h"

namespace terrace::ctl {

struct Command {
  Flags* flags;
  // The exit code where the node has answered: 0, 1 for "no" (locate, scrub), or 130 where a
  // signal has ended it (scrub).
  std::function<absl::StatusOr<int>()> run;
};

// `options` outlives the commands.
void AddNodeCommands(Flags* root, GlobalOptions* options, std::vector<Command>* commands);
void AddStatsCommand(Flags* root, GlobalOptions* options, std::vector<Command>* commands);
void AddScrubCommand(Flags* root, GlobalOptions* options, std::vector<Command>* commands);
void AddNamespaceCommands(Flags* root, GlobalOptions* options, std::vector<Command>* commands);

}  // namespace terrace::ctl
