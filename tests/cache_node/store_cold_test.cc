// Blocks that go to the ssd tier and come back, through the node's store.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <thread>

#include "cache_node/namespace_keeper.h"
#include "cache_node/namespace_table.h"
#include "cache_node/ssd_folders.h"
#include "cache_node/tier_metrics.h"
#include "storage/faulty_file_io.h"
#include "tests/cache_node/store_test_util.h"
#include "tests/storage/cold_support.h"

namespace terrace {
namespace {

using testing::TempFolder;

constexpr uint64_t kMiB = 1 << 20;
constexpr BlockShape kShape{64 << 10, 4};

std::unique_ptr<ColdTier> OpenTier(const std::string& path, std::unique_ptr<FileIo> io = nullptr,
                                   ColdTierOptions options = {}) {
  ColdFolderOptions folder = testing::SmallFolder(path);
  folder.io = std::move(io);
  options.folders.push_back(std::move(folder));
  auto tier = ColdTier::Open(std::move(options)).value();
  EXPECT_TRUE(tier->store().WaitUntilLoaded(absl::Seconds(20)).ok());
  return tier;
}

std::unique_ptr<TieredStore> MakeStore(std::unique_ptr<ColdTier> cold) {
  return TieredStore::Create({.host_bytes = 8 * kMiB}, std::move(cold)).value();
}

// A fill's answer, waited for.
class Filled {
 public:
  explicit Filled(TieredStore* store, const BlockKey& key) : store_(store), key_(key) {
    outcome_ = store->Fill(key, [state = state_](BlockRef ref) {
      MutexLock lock(&state->mutex);
      state->ref = std::move(ref);
      state->came = true;
      state->changed.SignalAll();
    });
  }
  FillOutcome outcome() const { return outcome_; }
  bool came() {
    MutexLock lock(&state_->mutex);
    return state_->came;
  }
  // Empty: a miss.
  BlockRef Wait() {
    if (outcome_ == FillOutcome::kHere) return store_->Acquire(key_);
    if (outcome_ != FillOutcome::kComing) return {};
    MutexLock lock(&state_->mutex);
    while (!state_->came) {
      if (!state_->changed.WaitWithTimeout(&state_->mutex, absl::Seconds(20))) return {};
    }
    return std::move(state_->ref);
  }

 private:
  struct State {
    Mutex mutex;
    CondVar changed;
    bool came = false;
    BlockRef ref;
  };
  TieredStore* const store_;
  const BlockKey key_;
  FillOutcome outcome_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

BlockRef Read(TieredStore* store, const BlockKey& key) {
  if (BlockRef ref = store->Acquire(key)) return ref;
  return Filled(store, key).Wait();
}

// Tidies until nothing is on its way to the ssd tier any more.
class Room {
 public:
  explicit Room(TieredStore* store) : store_(store) {
    store->SetRoomListener([this] {
      MutexLock lock(&mutex_);
      ++left_;
      changed_.SignalAll();
    });
  }
  ~Room() { store_->SetRoomListener(nullptr); }
  void Tidy() {
    while (store_->Tidy()) continue;
    // Those that were on their way have left, one way or another.
    MutexLock lock(&mutex_);
    while (store_->Stats().referenced_blocks > 0) {
      if (!changed_.WaitWithTimeout(&mutex_, absl::Seconds(20))) FAIL() << "demotions hang";
    }
  }

