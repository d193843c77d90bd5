// The ssd tier on a disk that fails on command: errors, short and torn transfers, flipped and
// misplaced bytes, a device that hangs, a disk that is full.
#include <cerrno>

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/faulty_file_io.h"
#include "tests/storage/cold_support.h"

namespace terrace::testing {
namespace {

constexpr uint32_t kLength = 64 << 10;

class ColdFault : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }

  void Open() {
    auto io = std::make_unique<FaultyFileIo>();
    disk_ = io.get();
    ColdFolderOptions options = SmallFolder(temp_.path());
    options.io = std::move(io);
    options.clock = &clock_;
    folder_ = OpenLoaded(std::move(options));
    ASSERT_NE(folder_, nullptr);
    ASSERT_TRUE(Eventually([&] { return folder_->Stats().extents.extents == 21; }));
    // The first block makes its extent's header; the faults below are for what follows.
    TestBlock first(KeyOf(0), kLength);
    // Durable: the header, which nobody waits for, goes before the sync.
    ASSERT_EQ(PutAndWait(*folder_, first, /*durable=*/true), absl::OkStatus());
  }
  // Does `fault` to the next `count` requests of `kind`.
  void Fail(IoKind kind, IoFault fault, int count = 1) {
    disk_->SetScript([=, left = count](const IoRequest& request) mutable {
      return request.kind == kind && left-- > 0 ? fault : IoFault{};
    });
  }
  std::string ExtentPath() const { return temp_.path() + "/extents/00000000.extent"; }

  TempFolder temp_;
  ManualClock clock_;
  FaultyFileIo* disk_ = nullptr;
  std::unique_ptr<ColdFolder> folder_;
};

TEST_F(ColdFault, WriteErrorFailsThatPutOnly) {
  TestBlock block(KeyOf(1), kLength);
  Fail(IoKind::kWrite, {IoFault::kError, EIO});
  EXPECT_TRUE(absl::IsUnavailable(PutAndWait(*folder_, block)));
  EXPECT_TRUE(absl::IsNotFound(GetAndCheck(*folder_, block.key)));
  EXPECT_EQ(folder_->Stats().extents.set_aside_bytes, 17 * 4096);
  EXPECT_EQ(PutAndWait(*folder_, block), absl::OkStatus());
  EXPECT_EQ(GetAndCheck(*folder_, block.key), absl::OkStatus());
}

