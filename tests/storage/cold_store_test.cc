#include "storage/cold_store.h"

#include <cerrno>

#include "gtest/gtest.h"
#include "storage/faulty_file_io.h"
#include "tests/storage/cold_support.h"

namespace terrace::testing {
namespace {

constexpr uint32_t kLength = 64 << 10;

// A store of several folders that takes and answers one request at a time.
class Store {
 public:
  explicit Store(int folders, Clock* clock = Clock::Real()) {
    std::vector<ColdFolderOptions> options;
    for (int i = 0; i < folders; ++i) {
      temps_.push_back(std::make_unique<TempFolder>());
      ColdFolderOptions one = SmallFolder(temps_.back()->path());
      auto io = std::make_unique<FaultyFileIo>();
      disks.push_back(io.get());
      one.io = std::move(io);
      one.clock = clock;
      options.push_back(std::move(one));
    }
    auto opened = ColdStore::Open(std::move(options));
    if (opened.ok()) store = *std::move(opened);
  }

  void Put(ColdPut put) {
    std::vector<ColdPut> puts;
    puts.push_back(std::move(put));
    store->Put(std::move(puts));
  }
  void Get(ColdGet get) {
    std::vector<ColdGet> gets;
    gets.push_back(std::move(get));
    store->Get(std::move(gets));
  }
  void Find(std::span<const BlockKey> keys, std::span<ColdBlock> blocks) {
    store->Find(keys, blocks);
  }
  // Until all folders are loaded and have all their extents.
  bool Ready() {
    return store != nullptr && store->WaitUntilLoaded(absl::Seconds(30)).ok() && Eventually([&] {
             return std::ranges::all_of(store->Stats(),
                                        [](const auto& one) { return one.extents.extents == 21; });
           });
  }

  std::vector<FaultyFileIo*> disks;

 private:
  std::vector<std::unique_ptr<TempFolder>> temps_;

 public:
  std::unique_ptr<ColdStore> store;
};

TEST(ColdStore, BlocksSpreadOverFoldersAndAreFound) {
  Store s(3);
  ASSERT_TRUE(s.Ready());
  std::vector<BlockKey> keys;
  for (uint64_t i = 0; i < 150; ++i) {
    TestBlock block(KeyOf(i), kLength);
    ASSERT_EQ(PutAndWait(s, block), absl::OkStatus());
    keys.push_back(block.key);
  }
  for (const ColdFolderStats& folder : s.store->Stats()) EXPECT_GT(folder.blocks, 20);
  for (const BlockKey& key : keys) EXPECT_EQ(GetAndCheck(s, key), absl::OkStatus());
  std::vector<ColdBlock> found(keys.size());
  s.store->Find(keys, found);
  for (const ColdBlock& block : found) EXPECT_EQ(block.presence, Presence::kHere);
  EXPECT_EQ(s.store->Delete(keys, ColdLeave::kForgotten), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(GetAndCheck(s, keys[0])));
}

TEST(ColdStore, AFolderThatFailsCostsOnlyItsOwn) {
  ManualClock clock;
  Store s(2, &clock);
  ASSERT_TRUE(s.Ready());
  s.disks[0]->SetScript([](const IoRequest& request) {
    return request.kind == IoKind::kWrite ? IoFault{IoFault::kError, EIO} : IoFault{};
  });
  int failed = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    TestBlock block(KeyOf(i), kLength);
    if (!PutAndWait(s, block).ok()) ++failed;
  }
  EXPECT_EQ(failed, 3);  // then the other folder takes all
  EXPECT_EQ(s.store->Stats()[0].health, FolderHealth::kWritesFail);
  EXPECT_EQ(s.store->Stats()[1].blocks, 37);
}

TEST(ColdStore, WatchesForRequestsThatHang) {
  ManualClock clock;
  Store s(1, &clock);
  ASSERT_TRUE(s.Ready());
  s.disks[0]->SetScript([](const IoRequest& request) {
    return request.kind == IoKind::kWrite ? IoFault{IoFault::kHold} : IoFault{};
  });
  TestBlock block(KeyOf(1), kLength);
  Answer answer;
  ColdPut put = PutOf(block);
  put.done = answer.Done();
  put.released = answer.Released();
  s.Put(std::move(put));
  ASSERT_TRUE(s.disks[0]->WaitForHeld(1));
  clock.Advance(absl::Seconds(6));
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.Wait()));
  s.disks[0]->Release();
  EXPECT_TRUE(answer.WaitReleased());
}

TEST(ColdStore, DeletesANamespaceAndNothingElse) {
  Store s(2);
  ASSERT_TRUE(s.Ready());
  for (uint64_t i = 0; i < 1500; ++i) {
    TestBlock block(KeyOf(i, 1 + i % 3), 4096);
    ASSERT_EQ(PutAndWait(s, block), absl::OkStatus());
  }
  const auto all = s.store->Scan(NamespaceId{2}, std::nullopt, 1000);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->size(), 500);
  const auto some = s.store->Scan(NamespaceId{2}, std::nullopt, 300);
  const auto rest = s.store->Scan(NamespaceId{2}, some->back(), 1000);
  EXPECT_EQ(some->size() + rest->size(), 500);
  uint64_t told = 0;
  EXPECT_EQ(s.store->DeleteNamespace(NamespaceId{2},
                                     [&](uint64_t deleted) {
                                       told = deleted;
                                       return true;
                                     }),
            absl::OkStatus());
  EXPECT_EQ(told, 500);
  EXPECT_TRUE(s.store->Scan(NamespaceId{2}, std::nullopt, 10)->empty());
  for (uint64_t i = 0; i < 1500; i += 7) {
    const absl::Status got = GetAndCheck(s, KeyOf(i, 1 + i % 3));
    EXPECT_EQ(got.code(), i % 3 == 1 ? absl::StatusCode::kNotFound : absl::StatusCode::kOk) << i;
  }
}

TEST(ColdStore, RefusesNoFolderAndOneTwice) {
  EXPECT_TRUE(absl::IsInvalidArgument(ColdStore::Open({}).status()));
  TempFolder temp;
  std::vector<ColdFolderOptions> twice;
  twice.push_back(SmallFolder(temp.path()));
  twice.push_back(SmallFolder(temp.path()));
  EXPECT_TRUE(absl::IsInvalidArgument(ColdStore::Open(std::move(twice)).status()));
}

}  // namespace
}  // namespace terrace::testing
