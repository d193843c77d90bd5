// Power cuts at random moments: every durable block is there afterwards, and no byte is wrong.
#include <atomic>
#include <set>
#include <thread>

#include "gtest/gtest.h"
#include "storage/faulty_file_io.h"
#include "tests/storage/cold_support.h"
#include "tests/storage/synced_env.h"

namespace terrace::testing {
namespace {

constexpr uint64_t kKeys = 400;

uint32_t LengthOf(uint64_t number) {
  constexpr uint32_t kLengths[] = {8192, 36'864, 65'536, 100'000};
  return kLengths[number % 4];
}

// What a worker was told, and what it began to undo.
class Journal {
 public:
  void Durable(uint64_t number) {
    MutexLock lock(&mutex_);
    durable_.insert(number);
  }
  void Deleting(uint64_t number) {
    MutexLock lock(&mutex_);
    durable_.erase(number);
    deleted_.insert(number);
  }
  std::set<uint64_t> durable() {
    MutexLock lock(&mutex_);
    deleted_.clear();
    return durable_;
  }
  std::set<uint64_t> deleted() {  // since durable() was asked
    MutexLock lock(&mutex_);
    return deleted_;
  }

 private:
  Mutex mutex_;
  std::set<uint64_t> durable_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> deleted_ ABSL_GUARDED_BY(mutex_);
};

void Work(ColdFolder& folder, uint64_t seed, Journal* journal, std::atomic<bool>* stop) {
  std::mt19937_64 random(seed);
  while (!*stop) {
    // Each worker has keys of its own, so that a journal line and its deed are in one order.
    const uint64_t number = random() % kKeys * 4 + seed % 4;
    const BlockKey key = KeyOf(number);
    if (random() % 3 == 0) {
      journal->Deleting(number);
      folder.Delete({&key, 1}, ColdLeave::kEvicted).IgnoreError();
      continue;
    }
    TestBlock block(key, LengthOf(number));
    const bool durable = random() % 2 == 0;
    if (PutAndWait(folder, block, durable).ok() && durable) journal->Durable(number);
  }
}

class ColdPowerCut : public ::testing::TestWithParam<int> {};

TEST_P(ColdPowerCut, KeepsWhatIsDurable) {
  const uint64_t seed = GetParam();
  TempFolder temp, target;
  const std::string path = temp.path() + "/folder", copy = target.path() + "/folder";
  const auto system = std::make_shared<SyncedFileSystem>();
  const auto env = rocksdb::NewCompositeEnv(system);
  const auto options = [&](std::unique_ptr<FileIo> io) {
    ColdFolderOptions result = SmallFolder(path);
    result.io = std::move(io);
    result.env = env.get();
    return result;
  };
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  auto folder = OpenLoaded(options(std::move(io)));
  ASSERT_NE(folder, nullptr);

  Journal journal;
  std::atomic<bool> stop = false;
  std::vector<std::thread> workers;
  for (uint64_t i = 0; i < 4; ++i) {
    workers.emplace_back([&, i] { Work(*folder, seed * 4 + i, &journal, &stop); });
  }
  const uint64_t puts = 50 + seed * 37 % 300;
  EXPECT_TRUE(Eventually([&] { return folder->Stats().puts > puts; }));
  // The cut is not one instant: what was durable before it counts, and was not touched during it.
  std::set<uint64_t> durable = journal.durable();
  system->PowerCut(path, copy, seed);
  std::unique_ptr<FaultyFileIo> after = disk->PowerCut(seed);
  for (const uint64_t number : journal.deleted()) durable.erase(number);
  stop = true;
  for (std::thread& worker : workers) worker.join();
  folder.reset();

  std::filesystem::remove_all(path);
  std::filesystem::rename(copy, path);
  folder = OpenLoaded(options(std::move(after)));
  ASSERT_NE(folder, nullptr);
  EXPECT_FALSE(folder->Stats().rebuilding);
  for (uint64_t number = 0; number < kKeys * 4; ++number) {
    const absl::Status got = GetAndCheck(*folder, KeyOf(number));
    if (durable.contains(number)) {
      EXPECT_EQ(got, absl::OkStatus()) << number;
    } else {
      EXPECT_TRUE(got.ok() || absl::IsNotFound(got) || absl::IsDataLoss(got)) << got.ToString();
    }
  }
  EXPECT_FALSE(durable.empty());
}

INSTANTIATE_TEST_SUITE_P(Seeds, ColdPowerCut, ::testing::Range(0, 12));

}  // namespace
}  // namespace terrace::testing
