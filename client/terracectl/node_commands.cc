// ping, status, tiers, top, locate: what a node is and holds.
#include <algorithm>
#include <map>
#include <memory>

#include "client/table.h"
#include "client/terracectl/commands.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "proto/block_key.h"
#include "proto/clock.h"
#include "proto/program.h"
#include "proto/status.h"
#include "proto/units.h"

namespace terrace::ctl {
namespace {

namespace wire = control::v1;
using Stub = wire::Admin::Stub;

std::string FormatUptime(double seconds) {
  return absl::FormatDuration(absl::Trunc(absl::Seconds(seconds), absl::Seconds(1)));
}

std::string Join(const google::protobuf::RepeatedPtrField<std::string>& items) {
  return fmt::format("{}", fmt::join(items.begin(), items.end(), ", "));
}

absl::StatusOr<int> Ping(const GlobalOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  // The first call pays for the connection; the second is the round trip.
  TERRACE_RETURN_IF_ERROR(connection.Call(&Stub::GetStatus, wire::GetStatusRequest()).status());
  const absl::Duration begin = Clock::Real()->Now();
  TERRACE_ASSIGN_OR_RETURN(wire::NodeStatus status,
                           connection.Call(&Stub::GetStatus, wire::GetStatusRequest()));
  const double ms = absl::ToDoubleMilliseconds(Clock::Real()->Now() - begin);
  if (options.json) {
    const nlohmann::json answer = {{"node_id", status.node_id()},
                                   {"state", status.state()},
                                   {"version", status.version()},
                                   {"round_trip_ms", ms}};
    PrintTo(stdout, "{}\n", answer.dump());
  } else {
    PrintTo(stdout, "{} at {} is {} (terrace {}), round trip {:.2f} ms\n", status.node_id(),
            options.dial.address, status.state(), status.version(), ms);
  }
  return 0;
}

absl::StatusOr<int> ShowStatus(const GlobalOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  TERRACE_ASSIGN_OR_RETURN(wire::NodeStatus status,
                           connection.Call(&Stub::GetStatus, wire::GetStatusRequest()));
  if (options.json) {
    PrintTo(stdout, "{}", ToJson(status));
    return 0;
  }
  Table table;
  table.AddRow({"node", status.node_id()});
  table.AddRow({"state", status.state()});
  table.AddRow({"version", status.version()});
  table.AddRow({"incarnation", std::to_string(status.incarnation())});
  table.AddRow({"host", status.host_id()});
  table.AddRow({"uptime", FormatUptime(status.uptime_seconds())});
  if (status.restarts() > 0) {
    table.AddRow({"restarts", fmt::format("{}; before: {}", status.restarts(), status.last_end())});
  }
  table.AddRow({"control", status.control_address()});
  table.AddRow({"data", Join(status.data_addresses())});
  table.AddRow({"http", status.http_address()});
  table.AddRow({"security", status.security()});
  table.AddRow({"transport", status.transport()});
  if (!status.ucx_version().empty()) table.AddRow({"UCX", status.ucx_version()});
  table.AddRow({"sessions", FormatCount(status.sessions())});
  table.AddRow({"connections", FormatCount(status.connections())});
  table.AddRow({"leases", FormatCount(status.leases())});
  table.AddRow({"reservations", FormatCount(status.reservations())});
  table.AddRow({"resident memory", FormatBytes(status.resident_memory_bytes())});
  for (const wire::MemoryItem& item : status.memory()) {
    table.AddRow({"  " + item.name(), FormatBytes(item.bytes())});
  }
  for (const wire::FolderInfo& folder : status.folders()) {
    table.AddRow({"ssd " + folder.path(), folder.health()});
  }
  PrintTo(stdout, "{}", table.Format());
  return 0;
}

std::string Share(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void PrintTiers(const wire::GetTiersReply& reply) {
  Table table({"TIER", "BLOCKS", "VALUES", "OCCUPIED", "CAPACITY", "FULL", "HITS", "MISSES",
               "HIT RATE", "PUTS", "EXISTED", "NO SPACE", "EVICTED", "TURNOVERS"});
  for (size_t i = 1; i < 14; ++i) table.SetAlign(i, Table::Align::kRight);
  for (const wire::TierInfo& tier : reply.tiers()) {
    uint64_t evicted = 0;
    for (const auto& [reason, blocks] : tier.evictions()) evicted += blocks;
    table.AddRow({tier.tier(), FormatCount(tier.blocks()), FormatBytes(tier.value_bytes()),
                  FormatBytes(tier.occupied_bytes()), FormatBytes(tier.capacity_bytes()),
                  Share(tier.occupied_bytes(), tier.capacity_bytes()), FormatCount(tier.hits()),
                  FormatCount(tier.misses()), Share(tier.hits(), tier.hits() + tier.misses()),
                  FormatCount(tier.puts()), FormatCount(tier.puts_existing()),
                  FormatCount(tier.puts_no_space()), FormatCount(evicted),
                  fmt::format("{:.2f}", tier.turnovers())});
  }
  PrintTo(stdout, "{}", table.Format());
}

void PrintFolders(const wire::TierInfo& tier) {
  if (tier.folders().empty()) return;
  Table table({"FOLDER", "BLOCKS", "OCCUPIED", "ON DISK", "BUDGET", "CATALOGUE", "QUARANTINED",
               "SET ASIDE", "COMMITS", "FAILED", "DEVICE", "HEALTH"});
  for (size_t i = 1; i < 10; ++i) table.SetAlign(i, Table::Align::kRight);
  for (const wire::FolderInfo& folder : tier.folders()) {
    table.AddRow({folder.path(), FormatCount(folder.blocks()), FormatBytes(folder.occupied_bytes()),
                  FormatBytes(folder.disk_bytes()), FormatBytes(folder.budget_bytes()),
                  FormatBytes(folder.catalogue_bytes()), FormatBytes(folder.quarantined_bytes()),
                  FormatBytes(folder.set_aside_bytes()), FormatCount(folder.commits()),
                  FormatCount(folder.failed_commits()),
                  folder.device().empty() ? "-" : folder.device(), folder.health()});
  }
  PrintTo(stdout, "\n{}", table.Format());
}

// In the order of their names; those that did not happen say nothing.
void PrintCounts(const std::string& tier, const char* what,
                 const google::protobuf::Map<std::string, uint64_t>& counts) {
  const std::map<std::string, uint64_t> sorted(counts.begin(), counts.end());
  for (const auto& [name, blocks] : sorted) {
    if (blocks > 0) PrintTo(stdout, "{}: {} {}: {}\n", tier, FormatCount(blocks), what, name);
  }
}

constexpr char kTiersHelp[] =
    "CAPACITY   host: its memory; ssd: the budgets of its folders together\n"
    "OCCUPIED   places in use, envelopes and rounding included; ssd: and the catalogues\n"
    "FULL       OCCUPIED of CAPACITY. Eviction holds the ssd tier at 93 to 95 % of the extents\n"
    "           that its budgets have room for: it is never quite full\n"
    "TURNOVERS  the age of the policy's clock: one is as many uses of blocks as the tier holds\n"
    "           blocks when it is full. That of the ssd tier goes on over restarts\n"
    "ON DISK    what a folder takes of its device: extents, which are made whole, and catalogue\n"
    "demoted    what became in the ssd tier of blocks that left host memory: written,\n"
    "           there_already, not_admitted (by policy, write budget or health), no_room, failed\n"
    "asked for  what became of blocks that are on ssd and were asked for: filled, failed, refused";

absl::StatusOr<int> ShowTiers(const GlobalOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  TERRACE_ASSIGN_OR_RETURN(wire::GetTiersReply reply,
                           connection.Call(&Stub::GetTiers, wire::GetTiersRequest()));
  if (options.json) {
    PrintTo(stdout, "{}", ToJson(reply));
    return 0;
  }
  PrintTiers(reply);
  for (const wire::TierInfo& tier : reply.tiers()) PrintFolders(tier);
  for (const wire::TierInfo& tier : reply.tiers()) {
    PrintCounts(tier.tier(), "evicted", tier.evictions());
    PrintCounts("host to ssd", "demoted", tier.demotions());
    PrintCounts("ssd to host", "asked for", tier.fills());
  }
  return 0;
}

void AddBlockRow(const wire::TopBlock& block, Table* table) {
  table->AddRow({fmt::format("{:.2f}", block.score()), FormatBytes(block.bytes()),
                 std::to_string(block.depth()), std::to_string(block.references()), block.tier(),
                 block.key()});
}

Table BlockTable() {
  Table table({"SCORE", "SIZE", "DEPTH", "REFS", "TIER", "KEY"});
  for (size_t i = 0; i < 4; ++i) table.SetAlign(i, Table::Align::kRight);
  return table;
}

absl::StatusOr<int> ShowTop(const GlobalOptions& options, uint64_t count) {
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  wire::GetTopRequest request;
  request.set_count(static_cast<uint32_t>(count));
  TERRACE_ASSIGN_OR_RETURN(wire::GetTopReply reply, connection.Call(&Stub::GetTop, request));
  if (options.json) {
    PrintTo(stdout, "{}", ToJson(reply));
    return 0;
  }
  Table table = BlockTable();
  for (const wire::TopBlock& block : reply.blocks()) AddBlockRow(block, &table);
  PrintTo(stdout, "{}", table.Format());
  return 0;
}

absl::StatusOr<int> ShowLocation(const GlobalOptions& options, const std::string& key) {
  TERRACE_RETURN_IF_ERROR(ParseBlockKey(key).status());
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  wire::LocateRequest request;
  request.set_key(key);
  TERRACE_ASSIGN_OR_RETURN(wire::LocateReply reply, connection.Call(&Stub::Locate, request));
  if (options.json) {
    PrintTo(stdout, "{}", ToJson(reply));
  } else if (reply.resident()) {
    Table table = BlockTable();
    AddBlockRow(reply.block(), &table);
    PrintTo(stdout, "on {}\n{}", reply.node_id(), table.Format());
  } else {
    PrintTo(stdout, "not on {}\n", reply.node_id());
  }
  return reply.resident() ? 0 : 1;
}

}  // namespace

void AddNodeCommands(Flags* root, GlobalOptions* options, std::vector<Command>* commands) {
  const auto add = [&](const char* name, const char* help, auto run) {
    Flags* flags = root->AddCommand(name, help);
    commands->push_back({flags, run});
    return flags;
  };
  add("ping", "whether the node answers, and how fast", [=] { return Ping(*options); });
  add("status", "what the node is, and what it holds for clients",
      [=] { return ShowStatus(*options); });
  add("tiers", "use of each tier, and of each folder of the ssd tier", [=] {
    return ShowTiers(*options);
  })->Footer(kTiersHelp);
  auto count = std::make_shared<uint64_t>(20);
  Flags* top = add(
      "top", "the blocks in host memory with the highest scores; those on ssd alone are not shown",
      [=] { return ShowTop(*options, *count); });
  top->AddUint("--count", count.get(), "how many", 1, 1000);
  auto key = std::make_shared<std::string>();
  Flags* locate = add("locate", "where a block is; exit code 1 where it is not",
                      [=] { return ShowLocation(*options, *key); });
  locate->AddString("KEY", key.get(), "as 'top' prints it: <16 hex>:<64 hex>:<shard>");
  locate->Required();
}

}  // namespace terrace::ctl
