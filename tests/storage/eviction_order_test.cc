#include "storage/eviction_order.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "storage/frequency.h"

namespace terrace {
namespace {

std::unique_ptr<Ranked> Block(double score, uint32_t depth = 0) {
  auto block = std::make_unique<Ranked>();
  block->score = score;
  block->depth = depth;
  return block;
}

TEST(EvictionOrder, LowestScoreThenDeepest) {
  EvictionOrder order;
  EXPECT_EQ(order.First(), nullptr);
  const auto root = Block(1, 0), leaf = Block(1, 7), cold = Block(0.5, 3);
  for (const auto* block : {&root, &leaf, &cold}) order.Insert(block->get());
  for (const auto* block : {&cold, &leaf, &root}) {
    EXPECT_EQ(order.First(), block->get());
    order.Remove(block->get());
    EXPECT_EQ((*block)->position, Ranked::kNotOrdered);
  }
  EXPECT_TRUE(order.empty());
}

TEST(EvictionOrder, SeesScoresThatRoseSinceTheyWereInserted) {
  EvictionOrder order;
  const auto a = Block(1), b = Block(2), c = Block(3);
  for (const auto* block : {&a, &b, &c}) order.Insert(block->get());
  a->score = 10;
  b->score = 2.5;
  EXPECT_EQ(order.First(), b.get());
  b->score = 11;
  EXPECT_EQ(order.First(), c.get());
  order.Remove(c.get());
  EXPECT_EQ(order.First(), a.get());
}

// Against a plain sorted list, under random uses, insertions and removals from the middle.
TEST(EvictionOrder, IsExact) {
  std::mt19937 random(7);
  EvictionOrder order;
  std::vector<std::unique_ptr<Ranked>> blocks;
  double moment = 0;
  for (int step = 0; step < 20'000; ++step) {
    moment += 0.001;
    const uint32_t dice = random() % 10;
    if (blocks.size() < 50 || dice < 3) {
      blocks.push_back(Block(moment, random() % 100));
      order.Insert(blocks.back().get());
    } else if (dice < 7) {
      Ranked& used = *blocks[random() % blocks.size()];
      used.score = AddUse(used.score, moment);
    } else {
      const bool first = dice == 7;
      const auto lowest = std::ranges::min_element(
          blocks, [](const auto& a, const auto& b) { return GivenUpBefore(a->rank(), b->rank()); });
      const auto victim = first ? lowest : blocks.begin() + random() % blocks.size();
      if (first) {
        // Two blocks may tie in score and depth.
        ASSERT_FALSE(GivenUpBefore((*lowest)->rank(), order.First()->rank()));
      }
      order.Remove(victim->get());
      blocks.erase(victim);
    }
    ASSERT_EQ(order.size(), blocks.size());
  }
}

}  // namespace
}  // namespace terrace
