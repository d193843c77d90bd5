// stats: the node's metrics once, or again and again with their rates.
#include <unistd.h>

#include <map>
#include <memory>
#include <thread>

#include "client/table.h"
#include "client/terracectl/commands.h"
#include "fmt/format.h"
#include "proto/program.h"
#include "proto/status.h"

namespace terrace::ctl {
namespace {

namespace wire = control::v1;

std::string FormatNumber(double value) {
  return value == static_cast<double>(static_cast<int64_t>(value)) ? fmt::format("{:.0f}", value)
                                                                   : fmt::format("{:.6g}", value);
}

// With rates per second where there is an earlier reading. What is zero says nothing, unless `all`.
std::string Format(const wire::GetStatsReply& now, const wire::GetStatsReply* before, bool all) {
  const std::map<std::string, double> sorted(now.values().begin(), now.values().end());
  Table table =
      before == nullptr ? Table({"METRIC", "VALUE"}) : Table({"METRIC", "VALUE", "PER SECOND"});
  table.SetAlign(1, Table::Align::kRight);
  table.SetAlign(2, Table::Align::kRight);
  for (const auto& [name, value] : sorted) {
    if (value == 0 && !all) continue;
    std::vector<std::string> row = {name, FormatNumber(value)};
    if (before != nullptr) {
      const auto old = before->values().find(name);
      const double seconds = now.monotonic_seconds() - before->monotonic_seconds();
      const double change = old == before->values().end() ? value : value - old->second;
      row.push_back(seconds > 0 && change != 0 ? fmt::format("{:.6g}", change / seconds) : "");
    }
    table.AddRow(std::move(row));
  }
  return table.Format();
}

absl::StatusOr<int> Show(const GlobalOptions& options, bool watch, absl::Duration interval,
                         bool all) {
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  wire::GetStatsReply before;
  bool first = true;
  while (true) {
    TERRACE_ASSIGN_OR_RETURN(wire::GetStatsReply now, connection.Call(&wire::Admin::Stub::GetStats,
                                                                      wire::GetStatsRequest()));
    if (options.json) {
      PrintTo(stdout, "{}", ToJson(now));
    } else {
      if (watch && terminal) PrintTo(stdout, "\x1b[H\x1b[2J");
      PrintTo(stdout, "{}", Format(now, first ? nullptr : &before, all));
    }
    fflush(stdout);
    if (!watch) return 0;
    before = std::move(now);
    first = false;
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(interval));
  }
}

}  // namespace

void AddStatsCommand(Flags* root, GlobalOptions* options, std::vector<Command>* commands) {
  struct Choice {
    bool watch = false, all = false;
    absl::Duration interval = absl::Seconds(1);
  };
  auto choice = std::make_shared<Choice>();
  Flags* flags = root->AddCommand("stats", "the node's metrics");
  flags->AddBool("--watch", &choice->watch, "again and again, with rates, until interrupted");
  flags->AddBool("--all", &choice->all, "metrics that are zero, too");
  flags->AddDuration("--interval", &choice->interval, "between two readings of --watch");
  commands->push_back(
      {flags, [=] { return Show(*options, choice->watch, choice->interval, choice->all); }});
}

}  // namespace terrace::ctl
