#include "storage/cold_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/faulty_file_io.h"
#include "tests/storage/cold_support.h"

namespace terrace::testing {
namespace {

constexpr uint32_t kLength = 64 << 10;
constexpr uint64_t kExtents = 21;  // of the small folder, when all are made

TEST(ColdFolder, PutThenGet) {
  TempFolder temp;
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  // Inline, whole pages, and a last page that is not whole.
  for (const uint32_t length : {4096u, 32768u, 65536u, 1u << 20, 100'000u}) {
    TestBlock block(KeyOf(length), length);
    EXPECT_EQ(PutAndWait(*folder, block), absl::OkStatus()) << length;
    EXPECT_EQ(GetAndCheck(*folder, block.key), absl::OkStatus()) << length;
  }
  EXPECT_TRUE(absl::IsNotFound(GetAndCheck(*folder, KeyOf(99))));
  const ColdFolderStats stats = folder->Stats();
  EXPECT_EQ(stats.blocks, 5);
  EXPECT_EQ(stats.puts, 5);
  EXPECT_GT(stats.inline_bytes, 4096 + 32768);
}

TEST(ColdFolder, PutOfWhatIsHereIsASuccess) {
  TempFolder temp;
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  TestBlock block(KeyOf(1), kLength);
  EXPECT_EQ(PutAndWait(*folder, block), absl::OkStatus());
  EXPECT_EQ(PutAndWait(*folder, block), absl::OkStatus());
  EXPECT_EQ(PutAndWait(*folder, block, /*durable=*/true), absl::OkStatus());
  EXPECT_EQ(folder->Stats().puts, 1);
}

TEST(ColdFolder, RefusesWhatDoesNotFitTogether) {
  TempFolder temp;
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  TestBlock block(KeyOf(1), kLength), other(KeyOf(2), kLength);
  block.key = KeyOf(2);
  EXPECT_TRUE(absl::IsInvalidArgument(PutAndWait(*folder, block)));
  other.envelope[20] ^= std::byte{1};
  EXPECT_TRUE(absl::IsInvalidArgument(PutAndWait(*folder, other)));
  TestBlock large(KeyOf(3), 8 << 20);
  EXPECT_TRUE(absl::IsFailedPrecondition(PutAndWait(*folder, large)));
  EXPECT_EQ(folder->Stats().blocks, 0);
}

TEST(ColdFolder, RestartKeepsBlocksScoresAndClock) {
  TempFolder temp;
  {
    auto folder = OpenLoaded(SmallFolder(temp.path()));
    ASSERT_NE(folder, nullptr);
    for (uint64_t i = 0; i < 100; ++i) {
      TestBlock block(KeyOf(i), i % 2 == 0 ? 8192 : kLength);
      ASSERT_EQ(PutAndWait(*folder, block, false, 1.0), absl::OkStatus());
    }
    const BlockKey used = KeyOf(41);
    folder->Touch({&used, 1}, 5.0);
    folder->SetPolicyClock(12.5);
    EXPECT_EQ(folder->WaitForCommit(absl::Seconds(10)), absl::OkStatus());
  }
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  EXPECT_EQ(folder->policy_clock(), 12.5);
  EXPECT_EQ(folder->Stats().blocks, 100);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(GetAndCheck(*folder, KeyOf(i)), absl::OkStatus()) << i;
  }
  ColdBlock found;
  const BlockKey used = KeyOf(41);
  folder->Find({&used, 1}, {&found, 1});
  EXPECT_GT(found.score, 5.0);
}

TEST(ColdFolder, FullAnswersNoSpaceAndGivesUpByScore) {
  TempFolder temp;
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  ASSERT_TRUE(Eventually([&] { return folder->Stats().extents.extents == kExtents; }));
  uint64_t put = 0;
  for (;; ++put) {
    TestBlock block(KeyOf(put), kLength, 4, /*depth=*/put % 3);
    const absl::Status status = PutAndWait(*folder, block, false, /*score=*/put / 10);
    if (absl::IsResourceExhausted(status)) break;
    ASSERT_EQ(status, absl::OkStatus());
  }
  EXPECT_EQ(put, kExtents * (1023 / 17));
  EXPECT_LE(folder->Stats().occupied_bytes, folder->budget_bytes());
  const auto victims = folder->NextVictims(20);
  ASSERT_TRUE(victims.ok());
  ASSERT_EQ(victims->size(), 20);
  std::vector<BlockKey> keys;
  for (size_t i = 0; i < victims->size(); ++i) {
    EXPECT_EQ((*victims)[i].score, i / 10);
    if (i % 10 > 0) {
      EXPECT_LE((*victims)[i].depth, (*victims)[i - 1].depth);
    }
    keys.push_back((*victims)[i].key);
  }
  EXPECT_EQ(folder->Delete(keys, ColdLeave::kEvicted), absl::OkStatus());
  EXPECT_EQ(folder->WaitForCommit(absl::Seconds(10)), absl::OkStatus());
  TestBlock next(KeyOf(put), kLength);
  EXPECT_EQ(PutAndWait(*folder, next), absl::OkStatus());
  EXPECT_EQ(GetAndCheck(*folder, next.key), absl::OkStatus());
  EXPECT_EQ(folder->Stats().evicted, 20);
}

TEST(ColdFolder, ExtentsChangeTheirSlotSize) {
  TempFolder temp;
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  ASSERT_TRUE(Eventually([&] { return folder->Stats().extents.extents == kExtents; }));
  for (uint64_t i = 0;; ++i) {
    TestBlock block(KeyOf(i), kLength);
    if (!PutAndWait(*folder, block, false, i).ok()) break;
  }
  TestBlock large(KeyOf(1'000'000), 1 << 20);
  EXPECT_TRUE(absl::IsResourceExhausted(PutAndWait(*folder, large)));
  const auto victims = folder->VictimsForLength(1 << 20);
  ASSERT_TRUE(victims.ok());
  EXPECT_EQ(victims->size(), 1023 / 17);
  std::vector<BlockKey> keys;
  for (const ColdVictim& victim : *victims) keys.push_back(victim.key);
  EXPECT_EQ(folder->Delete(keys, ColdLeave::kEvicted), absl::OkStatus());
  EXPECT_EQ(folder->WaitForCommit(absl::Seconds(10)), absl::OkStatus());
  EXPECT_EQ(PutAndWait(*folder, large), absl::OkStatus());
  EXPECT_EQ(GetAndCheck(*folder, large.key), absl::OkStatus());
}

TEST(ColdFolder, ExpiredBlocksAreMissesAndLeave) {
  TempFolder temp;
  std::atomic<int64_t> now = 1000;
  ColdFolderOptions options = SmallFolder(temp.path());
  options.unix_seconds = [&] { return now.load(); };
  auto folder = OpenLoaded(std::move(options));
  ASSERT_NE(folder, nullptr);
  TestBlock brief(KeyOf(1), kLength), lasting(KeyOf(2), kLength);
  EXPECT_EQ(PutAndWait(*folder, brief, false, 0, /*expires_at=*/1010), absl::OkStatus());
  EXPECT_EQ(PutAndWait(*folder, lasting), absl::OkStatus());
  EXPECT_EQ(GetAndCheck(*folder, brief.key), absl::OkStatus());
  now = 1010;
  EXPECT_TRUE(absl::IsNotFound(GetAndCheck(*folder, brief.key)));
  EXPECT_TRUE(Eventually([&] { return folder->Stats().expired == 1; }));
  EXPECT_EQ(GetAndCheck(*folder, lasting.key), absl::OkStatus());
}

TEST(ColdFolder, BelongsToOneNodeAndOneProcess) {
  TempFolder temp;
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  EXPECT_TRUE(absl::IsFailedPrecondition(ColdFolder::Open(SmallFolder(temp.path())).status()));
  folder.reset();
  ColdFolderOptions other = SmallFolder(temp.path());
  other.node = "n2";
  const absl::Status refused = ColdFolder::Open(std::move(other)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("belongs to node n1"));
  EXPECT_NE(OpenLoaded(SmallFolder(temp.path())), nullptr);
}

TEST(ColdFolder, RefusesForeignFoldersAndLaterFormats) {
  TempFolder temp;
  std::ofstream(temp.path() + "/holiday.jpg") << "x";
  EXPECT_TRUE(absl::IsFailedPrecondition(ColdFolder::Open(SmallFolder(temp.path())).status()));
  EXPECT_FALSE(std::filesystem::exists(temp.path() + "/lock")) << "nothing is put into it";
  TempFolder later;
  std::ofstream(later.path() + "/terrace-ssd") << "format 2\nwhatever\n";
  const absl::Status refused = ColdFolder::Open(SmallFolder(later.path())).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("format 2"));
}

TEST(ColdFolder, ALookSaysWhatAStartWouldSayAndChangesNothing) {
  TempFolder temp;
  const std::string foreign = temp.path() + "/foreign", damaged = temp.path() + "/damaged";
  const std::string file = temp.path() + "/file", under = file + "/ssd";
  std::filesystem::create_directory(foreign);
  std::filesystem::create_directory(damaged);
  std::ofstream(foreign + "/holiday.jpg") << "x";
  std::ofstream(damaged + "/terrace-ssd") << "format 1\ncluster\n";
  std::ofstream(file) << "x";
  const FolderIdentity ours{"test", "n1"};
  for (const std::string& path : {foreign, damaged, file, under}) {
    const absl::Status look = LookAtFolder(path, ours);
    EXPECT_FALSE(look.ok()) << path;
    EXPECT_THAT(std::string(look.message()), ::testing::HasSubstr("; ")) << "the mend";
    EXPECT_EQ(look, ColdFolder::Open(SmallFolder(path)).status());
    EXPECT_EQ(look, LookAtFolder(path, ours));
  }
  EXPECT_EQ(LookAtFolder(temp.path() + "/not/there/yet", ours), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(temp.path() + "/not"));

  const std::string good = temp.path() + "/good";
  EXPECT_EQ(LookAtLock(good), absl::OkStatus());
  auto folder = OpenLoaded(SmallFolder(good));
  ASSERT_NE(folder, nullptr);
  EXPECT_EQ(LookAtFolder(good, ours), absl::OkStatus());
  EXPECT_EQ(LookAtLock(good), ColdFolder::Open(SmallFolder(good)).status());
  folder.reset();
  EXPECT_EQ(LookAtLock(good), absl::OkStatus());
  EXPECT_NE(OpenLoaded(SmallFolder(good)), nullptr) << "the lock is free again";
  ColdFolderOptions other = SmallFolder(good);
  other.node = "n2";
  EXPECT_EQ(LookAtFolder(good, {"test", "n2"}), ColdFolder::Open(std::move(other)).status());
}

// Opening reads little of a catalogue; what is broken in it shows while it is loaded.
TEST(ColdFolder, ACatalogueFoundBrokenWhileLoadingCostsWritesUntilTheNextStart) {
  TempFolder temp;
  for (int start = 0; start < 2; ++start) {  // the second makes files of the log
    auto folder = OpenLoaded(SmallFolder(temp.path()));
    for (uint64_t i = 0; i < 1000 && start == 0; ++i) {
      TestBlock block(KeyOf(i), kLength);
      const absl::Status put = PutAndWait(*folder, block);
      ASSERT_TRUE(put.ok() || absl::IsResourceExhausted(put)) << put;
    }
  }
  for (const auto& file : std::filesystem::directory_iterator(temp.path() + "/catalogue")) {
    if (file.path().extension() != ".sst") continue;
    std::fstream bytes(file.path());
    bytes.seekp(100);
    bytes << "not what was here";
  }
  {
    auto folder = ColdFolder::Open(SmallFolder(temp.path())).value();
    EXPECT_TRUE(absl::IsDataLoss(folder->WaitUntilLoaded(absl::Seconds(20))));
    EXPECT_EQ(folder->Stats().health, FolderHealth::kWritesFail);
    EXPECT_NE(folder->Stats().load_error, "");
    ColdBlock found;
    const BlockKey stranger = KeyOf(5000);
    folder->Find({&stranger, 1}, {&found, 1});
    EXPECT_EQ(found.presence, Presence::kAbsent) << "nobody waits for what does not come";
    TestBlock block(KeyOf(5000), kLength);
    EXPECT_TRUE(absl::IsUnavailable(PutAndWait(*folder, block)));
  }
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  EXPECT_GT(folder->Stats().blocks, 0) << "rebuilt from the extents";
  EXPECT_EQ(GetAndCheck(*folder, KeyOf(0)), absl::OkStatus());
}

TEST(ColdFolder, AFolderThatIsMadeHereIsItsOwnersAlone) {
  TempFolder temp;
  const std::string path = temp.path() + "/new/ssd";
  ASSERT_NE(OpenLoaded(SmallFolder(path)), nullptr);
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all);
}

