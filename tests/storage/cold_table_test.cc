#include "storage/cold_table.h"

#include <algorithm>
#include <map>
#include <random>

#include "gtest/gtest.h"

namespace terrace {
namespace {

BlockKey KeyOf(uint64_t number) {
  BlockKey key{NamespaceId{1}};
  std::memcpy(key.digest.bytes.data(), &number, sizeof(number));
  return key;
}

ColdTable::Index Add(ColdTable* table, uint64_t number, float score, uint16_t depth = 0) {
  const ColdTable::Index index = table->Insert(table->Fingerprint(KeyOf(number)));
  (*table)[index].number = static_cast<uint32_t>(number);
  (*table)[index].score = score;
  (*table)[index].depth = depth;
  table->Publish(index);
  return index;
}

TEST(ColdTable, FingerprintsDependOnAllOfTheKeyAndOnTheSeed) {
  ChunkStock stock;
  const ColdTable table(1, &stock), other(2, &stock);
  const BlockKey key = KeyOf(5);
  EXPECT_EQ(table.Fingerprint(key), ColdTable(1, &stock).Fingerprint(key));
  EXPECT_NE(table.Fingerprint(key), other.Fingerprint(key));
  BlockKey shard = key, ns = key, digest = key;
  shard.shard = 1;
  ns.ns.value = 2;
  digest.digest.bytes[31] = 1;
  for (const BlockKey& changed : {shard, ns, digest}) {
    EXPECT_NE(table.Fingerprint(key), table.Fingerprint(changed));
  }
}

TEST(ColdTable, FindsWhatIsInItAndNothingElse) {
  ChunkStock stock;
  ColdTable table(3, &stock);
  std::mt19937_64 random(1);
  std::map<uint64_t, ColdTable::Index> model;
  for (int step = 0; step < 200'000; ++step) {
    const uint64_t number = random() % 50'000;
    const uint64_t fingerprint = table.Fingerprint(KeyOf(number));
    const auto known = model.find(number);
    ASSERT_EQ(table.Find(fingerprint), known == model.end() ? ColdTable::kNone : known->second);
    if (known == model.end()) {
      model[number] = Add(&table, number, 0);
    } else if (random() % 2 == 0) {
      table.BeginLeaving(known->second);
      table.Erase(known->second);
      model.erase(known);
    }
  }
  EXPECT_EQ(table.size(), model.size());
  EXPECT_EQ(table.here(), model.size());
}

TEST(ColdTable, LowestScoreFirstThenDeeper) {
  ChunkStock stock;
  ColdTable table(3, &stock);
  std::mt19937_64 random(2);
  std::vector<ColdTable::Index> all;
  for (uint64_t i = 0; i < 5000; ++i) all.push_back(Add(&table, i, random() % 100, random() % 8));
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 300; ++i) {  // some rise, some leave and stay
      const ColdTable::Index index = all[random() % all.size()];
      table.SetScore(index, table[index].score + random() % 50);
      if (i % 3 == 0) {
        table.BeginLeaving(index);
        table.Stay(index);
      }
    }
    std::vector<std::pair<float, int>> expected, seen;
    for (const ColdTable::Index index : all) {
      expected.emplace_back(table[index].score, -int{table[index].depth});
    }
    std::ranges::sort(expected);
    expected.resize(200);
    for (const ColdTable::Index index : table.First(200)) {
      seen.emplace_back(table[index].score, -int{table[index].depth});
    }
    ASSERT_EQ(seen, expected);
  }
}

TEST(ColdTable, WhatIsWrittenOrLeavesIsNotInTheOrder) {
  ChunkStock stock;
  ColdTable table(3, &stock);
  const ColdTable::Index writing = table.Insert(table.Fingerprint(KeyOf(1)));
  EXPECT_TRUE(table.First(10).empty());
  table.Publish(writing);
  EXPECT_EQ(table.First(10).size(), 1);
  table.BeginLeaving(writing);
  EXPECT_TRUE(table.First(10).empty());
}

TEST(ColdTable, AtMost48BytesPerBlock) {
  ChunkStock stock;
  ColdTable table(3, &stock);
  constexpr uint64_t kBlocks = 1'000'000;
  for (uint64_t i = 0; i < kBlocks; ++i) Add(&table, i, static_cast<float>(i % 1000));
  EXPECT_LE(table.bytes(), 48 * kBlocks + (6 << 20));
}

}  // namespace
}  // namespace terrace
