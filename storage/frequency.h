// How often and how lately a block was used, as one number. A use at moment x is worth 2^x, and
// moments grow by one per half-life, so S = log2 of the sum of a block's uses needs no ageing:
// what is not used keeps its score while the present moves on. Scores only ever rise.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace terrace {

// The score of what was never used: the neutral element of LogSum.
constexpr double kNoScore = -std::numeric_limits<double>::infinity();

// log2(2^a + 2^b), without leaving the log domain.
inline double LogSum(double a, double b) {
  const double high = std::max(a, b);
  if (high == kNoScore) return kNoScore;
  return high + std::log2(1 + std::exp2(std::min(a, b) - high));
}

// The score after one more use.
inline double AddUse(double score, double moment) { return LogSum(score, moment); }

// The policy's time. It counts block uses, not seconds, so that a trace gives the same decisions
// at any speed: one turnover is as many uses as the tier holds blocks, and the clock moves by 1
// in `half_life` turnovers. It runs in the unit of the scores, so that another capacity changes
// its speed from now on and leaves every score comparable. Thread-safe.
class DecayClock {
 public:
  // `half_life` > 0, in turnovers.
  explicit DecayClock(double half_life) : half_life_(half_life) {}

  // Blocks that the tier holds when full; at least 1 is assumed.
  void SetCapacity(double blocks) {
    step_.store(1 / (half_life_ * std::max(blocks, 1.0)), std::memory_order_relaxed);
  }
  // Goes on where an earlier clock stopped. Before the first use.
  void Resume(double now) { now_.store(now, std::memory_order_relaxed); }
  void CountUses(uint64_t uses) {
    now_.fetch_add(static_cast<double>(uses) * step_.load(std::memory_order_relaxed),
                   std::memory_order_relaxed);
  }

  // The moment of a use made now. Moments are steps of 1/64 half-life: uses that one request
  // spreads over several calls mostly share one, so that a chain's parents do not fall behind
  // its children by a few ticks of the clock.
  double Moment() const { return std::floor(Now() * kMomentsPerHalfLife) / kMomentsPerHalfLife; }
  double Now() const { return now_.load(std::memory_order_relaxed); }
  double Turnovers() const { return Now() * half_life_; }

 private:
  static constexpr double kMomentsPerHalfLife = 64;

  const double half_life_;
  std::atomic<double> now_{0};
  std::atomic<double> step_{0};
};

// Remembers the scores of evicted blocks, so that a block which returns continues where it was
// instead of starting as a stranger. Bounded: where it is full, the lowest score goes, and with it
// all that are no higher, everywhere. So a chain is forgotten from its end, never a parent before
// its child, which would then outrank it. A chance agreement of two hashes (1 in 2^28) only lends
// one block the other's score. The caller's lock.
class GhostTable {
 public:
  // Room for at least `blocks` ghosts, at 14 to 27 bytes each. Growing forgets them all: it
  // happens while a tier fills for the first time, before anything was evicted.
  void Reserve(uint64_t blocks);

  void Remember(uint64_t hash, double score);
  // The score remembered for `hash`, which is forgotten by this; kNoScore when there is none.
  double Recall(uint64_t hash);

  uint64_t bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t tag = 0;
    float score = 0;
  };
  static constexpr size_t kBucketSlots = 8;  // one cache line
  static constexpr float kNothing = -std::numeric_limits<float>::infinity();
  using Bucket = std::span<Slot, kBucketSlots>;

  // A ghost is in one of two buckets; the choice between them lets most of the slots be filled.
  Bucket BucketAt(uint64_t hash);
  Slot* Find(uint64_t hash);
  Slot* Lowest(Bucket bucket);
  static uint64_t SecondHash(uint64_t hash) { return hash * 0x9e3779b97f4a7c15; }

  std::vector<Slot> slots_;
  float horizon_ = kNothing;  // ghosts up to this score are forgotten
};

}  // namespace terrace