TEST_F(ColdFault, WritesRestAfterErrorsInARowAndComeBack) {
  TestBlock block(KeyOf(1), kLength);
  Fail(IoKind::kWrite, {IoFault::kError, EIO}, 3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(absl::IsUnavailable(PutAndWait(*folder_, block)));
  EXPECT_FALSE(folder_->AcceptsWrites());
  EXPECT_EQ(folder_->Stats().health, FolderHealth::kWritesFail);
  EXPECT_THAT(folder_->Stats().writes_error, ::testing::HasSubstr("Input/output"));
  EXPECT_TRUE(absl::IsUnavailable(PutAndWait(*folder_, block)));
  EXPECT_EQ(GetAndCheck(*folder_, KeyOf(0)), absl::OkStatus());  // reads go on
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(PutAndWait(*folder_, block, /*durable=*/true), absl::OkStatus());
  EXPECT_EQ(folder_->Stats().health, FolderHealth::kHealthy);
  EXPECT_EQ(folder_->Stats().writes_error, "");
}

// Who gives up blocks for want of a slot must not do so for this.
TEST_F(ColdFault, AKeyThatIsBeingWrittenIsNoWantOfSpace) {
  TestBlock block(KeyOf(1), kLength);
  Fail(IoKind::kWrite, {.kind = IoFault::kHold});
  std::thread first([&] { EXPECT_EQ(PutAndWait(*folder_, block), absl::OkStatus()); });
  EXPECT_TRUE(disk_->WaitForHeld(1));
  TestBlock again(KeyOf(1), kLength);
  EXPECT_TRUE(absl::IsAborted(PutAndWait(*folder_, again)));
  disk_->Release();
  first.join();
  EXPECT_EQ(folder_->Stats().puts_no_space, 0);
}

TEST_F(ColdFault, FullDiskIsNoSpace) {
  TestBlock block(KeyOf(1), kLength);
  Fail(IoKind::kWrite, {IoFault::kError, ENOSPC});
  EXPECT_TRUE(absl::IsResourceExhausted(PutAndWait(*folder_, block)));
  EXPECT_EQ(PutAndWait(*folder_, block), absl::OkStatus());
}

TEST_F(ColdFault, ShortTransfersAreFinished) {
  TestBlock block(KeyOf(1), kLength);
  Fail(IoKind::kWrite, {.kind = IoFault::kShort, .bytes = 3 * 4096});
  EXPECT_EQ(PutAndWait(*folder_, block), absl::OkStatus());
  EXPECT_EQ(GetAndCheck(*folder_, block.key), absl::OkStatus());
  Fail(IoKind::kRead, {.kind = IoFault::kShort, .bytes = 4096}, 5);
  EXPECT_EQ(GetAndCheck(*folder_, block.key), absl::OkStatus());
  Fail(IoKind::kRead, {.kind = IoFault::kShort, .bytes = 0});
  EXPECT_TRUE(absl::IsUnavailable(GetAndCheck(*folder_, block.key)));
  EXPECT_EQ(GetAndCheck(*folder_, block.key), absl::OkStatus());
}

TEST_F(ColdFault, TornWritesAreCountedMisses) {
  for (uint64_t pages = 0; pages < 17; ++pages) {
    TestBlock block(KeyOf(1 + pages), kLength);
    Fail(IoKind::kWrite, {.kind = IoFault::kTorn, .bytes = pages * 4096});
    ASSERT_EQ(PutAndWait(*folder_, block, /*durable=*/true), absl::OkStatus());
    EXPECT_TRUE(absl::IsDataLoss(GetAndCheck(*folder_, block.key))) << pages;
  }
  EXPECT_TRUE(Eventually([&] { return folder_->Stats().corrupt == 17; }));
}

TEST_F(ColdFault, FlippedBitsInReadsAreCaught) {
  for (uint64_t i = 0; i < 200; ++i) {
    TestBlock block(KeyOf(1 + i), kLength);
    ASSERT_EQ(PutAndWait(*folder_, block), absl::OkStatus());
    Fail(IoKind::kRead, {.kind = IoFault::kFlip, .bit = (i * 7919) % (17 * 4096 * 8)});
    EXPECT_TRUE(absl::IsDataLoss(GetAndCheck(*folder_, block.key))) << i;
  }
}

TEST_F(ColdFault, SwappedPagesAreCaught) {
  TestBlock a(KeyOf(1), kLength), b(KeyOf(2), kLength);
  ASSERT_EQ(PutAndWait(*folder_, a), absl::OkStatus());
  ASSERT_EQ(PutAndWait(*folder_, b), absl::OkStatus());
  // Whole slots: each is consistent by itself, but lies where the other belongs.
  for (uint64_t page = 0; page < 17; ++page) {
    disk_->SwapPages(ExtentPath(), 1 + 17 + page, ExtentPath(), 1 + 34 + page);
  }
  EXPECT_TRUE(absl::IsDataLoss(GetAndCheck(*folder_, a.key)));
  EXPECT_TRUE(absl::IsDataLoss(GetAndCheck(*folder_, b.key)));
  EXPECT_EQ(GetAndCheck(*folder_, KeyOf(0)), absl::OkStatus());
}

TEST_F(ColdFault, HungReadIsAnsweredInTimeAndReleasedLater) {
  Fail(IoKind::kRead, {IoFault::kHold});
  AlignedBytes value(kLength);
  std::vector<std::byte> envelope(EnvelopeBytes(4, 0));
  Answer answer;
  ColdGet get{KeyOf(0), envelope, value.span(), answer.Done(), answer.Released()};
  folder_->Get(std::move(get));
  ASSERT_TRUE(disk_->WaitForHeld(1));
  folder_->CheckDeadlines();
  EXPECT_EQ(folder_->Stats().health, FolderHealth::kHealthy);
  clock_.Advance(absl::Seconds(6));
  folder_->CheckDeadlines();
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.Wait()));
  EXPECT_FALSE(answer.released());
  EXPECT_EQ(folder_->Stats().health, FolderHealth::kHangs);
  TestBlock block(KeyOf(1), kLength);
  EXPECT_TRUE(absl::IsUnavailable(PutAndWait(*folder_, block)));
  disk_->Release();
  EXPECT_TRUE(answer.WaitReleased());
  EXPECT_TRUE(Eventually([&] { return folder_->Stats().health == FolderHealth::kHealthy; }));
  EXPECT_EQ(PutAndWait(*folder_, block), absl::OkStatus());
}

