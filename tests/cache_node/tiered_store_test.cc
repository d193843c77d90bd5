#include "cache_node/tiered_store.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache_node/store_test_util.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
constexpr BlockShape kSmall{64 << 10, 4};
constexpr BlockShape kThird{640 << 10, 2};  // three of them fill 2 MiB

std::unique_ptr<TieredStore> MakeStore(uint64_t bytes) {
  TieredStoreOptions options;
  options.host_bytes = bytes;
  options.high_mark = options.low_mark = 1;
  auto store = TieredStore::Create(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

std::vector<BlockKey> Chain(uint64_t first, int length, uint64_t ns = 1) {
  std::vector<BlockKey> keys;
  for (int i = 0; i < length; ++i) keys.push_back(TestKey(first + i, ns));
  return keys;
}

// Puts a chain in one call, as a frame does.
void PutChain(TieredStore* store, const std::vector<BlockKey>& keys, BlockShape shape) {
  std::vector<uint32_t> depths(keys.size());
  for (uint32_t i = 0; i < depths.size(); ++i) depths[i] = i;
  auto results = store->Reserve(keys, std::vector(keys.size(), shape),
                                std::vector<uint16_t>(keys.size(), 0), depths);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].outcome != ReserveOutcome::kReserved) continue;
    WriteAndPublish(std::move(results[i].reservation), shape, depths[i]);
  }
}

uint32_t Count(TieredStore* store, const std::vector<BlockKey>& keys) {
  return store->Match(keys, false, nullptr, nullptr);
}

// --- Create

TEST(TieredStoreCreate, NamesTheOptionThatIsWrong) {
  const auto message = [](auto change) {
    TieredStoreOptions options;
    options.host_bytes = 4 * kMiB;
    change(&options);
    const auto store = TieredStore::Create(options);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(store.status().message());
  };
  EXPECT_THAT(message([](auto* o) { o->host_bytes = kMiB; }), HasSubstr("host_bytes"));
  EXPECT_THAT(message([](auto* o) { o->low_mark = 2; }), HasSubstr("low_mark"));
  EXPECT_THAT(message([](auto* o) { o->max_block_bytes = 1; }), HasSubstr("max_block_bytes"));
}

TEST(TieredStoreCreate, RefusesMemoryThatTheMachineDoesNotHave) {
  TieredStoreOptions options;
  options.host_bytes = uint64_t{1} << 50;
  const auto store = TieredStore::Create(options);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(store.status().message()),
              testing::AllOf(HasSubstr("host_bytes is 1125899906842624"), HasSubstr("only")));
}

TEST(TieredStoreCreateDeathTest, RefusesWhatTheAddressSpaceLimitDoesNotLeave) {
  const auto create_within_limit = [] {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{pages * 4096 + 256 * kMiB, RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
    TieredStoreOptions options;
    options.host_bytes = 300 * kMiB;
    std::cerr << TieredStore::Create(options).status();
    _exit(0);
  };
  EXPECT_EXIT(create_within_limit(), testing::ExitedWithCode(0),
              "RESOURCE_EXHAUSTED: host_bytes is 314572800.*address space");
}

TEST(TieredStoreCreate, TouchesAlignedMemoryAndTellsProgress) {
  TieredStoreOptions options;
  options.host_bytes = 130 * kMiB + 5;
  uint64_t last = 0, total = 0;
  options.progress = [&](uint64_t done, uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  const auto store = TieredStore::Create(options);
  ASSERT_TRUE(store.ok());
  EXPECT_EQ(last, 130 * kMiB);
  EXPECT_EQ(total, 130 * kMiB);
  EXPECT_EQ((*store)->memory().size(), 130 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*store)->memory().data()) % (2 * kMiB), 0);
  EXPECT_EQ((*store)->Stats().capacity_bytes, 130 * kMiB);
}

// --- put and get

