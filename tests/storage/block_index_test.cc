#include "storage/block_index.h"

#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

using enum BlockPhase;
using enum BlockOutcome;

BlockKey KeyOf(uint64_t number, uint64_t ns = 1) {
  BlockKey key;
  key.ns.value = ns;
  const uint64_t mixed = number * 0x9e3779b97f4a7c15;
  std::memcpy(key.digest.bytes.data(), &mixed, 8);
  std::memcpy(key.digest.bytes.data() + 8, &number, 8);
  return key;
}

// --- the state word

struct Row {
  BlockState state;
  BlockEvent event;
  BlockTransition expected;
};

// The table of block_index.h, written a second time.
std::vector<Row> Table() {
  constexpr uint32_t kMany = 5;
  const BlockState free{kFree, 0}, reserved{kReserved, 0}, idle{kResident, 0}, one{kResident, 1},
      many{kResident, kMany}, gone{kRetired, 0}, last{kRetired, 1}, dying{kRetired, kMany};
  const auto columns = {free, reserved, idle, one, many, gone, last, dying};
  struct Line {
    BlockEvent event;
    std::vector<std::pair<BlockOutcome, BlockState>> cells;  // state ignored unless kDone, kLast
  };
  const std::pair<BlockOutcome, BlockState> no{kRefused, {}}, bug{kImpossible, {}};
  const auto to = [](BlockPhase phase, uint32_t n) {
    return std::pair(kDone, BlockState{phase, n});
  };
  const std::pair<BlockOutcome, BlockState> out{kLast, gone};
  const std::vector<Line> lines = {
      {BlockEvent::kReserve, {to(kReserved, 0), bug, bug, bug, bug, bug, bug, bug}},
      {BlockEvent::kPublish,
       {bug, to(kResident, 0), bug, bug, bug, bug, out, to(kRetired, kMany - 1)}},
      {BlockEvent::kAbort, {bug, out, bug, bug, bug, bug, out, to(kRetired, kMany - 1)}},
      {BlockEvent::kAcquire,
       {no, no, to(kResident, 1), to(kResident, 2), to(kResident, kMany + 1), no, no, no}},
      {BlockEvent::kRelease,
       {bug, bug, bug, to(kResident, 0), to(kResident, kMany - 1), bug, out,
        to(kRetired, kMany - 1)}},
      {BlockEvent::kRetire, {no, no, out, no, no, no, no, no}},
      {BlockEvent::kForget,
       {no, to(kRetired, 1), out, to(kRetired, 1), to(kRetired, kMany), no, no, no}},
      {BlockEvent::kReclaim, {bug, bug, bug, bug, bug, to(kFree, 0), bug, bug}},
  };
  std::vector<Row> rows;
  for (const Line& line : lines) {
    auto cell = line.cells.begin();
    for (const BlockState& state : columns) {
      const bool moves = cell->first == kDone || cell->first == kLast;
      rows.push_back({state, line.event, {moves ? cell->second : state, cell->first}});
      ++cell;
    }
  }
  return rows;
}

TEST(BlockState, EveryPairOfStateAndEventIsAsTheTableSays) {
  const std::vector<Row> rows = Table();
  EXPECT_EQ(rows.size(), 8 * 8);
  for (const Row& row : rows) {
    EXPECT_EQ(Next(row.state, row.event), row.expected)
        << "phase " << int(row.state.phase) << ", references " << row.state.references << ", event "
        << int(row.event);
  }
}

TEST(BlockState, ReferencesDoNotOverflow) {
  const BlockState full{kResident, UINT32_MAX};
  EXPECT_EQ(Next(full, BlockEvent::kAcquire), (BlockTransition{full, kRefused}));
}

TEST(BlockStateWord, HoldsWhatTheTableSays) {
  BlockStateWord word;
  EXPECT_EQ(word.Load(), BlockState{});
  EXPECT_EQ(word.Apply(BlockEvent::kReserve).second, kDone);
  EXPECT_EQ(word.Apply(BlockEvent::kPublish).first, (BlockState{kReserved, 0}));
  EXPECT_EQ(word.Apply(BlockEvent::kAcquire).second, kDone);
  EXPECT_EQ(word.Apply(BlockEvent::kRetire).second, kRefused);
  EXPECT_EQ(word.Load(), (BlockState{kResident, 1}));
  EXPECT_EQ(word.Apply(BlockEvent::kForget).second, kDone);
  EXPECT_EQ(word.Apply(BlockEvent::kAcquire).second, kRefused);
  EXPECT_EQ(word.Apply(BlockEvent::kRelease).second, kLast);
  EXPECT_EQ(word.Apply(BlockEvent::kReclaim).second, kDone);
  EXPECT_EQ(word.Load(), BlockState{});
}

