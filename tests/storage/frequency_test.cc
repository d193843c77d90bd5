#include "storage/frequency.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"

namespace terrace {
namespace {

uint64_t Hash(uint64_t number) {  // splitmix64
  number += 0x9e3779b97f4a7c15;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

TEST(LogSum, IsTheLogarithmOfTheSum) {
  EXPECT_DOUBLE_EQ(LogSum(3, 3), 4);
  EXPECT_DOUBLE_EQ(LogSum(0, 1), std::log2(3));
  EXPECT_DOUBLE_EQ(LogSum(1, 0), std::log2(3));
  EXPECT_EQ(LogSum(kNoScore, 5), 5);
  EXPECT_EQ(LogSum(5, kNoScore), 5);
  EXPECT_EQ(LogSum(kNoScore, kNoScore), kNoScore);
}

TEST(LogSum, StaysFiniteFarFromZero) {
  EXPECT_DOUBLE_EQ(LogSum(1e6, 1e6), 1e6 + 1);
  EXPECT_DOUBLE_EQ(LogSum(1e6, -1e6), 1e6);
}

TEST(AddUse, NeverLowersAScoreAndKeepsOrder) {
  double parent = 0, child = 0;
  for (int i = 1; i < 10'000; ++i) {
    const double moment = i * 0.013;
    const double before = parent;
    parent = AddUse(parent, moment);
    EXPECT_GE(parent, before);
    if (i % 3 == 0) child = AddUse(child, moment);
    ASSERT_GE(parent, child);
  }
}

TEST(AddUse, TwoOldUsesAreWorthOneAHalfLifeLater) {
  EXPECT_DOUBLE_EQ(AddUse(AddUse(kNoScore, 4), 4), AddUse(kNoScore, 5));
}

TEST(DecayClock, MovesByOneInAHalfLifeOfTurnovers) {
  DecayClock clock(2);
  clock.SetCapacity(100);
  clock.CountUses(200);
  EXPECT_DOUBLE_EQ(clock.Now(), 1);
  EXPECT_DOUBLE_EQ(clock.Turnovers(), 2);
}

TEST(DecayClock, AnotherCapacityChangesItsSpeedFromNowOn) {
  DecayClock clock(1);
  clock.SetCapacity(10);
  clock.CountUses(30);
  clock.SetCapacity(1000);
  EXPECT_DOUBLE_EQ(clock.Now(), 3);
  clock.CountUses(1000);
  EXPECT_DOUBLE_EQ(clock.Now(), 4);
}

TEST(DecayClock, MomentsAreCoarseAndNeverAhead) {
  DecayClock clock(1);
  clock.SetCapacity(640);
  double last = 0;
  int moments = 0;
  for (int use = 0; use < 640; ++use) {
    clock.CountUses(1);
    EXPECT_LE(clock.Moment(), clock.Now());
    EXPECT_GT(clock.Moment(), clock.Now() - 1.0 / 63);
    if (clock.Moment() != last) ++moments;
    last = clock.Moment();
  }
  EXPECT_NEAR(moments, 64, 1);
}

TEST(GhostTable, RecallsOnce) {
  GhostTable ghosts;
  EXPECT_EQ(ghosts.Recall(7), kNoScore);
  ghosts.Remember(7, 1);  // without room nothing is kept
  EXPECT_EQ(ghosts.Recall(7), kNoScore);
  ghosts.Reserve(100);
  ghosts.Remember(7, 2.5);
  ghosts.Remember(7, 3.5);
  EXPECT_EQ(ghosts.Recall(7), 3.5);
  EXPECT_EQ(ghosts.Recall(7), kNoScore);
}

TEST(GhostTable, IsBoundedAndHoldsWhatItPromises) {
  constexpr uint64_t kRoom = 10'000;
  GhostTable ghosts;
  ghosts.Reserve(kRoom);
  const uint64_t bytes = ghosts.bytes();
  EXPECT_LE(bytes, 27 * kRoom);
  for (uint64_t i = 0; i < 5 * kRoom; ++i) ghosts.Remember(Hash(i), static_cast<double>(i));
  EXPECT_EQ(ghosts.bytes(), bytes);
  for (uint64_t i = 4 * kRoom; i < 5 * kRoom; ++i) ASSERT_EQ(ghosts.Recall(Hash(i)), i);
}

// Children are evicted before their parents, with lower scores. A parent that was forgotten while
// its child was remembered would rank below it when both return.
TEST(GhostTable, ForgetsNothingBeforeWhatIsLower) {
  GhostTable ghosts;
  ghosts.Reserve(1000);
  constexpr uint64_t kGhosts = 20'000;
  for (uint64_t i = 0; i < kGhosts; ++i) {
    ghosts.Remember(Hash(i), static_cast<double>(i * 7919 % kGhosts));
  }
  double highest_forgotten = kNoScore, lowest_remembered = kGhosts;
  for (uint64_t i = 0; i < kGhosts; ++i) {
    const auto score = static_cast<double>(i * 7919 % kGhosts);
    const bool remembered = ghosts.Recall(Hash(i)) == score;
    if (remembered) lowest_remembered = std::min(lowest_remembered, score);
    if (!remembered) highest_forgotten = std::max(highest_forgotten, score);
  }
  EXPECT_LT(highest_forgotten, lowest_remembered);
  EXPECT_LT(lowest_remembered, kGhosts - 1000);
}

}  // namespace
}  // namespace terrace