TEST(TieredStore, APublishedBlockIsReadable) {
  const auto store = MakeStore(4 * kMiB);
  const BlockKey key = TestKey(1);
  EXPECT_FALSE(store->Acquire(key));
  ReserveResult result = ReserveBlock(store.get(), key, kSmall, 7);
  ASSERT_EQ(result.outcome, ReserveOutcome::kReserved);
  EXPECT_EQ(result.reservation.key(), key);
  EXPECT_EQ(result.reservation.value().size(), kSmall.length);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(result.reservation.value().data()) % 4096, 0);
  const uint64_t generation = result.reservation.generation();
  EXPECT_FALSE(store->Acquire(key)) << "a reservation is invisible";
  EXPECT_TRUE(WriteAndPublish(std::move(result.reservation), kSmall, 7));

  const BlockRef ref = store->Acquire(key);
  ASSERT_TRUE(ref);
  EXPECT_TRUE(IsIntact(ref, key));
  EXPECT_EQ(EnvelopeView::Parse(ref.envelope())->generation(), generation);
  EXPECT_EQ(ref.tier(), Tier::kHost);
  const auto row = store->Find(key);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->bytes, kSmall.length);
  EXPECT_EQ(row->depth, 7);
  EXPECT_EQ(row->references, 1);
  EXPECT_EQ(store->Stats().referenced_blocks, 1);
}

TEST(TieredStore, TheEnvelopeKeepsMetadata) {
  const auto store = MakeStore(4 * kMiB);
  const BlockKey key = TestKey(1);
  const BlockShape shape{256 << 10, 256};
  const uint16_t opaque = kMaxOpaqueBytes;
  const uint32_t depth = 3;
  auto results = store->Reserve({&key, 1}, {&shape, 1}, {&opaque, 1}, {&depth, 1});
  Reservation& reservation = results[0].reservation;
  FillPayload(key, reservation.value());
  Envelope envelope = EnvelopeOf(key, shape, depth, reservation.value());
  envelope.layout_id = 99;
  envelope.metadata.opaque = std::string(kMaxOpaqueBytes, 'o');
  envelope.metadata.parent = TestKey(0).digest;
  ASSERT_TRUE(reservation.Publish(envelope));
  const BlockRef ref = store->Acquire(key);
  ASSERT_TRUE(IsIntact(ref, key));
  const Envelope stored = EnvelopeView::Parse(ref.envelope())->ToValue();
  EXPECT_EQ(stored.layout_id, 99);
  EXPECT_EQ(stored.metadata.opaque, envelope.metadata.opaque);
  EXPECT_EQ(stored.metadata.parent, envelope.metadata.parent);
}

TEST(TieredStoreDeathTest, AnEnvelopeOfAnotherBlockAborts) {
  const auto store = MakeStore(4 * kMiB);
  ReserveResult result = ReserveBlock(store.get(), TestKey(1), kSmall);
  const Envelope other = EnvelopeOf(TestKey(2), kSmall, 0, result.reservation.value());
  EXPECT_DEATH(result.reservation.Publish(other), "");
}

TEST(TieredStore, ASecondWriterIsToldSo) {
  const auto store = MakeStore(4 * kMiB);
  const BlockKey key = TestKey(1);
  ReserveResult first = ReserveBlock(store.get(), key, kSmall);
  EXPECT_EQ(PutBlock(store.get(), key, kSmall), ReserveOutcome::kPending);
  EXPECT_TRUE(WriteAndPublish(std::move(first.reservation), kSmall));
  EXPECT_EQ(PutBlock(store.get(), key, kSmall), ReserveOutcome::kExists);
  EXPECT_EQ(store->Stats().puts, 1);
  EXPECT_EQ(store->Stats().puts_existing, 2);
}

TEST(TieredStore, AnAbortedPutGivesItsPlaceBack) {
  const auto store = MakeStore(2 * kMiB);
  const BlockKey key = TestKey(1);
  for (int i = 0; i < 10; ++i) {
    const ReserveResult result = ReserveBlock(store.get(), key, kThird);
    EXPECT_EQ(result.outcome, ReserveOutcome::kReserved);
    EXPECT_GT(store->Stats().reserved_bytes, kThird.length);
  }
  EXPECT_EQ(store->Stats().occupied_bytes, 0);
  EXPECT_EQ(store->Stats().reserved_bytes, 0);
  EXPECT_EQ(store->Stats().puts_aborted, 10);
  EXPECT_EQ(PutBlock(store.get(), key, kThird), ReserveOutcome::kReserved);
}

