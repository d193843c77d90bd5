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

struct Samples {
  std::vector<double> values, limits, ratios, cpu, peer_ratios, peer_cpu, cpu_ratios;

  // Of Terrace, the limit, and perhaps a peer.
  void Add(const std::string& unit, const std::vector<Measurement>& round) {
    const Measurement& terrace = round[0];
    values.push_back(terrace.value);
    limits.push_back(round[1].value);
    cpu.push_back(terrace.cpu_s_per_GB);
    ratios.push_back(SpeedRatio(unit, terrace.value, round[1].value));
    if (round.size() < 3) return;
    const Measurement& peer = round[2];
    peer_ratios.push_back(SpeedRatio(unit, terrace.value, peer.value));
    peer_cpu.push_back(peer.cpu_s_per_GB);
    if (terrace.cpu_s_per_GB > 0) cpu_ratios.push_back(peer.cpu_s_per_GB / terrace.cpu_s_per_GB);
  }
};

RowResult Judge(const Row& row, const Samples& samples, int rounds) {
  RowResult result{.name = row.name, .unit = row.unit};
  const auto judge = [&](const Interval& interval, const std::optional<double>& bar) {
    if (bar) result.verdict = Worse(result.verdict, JudgeAtLeast(interval, *bar));
  };
  result.value = MedianInterval(samples.values);
  result.limit = MedianInterval(samples.limits).median;
  result.ratio = MedianInterval(samples.ratios);
  result.cpu_s_per_GB = MedianInterval(samples.cpu).median;
  result.rounds = rounds;
  judge(result.ratio, row.bar);
  if (row.peer) {
    result.peer = row.peer->name;
    result.peer_ratio = MedianInterval(samples.peer_ratios);
    result.peer_cpu_s_per_GB = MedianInterval(samples.peer_cpu).median;
    if (!samples.cpu_ratios.empty()) result.cpu_ratio = MedianInterval(samples.cpu_ratios);
    judge(result.peer_ratio, row.peer_bar);
    judge(result.cpu_ratio, row.cpu_bar);
  }
  if (row.most) {
    judge({-result.value.median, -result.value.high, -result.value.low}, -*row.most);
  }
  return result;
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

absl::StatusOr<RowResult> RunRow(const Row& row, int rounds, const std::atomic<bool>* stop) {
  std::vector<const Contender*> contenders = {&row.terrace, &row.limit};
  if (row.peer) contenders.push_back(&*row.peer);
  const auto run = [&](const Contender* contender) -> absl::StatusOr<Measurement> {
    if (stop != nullptr && stop->load()) return absl::CancelledError("interrupted");
    return contender->run();
  };
  for (const Contender* contender : contenders) {
    TERRACE_RETURN_IF_ERROR(run(contender).status());
  }
  Samples samples;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Measurement> measured(contenders.size());
    for (size_t i = 0; i < contenders.size(); ++i) {
      // Forwards and backwards, so that nobody always comes after the same one.
      const size_t step = round % 2 == 0 ? i : contenders.size() - 1 - i;
      const size_t turn = (step + static_cast<size_t>(round) / 2) % contenders.size();
      TERRACE_ASSIGN_OR_RETURN(measured[turn], run(contenders[turn]));
    }
    samples.Add(row.unit, measured);
  }
  return Judge(row, samples, rounds);
}

}  // namespace terrace::bench
