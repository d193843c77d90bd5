// The order in which the blocks of one size class are given up: lowest score first, and of equal
// scores the deeper block, since a chain is worth nothing without its front.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/tier_policy.h"

namespace terrace {

// What the order needs of a block; blocks derive from it.
struct Ranked {
  static constexpr uint32_t kNotOrdered = UINT32_MAX;

  std::atomic<double> score{0};     // may rise at any time, from any thread; never falls
  uint32_t depth = 0;               // constant while ordered
  uint32_t position = kNotOrdered;  // owned by the order

  Rank rank() const { return {score.load(std::memory_order_relaxed), depth}; }
};

// A heap that does not hear of uses: each item carries the score that its block had when it was
// put there, and First() moves those that have risen since. A use therefore costs no heap work,
// and the order is exact all the same, because scores never fall. The caller's lock; the blocks
// are not owned and stay while they are ordered.
class EvictionOrder {
 public:
  void Insert(Ranked* block);  // not in any order
  void Remove(Ranked* block);  // in this order
  // The block to give up first, or null. O(log n) per block that has risen since it was seen.
  Ranked* First();

  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  uint64_t bytes() const { return heap_.capacity() * sizeof(Item); }

 private:
  struct Item {
    double score;
    Ranked* block;
  };

  static bool Before(const Item& a, const Item& b) {
    return GivenUpBefore({a.score, a.block->depth}, {b.score, b.block->depth});
  }
  void Place(size_t position, Item item);
  void SiftUp(size_t position, Item item);
  void SiftDown(size_t position, Item item);

  std::vector<Item> heap_;
};

}  // namespace terrace
