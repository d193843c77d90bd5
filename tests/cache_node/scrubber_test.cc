// How a scrub ends: by itself, by who watches it, and with the node.
#include "cache_node/scrubber.h"

#include <gtest/gtest.h>

#include <optional>

#include "proto/clock.h"
#include "storage/faulty_file_io.h"
#include "tests/storage/cold_support.h"

namespace terrace {
namespace {

constexpr uint32_t kBlockBytes = 64 << 10;
constexpr uint64_t kBlocks = 8;
// The next block would be read in a day.
constexpr uint64_t kHardlyAnything = 1;
// A scrub looks every 100 ms; the rest is for a busy machine.
constexpr absl::Duration kPromptly = absl::Seconds(1);
constexpr absl::Duration kPatience = absl::Seconds(20);

class ScrubberTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ColdTierOptions options;
    options.folders.push_back(testing::SmallFolder(folder_.path() + "/ssd"));
    auto io = std::make_unique<FaultyFileIo>();
    disk_ = io.get();
    options.folders.back().io = std::move(io);
    tier_ = ColdTier::Open(std::move(options)).value();
    ASSERT_TRUE(tier_->store().WaitUntilLoaded(kPatience).ok());
    testing::OneByOne device(tier_->store());
    for (uint64_t i = 0; i < kBlocks; ++i) {
      testing::TestBlock block(testing::KeyOf(i), kBlockBytes);
      ASSERT_TRUE(testing::PutAndWait(device, block).ok());
    }
    scrubber_ = std::make_unique<Scrubber>(tier_.get());
  }

  absl::Status Start(uint64_t bytes_per_second) {
    return scrubber_->Start(bytes_per_second, [this](const ScrubProgress& progress) {
      MutexLock lock(&mutex_);
      ++told_;
      last_ = progress;
      changed_.SignalAll();
      return !cancelled_;
    });
  }
  bool WaitFor(const std::function<bool()>& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Duration until = Clock::Real()->Now() + kPatience;
    while (!condition()) {
      const absl::Duration left = until - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitWithTimeout(&mutex_, left);
    }
    return true;
  }

  testing::TempFolder folder_;
  FaultyFileIo* disk_ = nullptr;
  std::unique_ptr<ColdTier> tier_;
  Mutex mutex_;
  CondVar changed_;
  bool cancelled_ = false;  // guarded by mutex_, as is all below
  int told_ = 0;
  ScrubProgress last_;
  std::unique_ptr<Scrubber> scrubber_;
};

TEST_F(ScrubberTest, ReadsEveryBlock) {
  ASSERT_TRUE(Start(/*bytes_per_second=*/0).ok());
  MutexLock lock(&mutex_);
  ASSERT_TRUE(WaitFor([this] { return last_.done; }));
  EXPECT_TRUE(last_.status.ok()) << last_.status;
  EXPECT_EQ(last_.blocks, kBlocks);
  EXPECT_EQ(last_.bytes, kBlocks * kBlockBytes);
}

TEST_F(ScrubberTest, WhatCannotBeReadIsNotWhatLeft) {
  disk_->SetScript([](const IoRequest& request) {
    return request.kind == IoKind::kRead ? IoFault{IoFault::kError, EIO} : IoFault{};
  });
  ASSERT_TRUE(Start(/*bytes_per_second=*/0).ok());
  {
    MutexLock lock(&mutex_);
    ASSERT_TRUE(WaitFor([this] { return last_.done; }));
    EXPECT_EQ(last_.blocks, kBlocks);
    EXPECT_EQ(last_.unreadable, kBlocks);
    EXPECT_EQ(last_.left, 0);
    EXPECT_EQ(last_.bytes, 0);
    last_ = {};
  }
  // The first reads are held, and meanwhile all the others leave.
  disk_->SetScript([](const IoRequest& request) {
    return request.kind == IoKind::kRead ? IoFault{IoFault::kHold} : IoFault{};
  });
  ASSERT_TRUE(testing::Eventually([this] { return Start(/*bytes_per_second=*/0).ok(); }));
  ASSERT_TRUE(disk_->WaitForHeld(2));
  for (uint64_t i = 0; i < kBlocks; ++i) ASSERT_TRUE(tier_->Delete(testing::KeyOf(i)).ok());
  disk_->SetScript({});
  disk_->Release();
  MutexLock lock(&mutex_);
  ASSERT_TRUE(WaitFor([this] { return last_.done; }));
  EXPECT_EQ(last_.blocks, kBlocks);
  EXPECT_GE(last_.left, kBlocks - 2);
  EXPECT_EQ(last_.unreadable, 0);
  EXPECT_EQ(last_.corrupt, 0);
}

TEST_F(ScrubberTest, IsCancelledWhileItWaitsForTheRate) {
  ASSERT_TRUE(Start(kHardlyAnything).ok());
  MutexLock lock(&mutex_);
  ASSERT_TRUE(WaitFor([this] { return told_ >= 2; }));  // it waits, and tells
  EXPECT_LT(last_.blocks, kBlocks);
  cancelled_ = true;
  const absl::Duration begin = Clock::Real()->Now();
  ASSERT_TRUE(WaitFor([this] { return !last_.status.ok(); }));
  EXPECT_LT(Clock::Real()->Now() - begin, kPromptly);
  EXPECT_TRUE(absl::IsCancelled(last_.status)) << last_.status;
  EXPECT_FALSE(last_.done);
}

TEST_F(ScrubberTest, EndsWithTheNodeWhileItWaitsForTheRate) {
  ASSERT_TRUE(Start(kHardlyAnything).ok());
  {
    MutexLock lock(&mutex_);
    ASSERT_TRUE(WaitFor([this] { return told_ >= 1; }));
  }
  const absl::Duration begin = Clock::Real()->Now();
  scrubber_.reset();
  EXPECT_LT(Clock::Real()->Now() - begin, kPromptly);
  MutexLock lock(&mutex_);
  EXPECT_TRUE(absl::IsCancelled(last_.status)) << last_.status;
}

}  // namespace
}  // namespace terrace