TEST(TieredStore, GenerationsAreNeverReused) {
  std::set<uint64_t> generations;
  uint64_t highest = 0;
  for (int life = 0; life < 3; ++life) {
    const auto store = MakeStore(2 * kMiB);
    for (int i = 0; i < 10; ++i) {
      const uint64_t generation =
          ReserveBlock(store.get(), TestKey(i), kSmall).reservation.generation();
      EXPECT_GT(generation, highest);
      highest = generation;
    }
  }
}

TEST(TieredStore, MatchGivesTheLeadingRun) {
  const auto store = MakeStore(4 * kMiB);
  const std::vector<BlockKey> keys = Chain(0, 6);
  PutChain(store.get(), {keys[0], keys[1], keys[2]}, kSmall);
  PutChain(store.get(), {keys[4]}, kSmall);  // behind a gap: worth nothing
  std::vector<Tier> tiers;
  std::vector<BlockRef> refs;
  EXPECT_EQ(store->Match(keys, true, &tiers, &refs), 3);
  EXPECT_THAT(tiers, testing::ElementsAre(Tier::kHost, Tier::kHost, Tier::kHost));
  ASSERT_EQ(refs.size(), 3);
  for (size_t i = 0; i < refs.size(); ++i) EXPECT_TRUE(IsIntact(refs[i], keys[i]));
  EXPECT_EQ(store->Match({}, true, nullptr, nullptr), 0);
  const TierStats stats = store->Stats();
  EXPECT_EQ(stats.hits, 3);
  EXPECT_EQ(stats.misses, 3);
  EXPECT_EQ(stats.referenced_blocks, 3);
}

TEST(TieredStore, AProbeChangesNothing) {
  const auto store = MakeStore(4 * kMiB);
  const std::vector<BlockKey> keys = Chain(0, 3);
  PutChain(store.get(), keys, kSmall);
  const TierStats before = store->Stats();
  const double score = store->Find(keys[0])->score;
  EXPECT_EQ(Count(store.get(), keys), 3);
  EXPECT_EQ(store->Find(keys[0])->score, score);
  const TierStats after = store->Stats();
  EXPECT_EQ(after.hits, before.hits);
  EXPECT_EQ(after.misses, before.misses);
  EXPECT_EQ(after.turnovers, before.turnovers);
}

TEST(TieredStore, CountsItsBlocks) {
  const auto store = MakeStore(8 * kMiB);
  PutChain(store.get(), Chain(0, 10), kSmall);
  PutChain(store.get(), Chain(100, 1), kThird);
  TierStats stats = store->Stats();
  EXPECT_EQ(stats.blocks, 11);
  EXPECT_EQ(stats.value_bytes, 10 * kSmall.length + kThird.length);
  EXPECT_GE(stats.occupied_bytes, stats.value_bytes + 11 * 256);
  EXPECT_GT(stats.index_bytes, 0);
  EXPECT_GT(stats.turnovers, 0);
  EXPECT_EQ(store->Forget({1}, 100).copies(), 11);
  stats = store->Stats();
  EXPECT_EQ(stats.blocks, 0);
  EXPECT_EQ(stats.value_bytes, 0);
  EXPECT_EQ(stats.occupied_bytes, 0);
  EXPECT_EQ(stats.forgotten, 11);
}

TEST(TieredStore, TopListsTheHottestFirst) {
  const auto store = MakeStore(4 * kMiB);
  const std::vector<BlockKey> keys = Chain(0, 20);
  PutChain(store.get(), keys, kSmall);
  for (size_t length : {9, 5, 2}) store->Touch(std::span(keys).first(length));
  const auto kAll = [](NamespaceId) { return true; };
  const std::vector<ResidentBlock> top = store->Top(6, kAll);
  ASSERT_EQ(top.size(), 6);
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(top[i].key, keys[i]);
  EXPECT_GT(top[0].score, top[5].score);
  EXPECT_EQ(store->Top(100, kAll).size(), 20);
  EXPECT_TRUE(store->Top(0, kAll).empty());
}