TEST(ColdFolder, LostCatalogueIsRebuiltFromTheExtents) {
  TempFolder temp;
  {
    auto folder = OpenLoaded(SmallFolder(temp.path()));
    ASSERT_NE(folder, nullptr);
    ASSERT_TRUE(Eventually([&] { return folder->Stats().extents.extents == kExtents; }));
    for (uint64_t i = 0; i < 60; ++i) {
      TestBlock block(KeyOf(i), i % 2 == 0 ? kLength : 200'000);
      ASSERT_EQ(PutAndWait(*folder, block), absl::OkStatus());
    }
    EXPECT_EQ(folder->WaitForCommit(absl::Seconds(10)), absl::OkStatus());
  }
  std::filesystem::remove_all(temp.path() + "/catalogue");
  for (int round = 0; round < 2; ++round) {  // the second start finds what the first made
    auto folder = OpenLoaded(SmallFolder(temp.path()));
    ASSERT_NE(folder, nullptr);
    EXPECT_EQ(folder->Stats().blocks, 60);
    for (uint64_t i = 0; i < 60; ++i) {
      EXPECT_EQ(GetAndCheck(*folder, KeyOf(i)), absl::OkStatus()) << i;
    }
  }
}

TEST(ColdFolder, ACatalogueThatCannotBeLookedAtIsNotTakenForLost) {
  TempFolder temp;
  { ASSERT_NE(OpenLoaded(SmallFolder(temp.path())), nullptr); }
  const std::string catalogue = temp.path() + "/catalogue";
  std::filesystem::rename(catalogue, temp.path() + "/elsewhere");
  std::filesystem::create_symlink("catalogue", catalogue);  // a loop
  const absl::Status opened = ColdFolder::Open(SmallFolder(temp.path())).status();
  EXPECT_TRUE(absl::IsUnavailable(opened)) << opened;
  EXPECT_THAT(opened.message(), ::testing::HasSubstr(catalogue));
}

// Deletions that come while the table is loading, from several threads at once.
TEST(ColdFolder, DeletionsWhileLoadingAreInTableAndCatalogueOrInNeither) {
  constexpr uint64_t kBlocks = 2000;
  TempFolder temp;
  {
    auto folder = OpenLoaded(SmallFolder(temp.path()));
    ASSERT_NE(folder, nullptr);
    for (uint64_t i = 0; i < kBlocks; ++i) {
      TestBlock block(KeyOf(i), 4096);
      ASSERT_EQ(PutAndWait(*folder, block), absl::OkStatus()) << i;
    }
  }
  for (int start = 0; start < 3; ++start) {
    auto folder = ColdFolder::Open(SmallFolder(temp.path())).value();
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (uint64_t i = start * 300 + thread; i < start * 300 + 300u; i += 3) {
          const BlockKey key = KeyOf(i);
          EXPECT_EQ(folder->Delete({&key, 1}, ColdLeave::kForgotten), absl::OkStatus());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(folder->WaitUntilLoaded(absl::Seconds(20)), absl::OkStatus());
    const uint64_t left = kBlocks - 300 * (start + 1);
    EXPECT_EQ(folder->Stats().blocks, left);
    uint64_t catalogued = 0;
    const auto count = [&](const BlockKey&, const BlockRecord&) { return ++catalogued > 0; };
    EXPECT_EQ(folder->Scan(std::nullopt, std::nullopt, count), absl::OkStatus());
    EXPECT_EQ(catalogued, left);
  }
}

TEST(ColdFolder, BlocksInTheCatalogueAreNotReadByWhoAsks) {
  TempFolder temp;
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  TestBlock block(KeyOf(1), 4096);
  ASSERT_EQ(PutAndWait(*folder, block), absl::OkStatus());
  AlignedBytes value(4096);
  std::vector<std::byte> envelope(block.envelope.size());
  Answer answer;
  std::thread::id reader;
  ColdGet get{block.key, envelope, value.span(), {}, answer.Released()};
  get.done = [&, done = answer.Done()](absl::Status status) mutable {
    reader = std::this_thread::get_id();
    done(std::move(status));
  };
  folder->Get(std::move(get));
  EXPECT_EQ(answer.Wait(), absl::OkStatus());
  EXPECT_NE(reader, std::this_thread::get_id());
}

TEST(ColdFolder, BrokenManifestIsRebuiltToo) {
  TempFolder temp;
  {
    auto folder = OpenLoaded(SmallFolder(temp.path()));
    ASSERT_NE(folder, nullptr);
    TestBlock block(KeyOf(1), kLength);
    ASSERT_EQ(PutAndWait(*folder, block, /*durable=*/true), absl::OkStatus());
  }
  for (const auto& entry : std::filesystem::directory_iterator(temp.path() + "/catalogue")) {
    if (entry.path().filename().string().starts_with("MANIFEST")) {
      std::filesystem::resize_file(entry.path(), 10);
    }
  }
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  EXPECT_EQ(GetAndCheck(*folder, KeyOf(1)), absl::OkStatus());
}

// One bit of a block's slot flipped behind the store's back: never handed out, dropped, counted.
TEST(ColdFolder, FlippedBitsAreCountedMisses) {
  TempFolder temp;
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  for (uint64_t i = 0; i < 20; ++i) {
    TestBlock block(KeyOf(i), kLength);
    ASSERT_EQ(PutAndWait(*folder, block), absl::OkStatus());
  }
  const int fd = ::open((temp.path() + "/extents/00000000.extent").c_str(), O_RDWR);
  std::mt19937 random(5);
  for (uint64_t i = 0; i < 20; ++i) {
    // Slot i: header page and 16 pages after the extent's own page.
    const off_t slot = 4096 * (1 + 17 * static_cast<off_t>(i));
    const off_t at = slot + static_cast<off_t>(i == 0 ? 0 : random() % (17 * 4096));
    char byte;
    ASSERT_EQ(::pread(fd, &byte, 1, at), 1);
    byte ^= 1 << random() % 8;
    ASSERT_EQ(::pwrite(fd, &byte, 1, at), 1);
  }
  ::fsync(fd);
  ::close(fd);
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(absl::IsDataLoss(GetAndCheck(*folder, KeyOf(i)))) << i;
  }
  EXPECT_TRUE(Eventually([&] { return folder->Stats().corrupt == 20; }));
  EXPECT_TRUE(absl::IsNotFound(GetAndCheck(*folder, KeyOf(0))));
  EXPECT_GT(folder->Stats().extents.set_aside_bytes, 0);
  TestBlock again(KeyOf(0), kLength);
  EXPECT_EQ(PutAndWait(*folder, again), absl::OkStatus());
  EXPECT_EQ(GetAndCheck(*folder, KeyOf(0)), absl::OkStatus());
}

TEST(ColdFolder, ManyThreadsPutGetAndDelete) {
  TempFolder temp;
  auto folder = OpenLoaded(SmallFolder(temp.path()));
  ASSERT_NE(folder, nullptr);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 300; ++i) {
        const uint64_t number = random() % 50;
        const uint32_t length = number % 2 == 0 ? 8192 : 36'864;
        TestBlock block(KeyOf(number), length);
        switch (random() % 4) {
          case 0: {
            folder->Delete({&block.key, 1}, ColdLeave::kForgotten).IgnoreError();
            break;
          }
          case 1: {
            const absl::Status put = PutAndWait(*folder, block, random() % 8 == 0);
            if (!put.ok() && !absl::IsResourceExhausted(put) && !absl::IsAborted(put) &&
                !absl::IsCancelled(put)) {
              ++wrong;
            }
            break;
          }
          default: {
            const absl::Status got = GetAndCheck(*folder, block.key);
            if (!got.ok() && !absl::IsNotFound(got) && !absl::IsDataLoss(got)) ++wrong;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(folder->Stats().corrupt, 0);
}

}  // namespace
}  // namespace terrace::testing