TEST_F(ColdFault, HungWriteKeepsItsSlotUntilTheDeviceLetsGo) {
  Fail(IoKind::kWrite, {IoFault::kHold});
  TestBlock block(KeyOf(1), kLength);
  Answer answer;
  ColdPut put = PutOf(block, /*durable=*/true);
  put.done = answer.Done();
  put.released = answer.Released();
  folder_->Put(std::move(put));
  ASSERT_TRUE(disk_->WaitForHeld(1));
  clock_.Advance(absl::Seconds(6));
  folder_->CheckDeadlines();
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.Wait()));
  EXPECT_EQ(folder_->Stats().occupied_bytes, 2 * 17 * 4096);
  EXPECT_EQ(folder_->Stats().health, FolderHealth::kHangs);
  EXPECT_EQ(GetAndCheck(*folder_, KeyOf(0)), absl::OkStatus());  // reads go on
  disk_->Release();
  EXPECT_TRUE(answer.WaitReleased());
  EXPECT_TRUE(Eventually([&] { return folder_->Stats().in_flight == 0; }));
  EXPECT_EQ(GetAndCheck(*folder_, block.key), absl::OkStatus());
}

TEST_F(ColdFault, DurableIsNeverSaidAfterAFailedSync) {
  TestBlock block(KeyOf(1), kLength);
  Fail(IoKind::kDataSync, {IoFault::kError, EIO}, 2);
  EXPECT_TRUE(absl::IsUnavailable(PutAndWait(*folder_, block, /*durable=*/true)));
  EXPECT_GT(folder_->Stats().failed_syncs, 0);
  EXPECT_EQ(GetAndCheck(*folder_, block.key), absl::OkStatus());
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(Eventually([&] { return folder_->WaitForCommit(absl::Seconds(10)).ok(); }));
  EXPECT_EQ(PutAndWait(*folder_, block, /*durable=*/true), absl::OkStatus());
}

TEST_F(ColdFault, ThroughThePageCacheAFailedSyncIsNotMadeUpForByTheNext) {
  TestBlock before(KeyOf(1), kLength), after(KeyOf(2), kLength);
  disk_->SetDirect(false);
  Fail(IoKind::kDataSync, {IoFault::kError, EIO});
  EXPECT_TRUE(absl::IsUnavailable(PutAndWait(*folder_, before, /*durable=*/true)));
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(Eventually([&] { return folder_->WaitForCommit(absl::Seconds(10)).ok(); }));
  EXPECT_TRUE(absl::IsUnavailable(PutAndWait(*folder_, before, /*durable=*/true)));
  EXPECT_EQ(PutAndWait(*folder_, before), absl::OkStatus());
  EXPECT_EQ(PutAndWait(*folder_, after, /*durable=*/true), absl::OkStatus());
}

// Nobody waits for the header of an extent, but commits do.
TEST_F(ColdFault, AHungHeaderIsSeen) {
  TestBlock block(KeyOf(1), 2 * kLength);  // of another size: another extent
  disk_->SetScript([](const IoRequest& request) {
    const bool header = request.kind == IoKind::kWrite && request.offset == 0;
    return header ? IoFault{IoFault::kHold} : IoFault{};
  });
  EXPECT_EQ(PutAndWait(*folder_, block), absl::OkStatus());
  ASSERT_TRUE(disk_->WaitForHeld(1));
  clock_.Advance(absl::Seconds(6));
  folder_->CheckDeadlines();
  EXPECT_EQ(folder_->Stats().health, FolderHealth::kHangs);
  EXPECT_FALSE(folder_->AcceptsWrites());
  disk_->Release();
  EXPECT_TRUE(Eventually([&] { return folder_->Stats().health == FolderHealth::kHealthy; }));
  EXPECT_EQ(folder_->WaitForCommit(absl::Seconds(10)), absl::OkStatus());
}

TEST_F(ColdFault, WhatIsBeingWrittenLeavesWithItsNamespace) {
  TestBlock block(KeyOf(1), kLength), other(KeyOf(2, /*ns=*/8), kLength);
  Fail(IoKind::kWrite, {IoFault::kHold}, 2);
  Answer answers[2];
  ColdPut puts[] = {PutOf(block), PutOf(other)};
  for (int i = 0; i < 2; ++i) {
    puts[i].done = answers[i].Done();
    folder_->Put(std::move(puts[i]));
  }
  ASSERT_TRUE(disk_->WaitForHeld(2));
  EXPECT_EQ(folder_->CountWrites(block.key.ns, /*doom=*/true), 1);
  disk_->Release();
  EXPECT_TRUE(absl::IsCancelled(answers[0].Wait()));
  EXPECT_EQ(answers[1].Wait(), absl::OkStatus());
  EXPECT_EQ(folder_->CountWrites(block.key.ns, /*doom=*/true), 0);
  EXPECT_TRUE(absl::IsNotFound(GetAndCheck(*folder_, block.key)));
  EXPECT_EQ(GetAndCheck(*folder_, other.key), absl::OkStatus());
}