// --- a store of three blocks

TEST(TinyStore, HoldsThreeBlocksAndEvictsTheColdest) {
  const auto store = MakeStore(2 * kMiB);
  for (int i = 0; i < 3; ++i) PutBlock(store.get(), TestKey(i), kThird);
  EXPECT_EQ(store->Stats().evicted_for_space, 0);
  store->Touch(std::vector{TestKey(0)});
  store->Touch(std::vector{TestKey(2)});
  EXPECT_EQ(PutBlock(store.get(), TestKey(3), kThird), ReserveOutcome::kReserved);
  EXPECT_EQ(store->Stats().evicted_for_space, 1);
  EXPECT_FALSE(store->Acquire(TestKey(1)));
  for (int i : {0, 2, 3}) EXPECT_TRUE(IsIntact(store->Acquire(TestKey(i)), TestKey(i)));
}

TEST(TinyStore, EvictsTheEndOfAChainFirst) {
  const auto store = MakeStore(2 * kMiB);
  PutChain(store.get(), Chain(0, 3), kThird);
  PutBlock(store.get(), TestKey(10), kThird);
  EXPECT_EQ(Count(store.get(), Chain(0, 3)), 2);
}

TEST(TinyStore, NeverFreesAReferencedBlock) {
  const auto store = MakeStore(2 * kMiB);
  for (int i = 0; i < 3; ++i) PutBlock(store.get(), TestKey(i), kThird);
  std::vector<BlockRef> refs;
  for (int i = 0; i < 3; ++i) refs.push_back(store->Acquire(TestKey(i)));
  for (int i = 10; i < 20; ++i) {
    EXPECT_EQ(PutBlock(store.get(), TestKey(i), kThird), ReserveOutcome::kNoSpace);
  }
  EXPECT_FALSE(store->Evict(TestKey(0)));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsIntact(refs[i], TestKey(i)));
  EXPECT_EQ(store->Stats().puts_no_space, 10);
  EXPECT_EQ(store->Stats().evicted_for_space, 0);

  refs[1].Release();
  EXPECT_EQ(PutBlock(store.get(), TestKey(20), kThird), ReserveOutcome::kReserved);
  EXPECT_FALSE(store->Acquire(TestKey(1)));
  EXPECT_TRUE(IsIntact(refs[0], TestKey(0)));
  EXPECT_TRUE(IsIntact(refs[2], TestKey(2)));
}

TEST(TinyStore, BlocksBeingWrittenAreNotEvicted) {
  const auto store = MakeStore(2 * kMiB);
  std::vector<ReserveResult> writing;
  for (int i = 0; i < 3; ++i) writing.push_back(ReserveBlock(store.get(), TestKey(i), kThird));
  EXPECT_EQ(PutBlock(store.get(), TestKey(3), kThird), ReserveOutcome::kNoSpace);
  writing.pop_back();
  EXPECT_EQ(PutBlock(store.get(), TestKey(3), kThird), ReserveOutcome::kReserved);
}

TEST(TinyStore, WhatNeverFitsEvictsNothing) {
  const auto store = MakeStore(2 * kMiB);
  for (int i = 0; i < 3; ++i) PutBlock(store.get(), TestKey(i), kThird);
  EXPECT_EQ(PutBlock(store.get(), TestKey(3), {2 * kMiB, 1}), ReserveOutcome::kNeverFits);
  EXPECT_EQ(PutBlock(store.get(), TestKey(3), {64 * kMiB, 1}), ReserveOutcome::kNeverFits);
  EXPECT_EQ(Count(store.get(), Chain(0, 3)), 3);
  EXPECT_EQ(store->Stats().puts_never_fit, 2);
}

TEST(TinyStore, ABlockOfAnotherSizeMovesTheRegion) {
  const auto store = MakeStore(2 * kMiB);
  PutChain(store.get(), Chain(0, 3), kThird);
  {
    const BlockRef reader = store->Acquire(TestKey(2));
    EXPECT_EQ(PutBlock(store.get(), TestKey(10), kSmall), ReserveOutcome::kNoSpace);
    EXPECT_EQ(Count(store.get(), Chain(0, 3)), 3) << "nothing was evicted in vain";
  }
  EXPECT_EQ(PutBlock(store.get(), TestKey(10), kSmall), ReserveOutcome::kReserved);
  EXPECT_EQ(store->Stats().evicted_region_move, 3);
  EXPECT_EQ(store->Stats().blocks, 1);
}