TEST(BlockStateWordDeathTest, AReleaseTooManyAborts) {
  BlockStateWord word;
  word.Apply(BlockEvent::kReserve);
  word.Apply(BlockEvent::kPublish);
  EXPECT_DEATH(word.Apply(BlockEvent::kRelease), "");
}

TEST(BlockStateWord, ExactlyOneThreadIsTheLast) {
  for (int round = 0; round < 200; ++round) {
    BlockStateWord word;
    word.Apply(BlockEvent::kReserve);
    word.Apply(BlockEvent::kPublish);
    std::atomic<int> last{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        const bool acquired = word.Apply(BlockEvent::kAcquire).second == kDone;
        if (t == 0) last += word.Apply(BlockEvent::kForget).second == kLast;
        if (acquired) last += word.Apply(BlockEvent::kRelease).second == kLast;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(last, 1);
    EXPECT_EQ(word.Load(), (BlockState{kRetired, 0}));
  }
}

// --- the index

class BlockIndexTest : public testing::Test {
 protected:
  BlockEntry* Add(const BlockKey& key) {
    BlockEntry* entry = pool_.Take();
    entry->key = key;
    EXPECT_TRUE(index_.Insert(entry));
    return entry;
  }
  bool Has(const BlockKey& key) {
    return index_.Visit(key, [](BlockEntry&) {});
  }

  EntryPool pool_;
  BlockIndex index_;
};

TEST_F(BlockIndexTest, FindsByTheWholeKey) {
  BlockKey other_shard = KeyOf(1);
  other_shard.shard = 3;
  BlockKey last_byte = KeyOf(1);
  last_byte.digest.bytes[31] = 1;
  std::map<BlockEntry*, BlockKey> entries;
  for (const BlockKey& key : {KeyOf(1), KeyOf(1, 2), other_shard, last_byte}) {
    entries[Add(key)] = key;
  }
  EXPECT_EQ(entries.size(), 4);
  for (const auto& added : entries) {
    EXPECT_TRUE(
        index_.Visit(added.second, [&](BlockEntry& found) { EXPECT_EQ(&found, added.first); }));
  }
  EXPECT_FALSE(Has(KeyOf(2)));
}

TEST_F(BlockIndexTest, AKeyIsThereOnce) {
  Add(KeyOf(1));
  BlockEntry second;
  second.key = KeyOf(1);
  EXPECT_FALSE(index_.Insert(&second));
}

TEST_F(BlockIndexTest, ErasesOnCondition) {
  Add(KeyOf(1));
  EXPECT_FALSE(index_.EraseIf(KeyOf(1), [](BlockEntry&) { return false; }));
  EXPECT_TRUE(Has(KeyOf(1)));
  EXPECT_TRUE(index_.EraseIf(KeyOf(1), [](BlockEntry&) { return true; }));
  EXPECT_FALSE(Has(KeyOf(1)));
  EXPECT_FALSE(index_.EraseIf(KeyOf(1), [](BlockEntry&) { return true; }));
}

TEST_F(BlockIndexTest, SweepsBlocksOfOneNamespace) {
  for (uint64_t i = 0; i < 1000; ++i) Add(KeyOf(i, i % 2));
  int seen = 0;
  for (size_t shard = 0; shard < BlockIndex::kShards; ++shard) {
    index_.SweepShard(shard, [&](BlockEntry& entry) { return entry.key.ns.value == 1; });
    index_.VisitShard(shard, [&](const BlockEntry& entry) {
      ++seen;
      EXPECT_EQ(entry.key.ns.value, 0);
    });
  }
  EXPECT_EQ(seen, 500);
}

// A peer chooses its digests: equal first bytes must neither confuse nor slow the index.
TEST_F(BlockIndexTest, KeysThatCollideInTheirFirstBytes) {
  constexpr uint64_t kKeys = 50'000;
  const auto colliding = [](uint64_t number) {
    BlockKey key;
    key.ns.value = 1;
    std::memcpy(key.digest.bytes.data() + 24, &number, 8);
    return key;
  };
  for (uint64_t i = 0; i < kKeys; ++i) Add(colliding(i));
  for (uint64_t i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(index_.Visit(colliding(i), [&](BlockEntry& e) { EXPECT_EQ(e.key, colliding(i)); }));
    if (i % 2 == 0) {
      ASSERT_TRUE(index_.EraseIf(colliding(i), [](BlockEntry&) { return true; }));
    }
  }
  for (uint64_t i = 0; i < kKeys; ++i) ASSERT_EQ(Has(colliding(i)), i % 2 == 1);
}

TEST(EntryPool, ReusesEntries) {
  EntryPool pool;
  BlockEntry* entry = pool.Take();
  const uint64_t bytes = pool.bytes();
  pool.Give(entry);
  EXPECT_EQ(pool.Take(), entry);
  EXPECT_EQ(pool.bytes(), bytes);
}

}  // namespace
}  // namespace terrace
