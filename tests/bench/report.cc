#include "tests/bench/report.h"

#include <algorithm>
#include <fstream>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace terrace::bench {

std::string LoadAverage() {
  std::ifstream file("/proc/loadavg");
  std::string one, five, fifteen;
  file >> one >> five >> fifteen;
  return fmt::format("{} {} {}", one, five, fifteen);
}

void PrintHeading(int rounds) {
  fmt::print("{} rounds a row, contenders in turn; load average {}\n\n", rounds, LoadAverage());
  fmt::print("{:<22} {:>10} {:>10}  {:>6} {:<15} {:>7} {:<15} {:>8} {:>6}  {}\n", "row", "terrace",
             "limit", "ratio", "90 % interval", "÷ peer", "90 % interval", "CPU s/GB", "peer's",
             "verdict");
}

void PrintRow(const RowResult& row) {
  const auto interval = [](const Interval& i) {
    return fmt::format("{:.3f}–{:.3f}", i.low, i.high);
  };
  const auto cpu = [](double seconds) {
    return seconds > 0 ? fmt::format("{:.2f}", seconds) : std::string();
  };
  fmt::print("{:<22} {:>5.2f} {:<4} {:>5.2f} {:<4}  {:>6.3f} {:<15} {:>7} {:<15} {:>8} {:>6}  {}\n",
             row.name, row.value.median, row.unit, row.limit, row.unit, row.ratio.median,
             interval(row.ratio),
             row.peer.empty() ? "" : fmt::format("{:.3f}", row.peer_ratio.median),
             row.peer.empty() ? "" : interval(row.peer_ratio), cpu(row.cpu_s_per_GB),
             cpu(row.peer_cpu_s_per_GB), ToString(row.verdict));
  std::fflush(stdout);
}

void PrintSummary(const std::vector<RowResult>& rows) {
  const auto count = [&](Verdict verdict) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const RowResult& row) { return row.verdict == verdict; });
  };
  fmt::print("\n{} pass, {} fail, {} undecided, {} without a bar; load average {}\n",
             count(Verdict::kPass), count(Verdict::kFail), count(Verdict::kUndecided),
             count(Verdict::kNone), LoadAverage());
}

absl::Status WriteJson(const std::string& path, const std::vector<RowResult>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const RowResult& row : rows) {
    nlohmann::json entry = {{"name", row.name},
                            {"value", row.value.median},
                            {"unit", row.unit},
                            {"limit", row.limit},
                            {"ratio", row.ratio.median},
                            {"ratio_low", row.ratio.low},
                            {"ratio_high", row.ratio.high},
                            {"peer", row.peer},
                            {"peer_ratio", nullptr},
                            {"cpu_s_per_GB", row.cpu_s_per_GB},
                            {"rounds", row.rounds},
                            {"verdict", ToString(row.verdict)}};
    if (!row.peer.empty()) {
      entry["peer_ratio"] = row.peer_ratio.median;
      entry["peer_ratio_low"] = row.peer_ratio.low;
      entry["peer_ratio_high"] = row.peer_ratio.high;
      entry["peer_cpu_s_per_GB"] = row.peer_cpu_s_per_GB;
      entry["cpu_ratio"] = row.cpu_ratio.median;
      entry["cpu_ratio_low"] = row.cpu_ratio.low;
      entry["cpu_ratio_high"] = row.cpu_ratio.high;
    }
    list.push_back(std::move(entry));
  }
  std::ofstream file(path);
  file << nlohmann::json{{"rows", list}, {"load_average", LoadAverage()}}.dump(2) << "\n";
  file.close();
  if (!file) return absl::UnavailableError(fmt::format("--json: cannot write {}", path));
  return absl::OkStatus();
}

}  // namespace terrace::bench