TEST(TinyStore, AReturningBlockKeepsItsStanding) {
  const auto store = MakeStore(2 * kMiB);
  PutBlock(store.get(), TestKey(0), kThird);
  for (int i = 0; i < 20; ++i) store->Touch(std::vector{TestKey(0)});
  const double standing = store->Find(TestKey(0))->score;
  for (int i = 1; i < 200 && store->Find(TestKey(0)); ++i) {
    PutBlock(store.get(), TestKey(i), kThird);
    for (int use = 0; use < 3; ++use) store->Touch(std::vector{TestKey(i)});
  }
  ASSERT_FALSE(store->Find(TestKey(0))) << "ages";
  PutBlock(store.get(), TestKey(0), kThird);
  PutBlock(store.get(), TestKey(1000), kThird);
  EXPECT_GT(store->Find(TestKey(0))->score, store->Find(TestKey(1000))->score);
  EXPECT_LT(store->Find(TestKey(0))->score, standing);
}

// --- regions between classes

TEST(TieredStore, MemoryFollowsTheWorkload) {
  const auto store = MakeStore(64 * kMiB);
  const BlockShape large{1 << 20, 1};
  uint64_t next = 0;
  for (int i = 0; i < 2000; ++i) PutBlock(store.get(), TestKey(next++), kSmall);
  EXPECT_EQ(store->Stats().evicted_region_move, 0);
  for (int i = 0; i < 200; ++i) PutBlock(store.get(), TestKey(next++), large);
  const TierStats moved = store->Stats();
  EXPECT_GT(moved.evicted_region_move, 500);
  // By then the large blocks, all younger, hold most of the memory.
  uint64_t large_blocks = 0;
  for (uint64_t i = 2000; i < 2200; ++i) large_blocks += store->Find(TestKey(i)).has_value();
  EXPECT_GT(large_blocks, 40);
  for (int i = 0; i < 4000; ++i) PutBlock(store.get(), TestKey(next++), kSmall);
  EXPECT_GT(store->Stats().blocks, 800);
}

TEST(TieredStore, AHotClassKeepsItsMemory) {
  const auto store = MakeStore(16 * kMiB);
  const std::vector<BlockKey> hot = Chain(0, 100);
  PutChain(store.get(), hot, kSmall);
  const BlockShape other{128 << 10, 1};
  for (int i = 0; i < 2000; ++i) {
    if (i % 5 == 0) store->Touch(hot);
    PutBlock(store.get(), TestKey(1000 + i), other);
  }
  EXPECT_EQ(Count(store.get(), hot), 100);
}

// --- forget, evict, tidy

TEST(TieredStore, ForgottenWhileReferenced) {
  const auto store = MakeStore(2 * kMiB);
  const BlockKey key = TestKey(1);
  PutBlock(store.get(), key, kThird);
  BlockRef ref = store->Acquire(key);
  EXPECT_EQ(store->Forget(key.ns, 10).copies(), 1);
  EXPECT_EQ(store->Forget(key.ns, 10).copies(), 0);
  EXPECT_FALSE(store->Acquire(key)) << "invisible at once";
  EXPECT_FALSE(store->Find(key));
  EXPECT_TRUE(IsIntact(ref, key)) << "readable until released";
  EXPECT_GT(store->Stats().occupied_bytes, 0);

  // The key may be written anew beside the old copy.
  EXPECT_EQ(PutBlock(store.get(), key, kThird), ReserveOutcome::kReserved);
  const BlockRef anew = store->Acquire(key);
  EXPECT_NE(anew.value().data(), ref.value().data());
  ref.Release();
  EXPECT_TRUE(IsIntact(anew, key));
  EXPECT_EQ(store->Stats().blocks, 1);
}

