// What the benchmark prints: a table for people as rows finish, one JSON object for programs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/bench/rounds.h"

namespace terrace::bench {

void PrintHeading(int rounds);
void PrintRow(const RowResult& row);
// How many rows passed, failed and stayed undecided, and the load average.
void PrintSummary(const std::vector<RowResult>& rows);

// {"rows": [{"name", "value", "unit", "limit", "ratio", "ratio_low", "ratio_high", "peer",
// "peer_ratio", "cpu_s_per_GB", …}]}; names and units as in the table.
absl::Status WriteJson(const std::string& path, const std::vector<RowResult>& rows);

// The load averages of the last 1, 5 and 15 minutes, as the kernel prints them.
std::string LoadAverage();

}  // namespace terrace::bench
