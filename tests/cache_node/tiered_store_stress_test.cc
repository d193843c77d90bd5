// Data threads, a mover and a controller on one small store; every byte read is judged.

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "cache_node/tiered_store.h"
#include "gtest/gtest.h"
#include "tests/cache_node/store_test_util.h"

namespace terrace {
namespace {

constexpr uint64_t kKeys = 600;  // several times what fits
constexpr BlockShape kShapes[] = {{4 << 10, 1}, {16 << 10, 4}, {64 << 10, 2}};

BlockShape ShapeOf(uint64_t number) { return kShapes[number % 3]; }

class TieredStoreStress : public testing::Test {
 protected:
  void SetUp() override {
    TieredStoreOptions options;
    options.host_bytes = 8 << 20;
    store_ = TieredStore::Create(options).value();
  }

  void Put(std::mt19937* random, uint64_t number) {
    const BlockShape shape = ShapeOf(number);
    ReserveResult result = ReserveBlock(store_.get(), TestKey(number), shape);
    if (result.outcome != ReserveOutcome::kReserved) return;
    if ((*random)() % 16 == 0) return;  // a writer that gives up
    published_ += WriteAndPublish(std::move(result.reservation), shape);
  }

  // Reads and writes as a data thread does, and keeps some references for a while.
  void DataThread(unsigned seed, int steps) {
    std::mt19937 random(seed);
    std::vector<std::pair<BlockRef, uint64_t>> held;
    for (int step = 0; step < steps; ++step) {
      const uint64_t number = random() % kKeys;
      switch (random() % 4) {
        case 0:
        case 1:
          Put(&random, number);
          break;
        case 2:
          if (BlockRef ref = store_->Acquire(TestKey(number))) {
            held.emplace_back(std::move(ref), number);
          }
          break;
        case 3: {
          const std::vector<BlockKey> keys = {TestKey(number), TestKey(number + 1)};
          std::vector<BlockRef> refs;
          const uint32_t run = store_->Match(keys, true, nullptr, &refs);
          for (uint32_t i = 0; i < run; ++i) wrong_ += !IsIntact(refs[i], keys[i]);
          break;
        }
      }
      if (held.size() > 8) {
        std::swap(held[random() % held.size()], held.back());
        wrong_ += !IsIntact(held.back().first, TestKey(held.back().second));
        held.pop_back();
        ++read_;
      }
    }
  }

  void ControlThread(unsigned seed) {
    std::mt19937 random(seed);
    while (!stop_) {
      const BlockKey key = TestKey(random() % kKeys);
      switch (random() % 5) {
        case 0:
          store_->Evict(key);
          break;
        case 1:
          store_->Forget(key.ns, random() % 20);
          break;
        case 2:
          store_->Touch({&key, 1});
          break;
        case 3:
          store_->Top(5, [](NamespaceId) { return true; });
          break;
        case 4:
          store_->Find(key);
          break;
      }
      std::this_thread::yield();
    }
  }

  std::unique_ptr<TieredStore> store_;
  std::atomic<uint64_t> wrong_{0}, read_{0}, published_{0};
  std::atomic<bool> stop_{false};
};

TEST_F(TieredStoreStress, NeverWrongBytesAndExactCounts) {
  constexpr int kSteps = 20'000;
  std::vector<std::thread> background;
  background.emplace_back([this] {
    while (!stop_) {
      store_->Tidy();
      std::this_thread::yield();
    }
  });
  background.emplace_back([this] { ControlThread(99); });
  background.emplace_back([this] {
    while (!stop_) store_->Stats();
  });
  std::vector<std::thread> data;
  for (unsigned t = 0; t < 2; ++t) data.emplace_back([this, t] { DataThread(t + 1, kSteps); });
  for (std::thread& thread : data) thread.join();
  stop_ = true;
  for (std::thread& thread : background) thread.join();

  EXPECT_EQ(wrong_, 0);
  EXPECT_GT(read_, 500);
  const TierStats stats = store_->Stats();
  EXPECT_EQ(stats.referenced_blocks, 0);
  EXPECT_EQ(stats.reserved_bytes, 0);
  EXPECT_EQ(stats.puts, published_);
  EXPECT_GT(stats.evicted_for_space + stats.evicted_watermark + stats.evicted_region_move, 0);
  EXPECT_EQ(store_->Forget({1}, UINT64_MAX).copies(), stats.blocks);
  EXPECT_EQ(store_->Stats().occupied_bytes, 0);
  EXPECT_EQ(store_->Stats().blocks, 0);
}

// All threads at one key: at most one copy, each reader sees a whole block or none.
TEST_F(TieredStoreStress, OneKey) {
  const BlockKey key = TestKey(1);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([this, key, t] {
      std::mt19937 random(t);
      for (int step = 0; step < 5'000; ++step) {
        switch (random() % 4) {
          case 0:
            Put(&random, 1);
            break;
          case 1:
            if (const BlockRef ref = store_->Acquire(key)) wrong_ += !IsIntact(ref, key);
            break;
          case 2:
            store_->Evict(key);
            break;
          case 3:
            store_->Forget(key.ns, 1);
            break;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong_, 0);
  EXPECT_LE(store_->Stats().blocks, 1);
  EXPECT_EQ(store_->Stats().puts, published_);
}

}  // namespace
}  // namespace terrace