TEST(TieredStore, ForgottenWhileWritten) {
  const auto store = MakeStore(2 * kMiB);
  const BlockKey key = TestKey(1);
  ReserveResult old = ReserveBlock(store.get(), key, kThird);
  ReserveResult aborted = ReserveBlock(store.get(), TestKey(2), kThird);
  EXPECT_EQ(store->Forget(key.ns, 10).copies(), 2);
  EXPECT_EQ(PutBlock(store.get(), key, kThird), ReserveOutcome::kReserved);
  EXPECT_FALSE(WriteAndPublish(std::move(old.reservation), kThird)) << "comes too late";
  aborted.reservation.Abort();
  EXPECT_TRUE(IsIntact(store->Acquire(key), key));
  EXPECT_EQ(store->Stats().blocks, 1);
  EXPECT_EQ(store->Stats().reserved_bytes, 0);
}

TEST(TieredStore, ForgetsOneNamespaceInSteps) {
  const auto store = MakeStore(32 * kMiB);
  PutChain(store.get(), Chain(0, 100, 1), kSmall);
  PutChain(store.get(), Chain(0, 50, 2), kSmall);
  uint64_t total = 0;
  for (uint64_t found; (found = store->Forget({1}, 30).copies()) > 0; total += found) {
    EXPECT_LE(found, 30);
  }
  EXPECT_EQ(total, 100);
  EXPECT_EQ(Count(store.get(), Chain(0, 50, 2)), 50);
}

TEST(TieredStore, EvictDropsWhatNobodyHolds) {
  const auto store = MakeStore(4 * kMiB);
  const BlockKey key = TestKey(1);
  EXPECT_TRUE(store->Evict(key)) << "not there";
  ReserveResult writing = ReserveBlock(store.get(), key, kSmall);
  EXPECT_FALSE(store->Evict(key));
  WriteAndPublish(std::move(writing.reservation), kSmall);
  BlockRef ref = store->Acquire(key);
  EXPECT_FALSE(store->Evict(key));
  ref.Release();
  EXPECT_TRUE(store->Evict(key));
  EXPECT_FALSE(store->Acquire(key));
}

TEST(TieredStore, TidyEvictsFromAboveTheHighMarkToTheLow) {
  TieredStoreOptions options;
  options.host_bytes = 64 * kMiB;
  options.high_mark = .9;
  options.low_mark = .8;
  const auto store = TieredStore::Create(options).value();
  uint64_t next = 0;
  while (store->Stats().occupied_bytes <= .9 * 64 * kMiB) {
    EXPECT_FALSE(store->Tidy());
    PutBlock(store.get(), TestKey(next++), kSmall);
  }
  EXPECT_TRUE(store->Tidy());
  EXPECT_FALSE(store->Tidy());
  const TierStats stats = store->Stats();
  EXPECT_LE(stats.occupied_bytes, .8 * 64 * kMiB);
  EXPECT_GT(stats.occupied_bytes, .79 * 64 * kMiB);
  EXPECT_EQ(stats.evicted_watermark, next - stats.blocks);
  EXPECT_EQ(stats.evicted_for_space, 0);
  // The oldest went.
  EXPECT_FALSE(store->Find(TestKey(0)));
  EXPECT_TRUE(store->Find(TestKey(next - 1)));
}

TEST(TieredStore, AllKeysCollideInTheirFirstBytes) {
  const auto store = MakeStore(4 * kMiB);
  const auto colliding = [](uint64_t number) {
    BlockKey key = TestKey(5);
    std::memcpy(key.digest.bytes.data() + 16, &number, sizeof(number));
    return key;
  };
  const BlockShape shape{4 << 10, 1};
  for (uint64_t i = 0; i < 3000; ++i) {
    ASSERT_EQ(PutBlock(store.get(), colliding(i), shape), ReserveOutcome::kReserved);
  }
  uint64_t found = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    const BlockRef ref = store->Acquire(colliding(i));
    if (!ref) continue;
    ++found;
    EXPECT_EQ(EnvelopeView::Parse(ref.envelope())->key(), colliding(i));
  }
  EXPECT_EQ(found, store->Stats().blocks);
  EXPECT_GT(found, 900);
}

}  // namespace
}  // namespace terrace
