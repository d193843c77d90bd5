// The judge is judged: figures that are known give verdicts that are known.
#include "tests/bench/rounds.h"

#include <random>

#include "gtest/gtest.h"

namespace terrace::bench {
namespace {

TEST(MedianInterval, RanksFollowTheBinomial) {
  std::vector<double> samples;
  for (int i = 1; i <= 31; ++i) samples.push_back(i);
  const Interval interval = MedianInterval(samples);
  EXPECT_EQ(interval.median, 16);
  EXPECT_EQ(interval.low, 11);  // P(Binomial(31, 1/2) < 11) = 3.5 %, < 12: 7.5 %
  EXPECT_EQ(interval.high, 21);
  EXPECT_EQ(MedianInterval({3}).low, 3);
  EXPECT_EQ(MedianInterval({1, 2}).median, 1.5);
}

TEST(MedianInterval, CoversTheMedianNineTimesInTen) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> skewed(0, 1);  // its median is 1
  int covered = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::vector<double> samples(31);
    for (double& s : samples) s = skewed(random);
    const Interval interval = MedianInterval(samples);
    if (interval.low <= 1 && 1 <= interval.high) ++covered;
  }
  EXPECT_GE(covered, 3600);
}

TEST(Judge, NeedsTheWholeIntervalOnOneSide) {
  EXPECT_EQ(JudgeAtLeast({.90, .86, .95}, .85), Verdict::kPass);
  EXPECT_EQ(JudgeAtLeast({.90, .84, .95}, .85), Verdict::kUndecided);
  EXPECT_EQ(JudgeAtLeast({.80, .70, .84}, .85), Verdict::kFail);
}

Contender Fixed(double value, double cpu = 1) {
  return {"fixed", [=]() -> absl::StatusOr<Measurement> { return Measurement{value, cpu}; }};
}

TEST(RunRow, RatiosMeanSpeedInBothUnits) {
  auto faster = RunRow({"r", "GB/s", Fixed(3), Fixed(4), Fixed(2), .7, 1.0, {}, {}}, 5);
  ASSERT_TRUE(faster.ok());
  EXPECT_DOUBLE_EQ(faster->ratio.median, .75);
  EXPECT_DOUBLE_EQ(faster->peer_ratio.median, 1.5);
  EXPECT_EQ(faster->verdict, Verdict::kPass);
  auto latency = RunRow({"r", "us", Fixed(200), Fixed(100), {}, {}, {}, 150.0, {}}, 5);
  ASSERT_TRUE(latency.ok());
  EXPECT_DOUBLE_EQ(latency->ratio.median, .5);
  EXPECT_EQ(latency->verdict, Verdict::kFail);
}

TEST(RunRow, ProcessorTimeIsJudgedLikeSpeed) {
  const auto run = [](double own, double peer) {
    return RunRow({"r", "GB/s", Fixed(3, own), Fixed(3), Fixed(1, peer), .8, 2.0, {}, 4.0}, 5);
  };
  auto frugal = run(.1, .5);
  ASSERT_TRUE(frugal.ok());
  EXPECT_DOUBLE_EQ(frugal->peer_cpu_s_per_GB, .5);
  EXPECT_DOUBLE_EQ(frugal->cpu_ratio.median, 5);
  EXPECT_EQ(frugal->verdict, Verdict::kPass);
  EXPECT_EQ(run(.1, .3)->verdict, Verdict::kFail);
  // Nothing was measured: nothing is passed.
  EXPECT_EQ(run(0, .5)->verdict, Verdict::kFail);
}

TEST(RunRow, AnInterruptionEndsTheRow) {
  const std::atomic<bool> stop = true;
  const auto row = RunRow({"r", "GB/s", Fixed(1), Fixed(1), {}, {}, {}, {}, {}}, 3, &stop);
  EXPECT_TRUE(absl::IsCancelled(row.status()));
}

TEST(RunRow, AnErrorEndsTheRow) {
  Contender broken{"broken", []() -> absl::StatusOr<Measurement> {
                     return absl::UnavailableError("no such peer");
                   }};
  EXPECT_FALSE(RunRow({"r", "GB/s", Fixed(1), broken, {}, {}, {}, {}, {}}, 3).ok());
}

}  // namespace
}  // namespace terrace::bench