// As after a power cut that kept the entry of a block and not its bytes.
TEST_F(ColdFault, DurableIsNotSaidOfAnExistingBlockThatIsLost) {
  TestBlock block(KeyOf(1), kLength);
  Fail(IoKind::kWrite, {.kind = IoFault::kTorn, .bytes = 0});
  ASSERT_EQ(PutAndWait(*folder_, block), absl::OkStatus());
  const absl::Status refused = PutAndWait(*folder_, block, /*durable=*/true);
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_TRUE(Eventually([&] { return folder_->Stats().corrupt == 1; }));
  EXPECT_EQ(PutAndWait(*folder_, block, /*durable=*/true), absl::OkStatus());
  EXPECT_EQ(PutAndWait(*folder_, block, /*durable=*/true), absl::OkStatus());
  EXPECT_EQ(GetAndCheck(*folder_, block.key), absl::OkStatus());
}

TEST_F(ColdFault, FreedSlotsWaitForTheCommit) {
  TestBlock block(KeyOf(1), kLength);
  ASSERT_EQ(PutAndWait(*folder_, block, /*durable=*/true), absl::OkStatus());
  Fail(IoKind::kDataSync, {IoFault::kHold});
  TestBlock other(KeyOf(2), kLength);
  ASSERT_EQ(PutAndWait(*folder_, other), absl::OkStatus());  // something to sync
  ASSERT_TRUE(disk_->WaitForHeld(1));
  const uint64_t occupied = folder_->Stats().occupied_bytes;
  ASSERT_EQ(folder_->Delete({&block.key, 1}, ColdLeave::kEvicted), absl::OkStatus());
  EXPECT_EQ(folder_->Stats().occupied_bytes, occupied);
  EXPECT_EQ(folder_->Stats().extents.quarantined_bytes, 17 * 4096);
  disk_->Release();
  EXPECT_TRUE(Eventually([&] { return folder_->Stats().occupied_bytes == occupied - 17 * 4096; }));
}

TEST(ColdStart, OfADeviceThatHangsIsAnError) {
  TempFolder temp;
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  disk->SetScript([](const IoRequest&) { return IoFault{IoFault::kHold}; });
  ColdFolderOptions options = SmallFolder(temp.path());
  options.io = std::move(io);
  options.start_deadline = absl::Milliseconds(50);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ColdFolder::Open(std::move(options)).status()));
  delete disk;  // answers at last; the folder has left it to those requests
}

TEST(ColdFullDisk, BudgetShrinksToTheDiskAndGrowsWithIt) {
  TempFolder temp;
  ManualClock clock;
  auto io = std::make_unique<FaultyFileIo>();
  FaultyFileIo* const disk = io.get();
  disk->SetCapacity(2 * (4 << 20));
  ColdFolderOptions options = SmallFolder(temp.path());
  options.io = std::move(io);
  options.clock = &clock;
  auto folder = OpenLoaded(std::move(options));
  ASSERT_NE(folder, nullptr);
  ASSERT_TRUE(Eventually([&] { return folder->Stats().extents.extents == 2; }));
  TestBlock block(KeyOf(1), kLength);
  EXPECT_EQ(PutAndWait(*folder, block), absl::OkStatus());
  disk->SetCapacity(UINT64_MAX);
  clock.Advance(absl::Seconds(5));
  EXPECT_TRUE(Eventually([&] { return folder->Stats().extents.extents == 21; }));
}

TEST(ColdFullDisk, NoRoomForOneExtentIsAnErrorAtStart) {
  TempFolder temp;
  auto io = std::make_unique<FaultyFileIo>();
  io->SetCapacity(1 << 20);
  ColdFolderOptions options = SmallFolder(temp.path());
  options.io = std::move(io);
  EXPECT_TRUE(absl::IsResourceExhausted(ColdFolder::Open(std::move(options)).status()));
}

}  // namespace
}  // namespace terrace::testing
