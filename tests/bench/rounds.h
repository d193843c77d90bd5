// How speed is judged: contenders run in turn, round by round, so that whatever the machine does
// meanwhile falls on all of them; each round gives one ratio; the row reports the median ratio
// with a distribution-free interval.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::bench {

struct Measurement {
  double value = 0;         // GB/s, or microseconds
  double cpu_s_per_GB = 0;  // both sides together; 0 where it has no meaning
};

struct Contender {
  std::string name;
  // One round's worth of work, a tenth of a second or more.
  std::function<absl::StatusOr<Measurement>()> run;
};

struct Row {
  std::string name;
  std::string unit;  // "GB/s": more is better; "us": less is better
  Contender terrace, limit;
  std::optional<Contender> peer;
  std::optional<double> bar;       // least ratio to the limit
  std::optional<double> peer_bar;  // least ratio to the peer
  std::optional<double> most;      // for "us": the value itself must not exceed this
  std::optional<double> cpu_bar;   // the peer's processor time per byte is this many times ours
};

enum class Verdict { kNone, kPass, kFail, kUndecided };
const char* ToString(Verdict verdict);

struct Interval {
  double median = 0, low = 0, high = 0;
};

// The median of `samples` and its 90 % interval from order statistics: with n samples the k-th
// smallest and the k-th largest, k the largest rank with P(Binomial(n, 1/2) < k) <= 5 %
// (Conover, Practical Nonparametric Statistics, 3.2). `samples` is not empty.
Interval MedianInterval(std::vector<double> samples);

// Against "at least `bar`": pass and fail need the whole interval on one side.
Verdict JudgeAtLeast(const Interval& interval, double bar);

struct RowResult {
  std::string name, unit;
  Interval value;    // of Terrace
  double limit = 0;  // median of the limit
  Interval ratio;    // Terrace ÷ limit in speed: 1 is as fast as the limit
  std::string peer;  // its name, or empty
  Interval peer_ratio;
  double cpu_s_per_GB = 0;
  double peer_cpu_s_per_GB = 0;
  Interval cpu_ratio;                // peer ÷ Terrace; all zero where it has no meaning
  Verdict verdict = Verdict::kNone;  // the worst of the row's bars
  int rounds = 0;
};

// One warm-up of each contender, then `rounds` rounds. The order within a round rotates.
// Cancelled once `stop`, where given, is true.
absl::StatusOr<RowResult> RunRow(const Row& row, int rounds,
                                 const std::atomic<bool>* stop = nullptr);

}  // namespace terrace::bench