 private:
  TieredStore* const store_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t left_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Requests of this kind do not come back until they are released.
std::function<IoFault(const IoRequest&)> Holding(IoKind kind) {
  return [kind](const IoRequest& request) {
    return request.kind == kind ? IoFault{IoFault::kHold} : IoFault{};
  };
}

void PutMany(TieredStore* store, Room* room, uint64_t begin, uint64_t end,
             BlockShape shape = kShape) {
  for (uint64_t i = begin; i < end; ++i) {
    ASSERT_EQ(PutBlock(store, TestKey(i), shape), ReserveOutcome::kReserved) << i;
    if (i % 4 == 0) room->Tidy();
  }
  room->Tidy();
}

TEST(StoreCold, WhatHostMemoryCannotHoldComesBackFromTheSsd) {
  TempFolder folder;
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd"));
  Room room(store.get());
  PutMany(store.get(), &room, 0, 300);  // 19 MiB of blocks, 8 MiB of memory
  const std::vector<TierStats> tiers = store->Tiers();
  ASSERT_EQ(tiers.size(), 2);
  EXPECT_EQ(tiers[0].evicted_for_space, 0) << "nothing was dropped unwritten";
  EXPECT_EQ(tiers[0].blocks + tiers[1].blocks, 300);
  EXPECT_EQ(tiers[0].demoted, tiers[1].blocks);

  std::vector<BlockKey> chain;
  for (uint64_t i = 0; i < 300; ++i) chain.push_back(TestKey(i));
  std::vector<Tier> where;
  EXPECT_EQ(store->Match(chain, true, &where, nullptr), 300);
  EXPECT_EQ(std::ranges::count(where, Tier::kSsd), static_cast<int64_t>(tiers[1].blocks));
  for (uint64_t i = 0; i < 300; ++i) {
    EXPECT_TRUE(IsIntact(Read(store.get(), TestKey(i)), TestKey(i))) << i;
    room.Tidy();
  }
  EXPECT_GT(store->Stats().demoted_by_name, 0) << "a copy that is there is not written again";
  EXPECT_EQ(store->Tiers()[1].blocks, 300);
}

// Whoever looked at a place before must not take what lies there now for what he was promised, were
// it the same block with another in between.
TEST(StoreCold, WhatComesBackIsOfAnotherGeneration) {
  TempFolder folder;
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd"));
  Room room(store.get());
  std::set<uint64_t> seen;
  const auto note = [&seen](const BlockRef& ref) {
    ASSERT_TRUE(ref);
    EXPECT_TRUE(seen.insert(LoadGeneration(ref.envelope())).second);
  };
  // Within the catalogue, and in an extent.
  for (const BlockShape shape : {BlockShape{16 << 10, 4}, kShape}) {
    const BlockKey key = TestKey(shape.length);
    ASSERT_EQ(PutBlock(store.get(), key, shape), ReserveOutcome::kReserved);
    note(store->Acquire(key));
    for (uint64_t round = 0; round < 2; ++round) {
      const uint64_t first = shape.length + 2000 * round + 1;
      PutMany(store.get(), &room, first, first + 20 * kMiB / shape.length, shape);
      ASSERT_FALSE(store->Acquire(key));
      note(Read(store.get(), key));
      ASSERT_TRUE(IsIntact(store->Acquire(key), key));
    }
  }
}

TEST(StoreCold, APutOfWhatTheSsdHasIsASuccessWithoutATransfer) {
  TempFolder folder;
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd"));
  Room room(store.get());
  PutMany(store.get(), &room, 0, 200);
  ASSERT_FALSE(store->Acquire(TestKey(0)));
  EXPECT_EQ(PutBlock(store.get(), TestKey(0), kShape), ReserveOutcome::kExists);
}

TEST(StoreCold, OneReadHoweverManyWait) {
  TempFolder folder;
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd", std::move(io)));
  Room room(store.get());
  PutMany(store.get(), &room, 0, 200);
  disk->SetScript(Holding(IoKind::kRead));
  std::vector<Filled> waiting;
  for (int i = 0; i < 64; ++i) waiting.emplace_back(store.get(), TestKey(0));
  EXPECT_EQ(Filled(store.get(), TestKey(0)).outcome(), FillOutcome::kBusy) << "waiters are bounded";
  ASSERT_TRUE(disk->WaitForHeld(1));
  EXPECT_FALSE(waiting.front().came());
  EXPECT_EQ(PutBlock(store.get(), TestKey(0), kShape), ReserveOutcome::kExists);
  disk->SetScript({});
  disk->Release();
  for (Filled& one : waiting) EXPECT_TRUE(IsIntact(one.Wait(), TestKey(0)));
  EXPECT_EQ(store->Stats().fills, 1);
}

TEST(StoreCold, ABrokenCopyIsAMissAndGone) {
  TempFolder folder;
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd", std::move(io)));
  Room room(store.get());
  PutMany(store.get(), &room, 0, 200);
  disk->SetScript([](const IoRequest& request) {
    if (request.kind != IoKind::kRead) return IoFault{};
    return IoFault{.kind = IoFault::kFlip, .bit = 8 * (8 << 10)};  // within the value
  });
  EXPECT_FALSE(Read(store.get(), TestKey(0)));
  EXPECT_EQ(store->Stats().fills_failed, 1);
  EXPECT_EQ(store->Stats().reserved_bytes, 0) << "its place was given back";
}

TEST(StoreCold, AFailingDeviceCostsBlocksAndNothingElse) {
  TempFolder folder;
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd", std::move(io)));
  Room room(store.get());
  disk->SetScript([](const IoRequest& request) {
    return request.kind == IoKind::kWrite ? IoFault{.kind = IoFault::kError, .error = EIO}
                                          : IoFault{};
  });
  PutMany(store.get(), &room, 0, 300);  // each put finds room
  const TierStats stats = store->Stats();
  EXPECT_GT(stats.demotions_failed, 0);
  EXPECT_GT(stats.blocks, 70);
  EXPECT_TRUE(IsIntact(Read(store.get(), TestKey(299)), TestKey(299)));
  EXPECT_FALSE(Read(store.get(), TestKey(0)));
}

TEST(StoreCold, ADeviceThatHangsHoldsItsMemoryAndNobodyElse) {
  TempFolder folder;
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  ColdFolderOptions options = testing::SmallFolder(folder.path() + "/ssd");
  options.io = std::move(io);
  options.deadline = absl::Milliseconds(50);
  ColdTierOptions tier;
  tier.folders.push_back(std::move(options));
  auto cold = ColdTier::Open(std::move(tier)).value();
  ASSERT_TRUE(cold->store().WaitUntilLoaded(absl::Seconds(20)).ok());
  const auto store = MakeStore(std::move(cold));
  {
    Room room(store.get());
    PutMany(store.get(), &room, 0, 200);
  }
  disk->SetScript([](const IoRequest&) { return IoFault{IoFault::kHold}; });
  Filled fill(store.get(), TestKey(0));
  EXPECT_FALSE(fill.Wait()) << "answered by the deadline";
  EXPECT_GT(store->Stats().reserved_bytes, 0) << "the device may still write there";
  EXPECT_EQ(Filled(store.get(), TestKey(0)).outcome(), FillOutcome::kMiss);
  for (uint64_t i = 1000; i < 1100; ++i) {
    EXPECT_EQ(PutBlock(store.get(), TestKey(i), kShape), ReserveOutcome::kReserved) << i;
    store->Tidy();
  }
  disk->SetScript({});
  disk->Release();
  store->CloseColdTier(absl::Seconds(5));
  EXPECT_EQ(store->Stats().reserved_bytes, 0);
}

PersistOutcome Persisted(TieredStore* store, const BlockKey& key) {
  struct State {
    Mutex mutex;
    CondVar changed;
    std::optional<PersistOutcome> outcome;
  };
  const auto state = std::make_shared<State>();
  store->Persist(key, [state](PersistOutcome outcome) {
    MutexLock lock(&state->mutex);
    state->outcome = outcome;
    state->changed.SignalAll();
  });
  MutexLock lock(&state->mutex);
  while (!state->outcome) state->changed.WaitWithTimeout(&state->mutex, absl::Seconds(1));
  return *state->outcome;
}

TEST(StoreCold, DurableIsSaidOfWhatIsSynced) {
  TempFolder folder;
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd", std::move(io)));
  EXPECT_EQ(Persisted(store.get(), TestKey(0)), PersistOutcome::kMiss);
  ASSERT_EQ(PutBlock(store.get(), TestKey(0), kShape), ReserveOutcome::kReserved);
  EXPECT_EQ(Persisted(store.get(), TestKey(0)), PersistOutcome::kDurable);
  EXPECT_EQ(store->Tiers()[1].blocks, 1);
  EXPECT_TRUE(store->Acquire(TestKey(0))) << "and it stays in host memory";
  EXPECT_EQ(Persisted(store.get(), TestKey(0)), PersistOutcome::kDurable) << "again";
  ASSERT_EQ(PutBlock(store.get(), TestKey(1), kShape), ReserveOutcome::kReserved);
  disk->SetScript([](const IoRequest& request) {
    return request.kind == IoKind::kDataSync ? IoFault{.kind = IoFault::kError, .error = EIO}
                                             : IoFault{};
  });
  EXPECT_EQ(Persisted(store.get(), TestKey(1)), PersistOutcome::kNotDurable);
  const auto host_only = TieredStore::Create({.host_bytes = 8 * kMiB}).value();
  ASSERT_EQ(PutBlock(host_only.get(), TestKey(0), kShape), ReserveOutcome::kReserved);
  EXPECT_EQ(Persisted(host_only.get(), TestKey(0)), PersistOutcome::kNotDurable);
}

TEST(StoreCold, ARestartFindsEverythingAndTheEndWritesWhatIsMissing) {
  TempFolder folder;
  const std::string path = folder.path() + "/ssd";
  {
    const auto store = MakeStore(OpenTier(path));
    Room room(store.get());
    PutMany(store.get(), &room, 0, 300);
    store->SetRoomListener(nullptr);
    const uint64_t demoted = store->Stats().demoted;
    const LastDemotions last = store->CloseColdTier(absl::Seconds(20));
    EXPECT_EQ(demoted + last.blocks, 300);
    EXPECT_EQ(last.bytes, last.blocks * kShape.length);
    EXPECT_EQ(last.lost, 0);
  }
  const auto store = MakeStore(OpenTier(path));
  Room room(store.get());
  EXPECT_EQ(store->Stats().blocks, 0);
  EXPECT_EQ(store->Tiers()[1].blocks, 300);
  EXPECT_GT(store->Tiers()[1].turnovers, 0) << "the policy's clock goes on";
  for (uint64_t i = 0; i < 300; ++i) {
    EXPECT_TRUE(IsIntact(Read(store.get(), TestKey(i)), TestKey(i))) << i;
    room.Tidy();
  }
}

TEST(StoreCold, ForgettingANamespaceForgetsItInBothTiers) {
  TempFolder folder;
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd"));
  Room room(store.get());
  PutMany(store.get(), &room, 0, 200);
  for (uint64_t i = 0; i < 50; ++i) {
    PutBlock(store.get(), TestKey(i, /*ns=*/2), kShape);
    room.Tidy();
  }
  for (uint64_t i = 0; i < 20; ++i)
    EXPECT_TRUE(IsIntact(Read(store.get(), TestKey(i)), TestKey(i)));
  room.Tidy();
  const NamespaceUsage in_host = store->UsageByNamespace()[NamespaceId{1}];
  const uint64_t on_ssd = *store->CountCold(NamespaceId{1});
  EXPECT_GT(in_host.blocks + on_ssd, 200) << "some are in both";
  Forgotten forgotten, round;
  do {
    round = store->Forget(NamespaceId{1}, 64);
    forgotten.host += round.host;
    forgotten.ssd += round.ssd;
  } while (round.copies() > 0);
  EXPECT_EQ(forgotten.host, in_host.blocks);
  EXPECT_EQ(forgotten.ssd, on_ssd);
  for (uint64_t i = 0; i < 200; ++i) EXPECT_FALSE(Read(store.get(), TestKey(i)));
  EXPECT_TRUE(IsIntact(Read(store.get(), TestKey(7, 2)), TestKey(7, 2)));
  EXPECT_TRUE(store->Evict(TestKey(7, 2)));
  EXPECT_FALSE(Read(store.get(), TestKey(7, 2)));
}

TEST(StoreCold, ADeletionIsNotOverWhileBlocksAreOnTheirWayToTheDisk) {
  TempFolder folder;
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd", std::move(io)));
  for (uint64_t i = 0; i < 150; ++i) PutBlock(store.get(), TestKey(i), kShape);
  disk->SetScript(Holding(IoKind::kWrite));
  Room room(store.get());
  store->Tidy();
  ASSERT_TRUE(disk->WaitForHeld(1));
  while (store->Forget(NamespaceId{1}, 64).copies() > 0) continue;
  EXPECT_GT(*store->CountCold(NamespaceId{1}), 0);
  disk->Release();
  EXPECT_TRUE(testing::Eventually([&] { return *store->CountCold(NamespaceId{1}) == 0; }));
  EXPECT_EQ(store->Tiers()[1].blocks, 0);
  EXPECT_EQ(store->Stats().referenced_blocks, 0);
}

TEST(StoreCold, WhoWaitsForAFillWhileTheTierClosesIsAnswered) {
  TempFolder folder;
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd", std::move(io)));
  {
    Room room(store.get());
    PutMany(store.get(), &room, 0, 200);
  }
  ASSERT_FALSE(store->Acquire(TestKey(0)));
  disk->SetScript(Holding(IoKind::kRead));
  std::optional<PersistOutcome> outcome;
  store->Persist(TestKey(0), [&](PersistOutcome told) { outcome = told; });
  ASSERT_TRUE(disk->WaitForHeld(1));
  std::thread closes([&] { store->CloseColdTier(absl::Seconds(5)); });
  disk->Release();
  closes.join();
  EXPECT_TRUE(outcome.has_value());
}

TEST(StoreCold, TheBudgetIsKeptByGivingUpWhatIsWorthLeast) {
  TempFolder folder;
  const auto store = MakeStore(OpenTier(folder.path() + "/ssd"));
  Room room(store.get());
  const uint64_t budget = store->Tiers()[1].capacity_bytes;
  const uint64_t blocks = 2 * budget / kShape.length;
  PutMany(store.get(), &room, 0, blocks);
  const TierStats ssd = store->Tiers()[1];
  EXPECT_GT(ssd.evicted, 0);
  EXPECT_LE(ssd.occupied_bytes, budget);
  EXPECT_TRUE(IsIntact(Read(store.get(), TestKey(blocks - 1)), TestKey(blocks - 1)));
  EXPECT_FALSE(Read(store.get(), TestKey(0)));
}

TEST(StoreCold, PolicyAndBudgetDecideWhatIsWritten) {
  EXPECT_TRUE(AdmitsToSsd(TrafficClass::kChat, false, false));
  EXPECT_FALSE(AdmitsToSsd(TrafficClass::kSingleShot, false, false));
  EXPECT_TRUE(AdmitsToSsd(TrafficClass::kSingleShot, true, false));
  EXPECT_TRUE(AdmitsToSsd(TrafficClass::kSingleShot, false, true));
  EXPECT_FALSE(AdmitsToSsd(TrafficClass::kReasoning, true, true));

  TempFolder folder;
  // A burst of 1/24: half a dozen blocks.
  const auto store = MakeStore(
      OpenTier(folder.path() + "/ssd", nullptr, {.write_budget_per_day = 24 * 6 * kShape.length}));
  Room room(store.get());
  PutMany(store.get(), &room, 0, 300);
  EXPECT_GT(store->Stats().not_admitted, 0);
  EXPECT_LE(store->Tiers()[1].blocks, 6 + 1) << "the last one may go over";
}

TEST(StoreCold, OverTheRateBlocksWaitInHostMemoryForTheirTurn) {
  TempFolder folder;
  const std::string path = folder.path() + "/ssd";
  const auto store = MakeStore(OpenTier(path, nullptr, {.write_rate = 1}));
  EXPECT_EQ(store->TidyAgainIn(), absl::InfiniteDuration());
  Room room(store.get());
  PutMany(store.get(), &room, 0, 300);
  const TierStats host = store->Stats();
  EXPECT_GT(host.demoted, 0);
  EXPECT_LE(host.demoted, 32) << "one round";
  EXPECT_GT(host.evicted_for_space, 0) << "what had to leave";
  EXPECT_GT(host.occupied_bytes, 7 * kMiB) << "as many as there is room for";
  EXPECT_GT(store->TidyAgainIn(), absl::Seconds(10));
  EXPECT_LT(store->TidyAgainIn(), absl::InfiniteDuration());
  // The end does not wait.
  store->CloseColdTier(absl::Seconds(20));
  EXPECT_GE(OpenTier(path)->FolderStats()[0].blocks, host.blocks);
}

TEST(StoreCold, TellsHowLongEachRequestTook) {
  TempFolder folder;
  MetricRegistry registry;
  ColdFolderOptions options = testing::SmallFolder(folder.path() + "/ssd");
  options.on_request = RequestTimes("f", &registry);
  ColdTierOptions tier;
  tier.folders.push_back(std::move(options));
  auto opened = ColdTier::Open(std::move(tier)).value();
  ASSERT_TRUE(opened->store().WaitUntilLoaded(absl::Seconds(20)).ok());
  const auto store = MakeStore(std::move(opened));
  Room room(store.get());
  PutMany(store.get(), &room, 0, 300);
  EXPECT_TRUE(IsIntact(Read(store.get(), TestKey(0)), TestKey(0)));
  const auto values = registry.Values();
  const auto count = [&](const std::string& kind) {
    return values.at("terrace_ssd_request_seconds_count{folder=\"f\",kind=\"" + kind + "\"}");
  };
  EXPECT_EQ(count("read"), 1);
  EXPECT_EQ(count("write"), static_cast<double>(store->Stats().demoted));
}

TEST(StoreCold, ProjectsTheLifeOfADevice) {
  ColdFolderStats folder;
  folder.path = "f";
  folder.device_bytes_written = 1000;
  const auto life = [&](uint64_t endurance) {
    std::vector<MetricSample> samples;
    CollectFolders({folder}, endurance, absl::Seconds(10), &samples);
    const auto found =
        std::ranges::find(samples, "terrace_ssd_projected_life_seconds", &MetricSample::name);
    return found == samples.end() ? -1 : found->value;
  };
  EXPECT_EQ(life(50'000), 500);
  EXPECT_EQ(life(0), -1) << "nobody told";
}

// --- Namespaces and flags

NamespaceSpec Spec(const std::string& name) {
  NamespaceSpec spec{name, {}, {}};
  spec.layout.set_model("m");
  spec.layout.set_block_tokens(16);
  spec.layout.set_block_bytes(kShape.length);
  spec.layout.set_segments(kShape.segments);
  spec.layout.set_shards(1);
  spec.layout.set_layers(1);
  spec.layout.set_kv_heads(1);
  spec.layout.set_head_dim(1);
  return spec;
}

TEST(NamespaceKeeper, AFileThatCannotBeReadIsNotTakenForNone) {
  TempFolder folder;
  std::filesystem::create_directory(folder.path() + "/namespaces");
  EXPECT_TRUE(absl::IsUnavailable(NamespaceKeeper({folder.path()}).Load().status()));
}

TEST(NamespaceKeeper, NamespacesKeepTheirIdsAndSecrets) {
  TempFolder one, two;
  const std::vector<std::string> folders = {one.path(), two.path()};
  bool created = false;
  std::shared_ptr<OpenedNamespace> before;
  {
    NamespaceKeeper keeper(folders);
    NamespaceTable table(10, kMaxBlockBytes);
    ASSERT_TRUE(table.KeepIn(&keeper).ok());
    before = table.Open("tenant", Spec("kept"), /*create=*/true, &created).value();
    EXPECT_TRUE(created);
  }
  std::ofstream(one.path() + "/namespaces") << "garbage";  // the other folder's will do
  NamespaceKeeper keeper(folders);
  NamespaceTable table(10, kMaxBlockBytes);
  ASSERT_TRUE(table.KeepIn(&keeper).ok());
  const auto after = table.Open("tenant", Spec("kept"), /*create=*/true, &created).value();
  EXPECT_FALSE(created);
  EXPECT_EQ(after->id(), before->id());
  EXPECT_EQ(after->secret(), before->secret());
  EXPECT_EQ(after->layout_id(), before->layout_id());
}

TEST(NamespaceKeeper, ADeletionGoesOnAfterARestart) {
  TempFolder folder;
  const auto store = TieredStore::Create({.host_bytes = 8 * kMiB}).value();
  bool created = false;
  {
    NamespaceKeeper keeper({folder.path()});
    NamespaceTable table(10, kMaxBlockBytes);
    ASSERT_TRUE(table.KeepIn(&keeper).ok());
    const auto ns = table.Open("tenant", Spec("gone"), true, &created).value();
    for (uint64_t i = 0; i < 50; ++i) PutBlock(store.get(), TestKey(i, ns->id().value), kShape);
    ASSERT_TRUE(table.Delete("tenant", "gone", [](const DeletionProgress&) {}).ok());
    EXPECT_TRUE(table.ForgetSome(store.get()));  // not to its end
  }
  NamespaceKeeper keeper({folder.path()});
  NamespaceTable table(10, kMaxBlockBytes);
  ASSERT_TRUE(table.KeepIn(&keeper).ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(table.Open("tenant", Spec("gone"), true, &created).status()));
  while (table.ForgetSome(store.get())) continue;
  EXPECT_EQ(table.count(), 0);
  NamespaceTable third(10, kMaxBlockBytes);
  ASSERT_TRUE(third.KeepIn(&keeper).ok());
  EXPECT_EQ(third.count(), 0);
}

TEST(NamespaceKeeper, WhatItCannotReadItNames) {
  TempFolder folder;
  NamespaceKeeper keeper({folder.path()});
  std::ofstream(folder.path() + "/namespaces") << "garbage";
  EXPECT_TRUE(absl::IsDataLoss(keeper.Load().status()));
  EXPECT_NE(keeper.Load().status().message().find("/namespaces"), absl::string_view::npos);
  std::ofstream(folder.path() + "/namespaces") << std::string("TRNS\2\0\0\0", 8);
  EXPECT_TRUE(absl::IsFailedPrecondition(keeper.Load().status()));
}

TEST(SsdFolders, ReadPathAndSize) {
  EXPECT_EQ(ParseSsdFolder("/a/b")->path, "/a/b");
  EXPECT_EQ(ParseSsdFolder("/a/b")->bytes, 0);
  EXPECT_EQ(ParseSsdFolder("/a/b:1GiB")->bytes, uint64_t{1} << 30);
  EXPECT_EQ(ParseSsdFolder("/a:b:1GiB")->path, "/a:b");
  EXPECT_EQ(ParseSsdFolder("/a:b")->path, "/a:b");
  for (const char* wrong : {"", ":1GiB", "/a:", "/a:1gigabyte", "/a:4096", "/a:17TiB"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSsdFolder(wrong).status())) << wrong;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseSsdFolders({"/a", "/b/../a"}).status()));
  for (const char* const typo : {"/a:0", "/a:-5", "/a:.5x", "/a:+", "/a:"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSsdFolders({typo}).status())) << typo;
  }
  TempFolder folder;
  EXPECT_GT(DefaultSsdBytes(folder.path() + "/not/yet").value(), 0);
}

}  // namespace
}  // namespace terrace
