#include "tests/bench/rounds.h"

#include <algorithm>
#include <cmath>

#include "proto/status.h"

namespace terrace::bench {
namespace {

// The largest k with P(Binomial(n, 1/2) < k) <= 5 %, at least 1.
size_t IntervalRank(size_t n) {
  double probability = std::pow(0.5, static_cast<double>(n));  // of exactly j successes
  double below = 0;
  size_t k = 0;
  while (k <= n && below + probability <= 0.05) {
    below += probability;
    probability *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    ++k;
  }
  return std::max<size_t>(k, 1);
}

// How much faster `a` is than `b`, whichever way the unit counts.
double SpeedRatio(const std::string& unit, double a, double b) {
  return unit == "us" ? b / a : a / b;
}

Verdict Worse(Verdict a, Verdict b) {
  // Undecided is worse than pass and better than fail.
  constexpr int kRank[] = {0, 1, 3, 2};
  return kRank[static_cast<int>(a)] >= kRank[static_cast<int>(b)] ? a : b;
}

}  // namespace

const char* ToString(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNone:
      return "";
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "FAIL";
    case Verdict::kUndecided:
      return "undecided";
  }
  return "";
}

Interval MedianInterval(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  const size_t k = IntervalRank(n);
  const double median = n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
  return {median, samples[k - 1], samples[n - k]};
}

Verdict JudgeAtLeast(const Interval& interval, double bar) {
  if (interval.low >= bar) return Verdict::kPass;
  if (interval.high < bar) return Verdict::kFail;
  return Verdict::kUndecided;
}

absl::StatusOr<RowResult> RunRow(const Row& row, int rounds) {
  std::vector<const Contender*> contenders = {&row.terrace, &row.limit};
  if (row.peer) contenders.push_back(&*row.peer);
  for (const Contender* contender : contenders) {
    TERRACE_RETURN_IF_ERROR(contender->run().status());
  }
  std::vector<double> values, limits, ratios, peer_ratios, cpu;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Measurement> measured(contenders.size());
    for (size_t i = 0; i < contenders.size(); ++i) {
      // Forwards and backwards, so that nobody always comes after the same one.
      const size_t step = round % 2 == 0 ? i : contenders.size() - 1 - i;
      const size_t turn = (step + static_cast<size_t>(round) / 2) % contenders.size();
      TERRACE_ASSIGN_OR_RETURN(measured[turn], contenders[turn]->run());
    }
    values.push_back(measured[0].value);
    limits.push_back(measured[1].value);
    cpu.push_back(measured[0].cpu_s_per_GB);
    ratios.push_back(SpeedRatio(row.unit, measured[0].value, measured[1].value));
    if (row.peer) {
      peer_ratios.push_back(SpeedRatio(row.unit, measured[0].value, measured[2].value));
    }
  }
  RowResult result{.name = row.name, .unit = row.unit};
  result.value = MedianInterval(values);
  result.limit = MedianInterval(limits).median;
  result.ratio = MedianInterval(ratios);
  result.cpu_s_per_GB = MedianInterval(cpu).median;
  result.rounds = rounds;
  if (row.bar) result.verdict = JudgeAtLeast(result.ratio, *row.bar);
  if (row.peer) {
    result.peer = row.peer->name;
    result.peer_ratio = MedianInterval(peer_ratios);
    if (row.peer_bar) {
      result.verdict = Worse(result.verdict, JudgeAtLeast(result.peer_ratio, *row.peer_bar));
    }
  }
  if (row.most) {
    const Interval negated{-result.value.median, -result.value.high, -result.value.low};
    result.verdict = Worse(result.verdict, JudgeAtLeast(negated, -*row.most));
  }
  return result;
}

}  // namespace terrace::bench
