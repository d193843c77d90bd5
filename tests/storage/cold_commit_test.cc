// The ssd tier while its catalogue cannot be written.
#include "gtest/gtest.h"
#include "tests/storage/cold_support.h"
#include "tests/storage/failing_env.h"

namespace terrace::testing {
namespace {

constexpr uint32_t kLength = 64 << 10;

class ColdCommit : public ::testing::Test {
 protected:
  void Open() {
    ColdFolderOptions options = SmallFolder(temp_.path());
    options.env = env_.get();
    folder_ = OpenLoaded(std::move(options));
    ASSERT_NE(folder_, nullptr);
  }
  // OK when the folder takes the block within ten seconds.
  absl::Status PutAtLast(TestBlock& block) {
    absl::Status put;
    EXPECT_TRUE(Eventually([&] { return (put = PutAndWait(*folder_, block)).ok(); })) << put;
    return put;
  }

  TempFolder temp_;
  const std::shared_ptr<FailingFileSystem> system_ = std::make_shared<FailingFileSystem>();
  const std::unique_ptr<rocksdb::Env> env_ = rocksdb::NewCompositeEnv(system_);
  std::unique_ptr<ColdFolder> folder_;
};

// The record may be in the log although its commit failed, so key and slot stay taken until the log
// has the deletion, too.
TEST_F(ColdCommit, ABlockWhoseCommitFailedKeepsItsSlotUntilItsDeletionIsLogged) {
  Open();
  TestBlock block(KeyOf(1), kLength);
  system_->fails = true;
  ASSERT_FALSE(PutAndWait(*folder_, block).ok());
  EXPECT_EQ(folder_->Stats().occupied_bytes, 17 * 4096);
  EXPECT_TRUE(absl::IsNotFound(GetAndCheck(*folder_, block.key)));
  EXPECT_FALSE(PutAndWait(*folder_, block).ok());
  EXPECT_EQ(folder_->CountWrites(block.key.ns, /*doom=*/false), 1);  // it may come back
  system_->fails = false;
  EXPECT_TRUE(Eventually([&] { return folder_->Stats().occupied_bytes == 0; }));
  EXPECT_EQ(folder_->CountWrites(block.key.ns, /*doom=*/false), 0);
  EXPECT_EQ(PutAtLast(block), absl::OkStatus());
  EXPECT_EQ(GetAndCheck(*folder_, block.key), absl::OkStatus());
  EXPECT_EQ(folder_->Stats().value_bytes, kLength);
}

TEST_F(ColdCommit, NothingIsLostOrDoubledOverFailuresAndStarts) {
  Open();
  for (uint64_t round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < 8; ++i) {
      TestBlock before(KeyOf(100 * round + i), kLength),
          after(KeyOf(100 * round + 50 + i), kLength);
      ASSERT_EQ(PutAtLast(before), absl::OkStatus());
      system_->fails = true;
      TestBlock failing(KeyOf(100 * round + 80 + i), i % 2 == 0 ? kLength : 4096);
      EXPECT_FALSE(PutAndWait(*folder_, failing).ok());
      system_->fails = false;
      ASSERT_EQ(PutAtLast(after), absl::OkStatus());
    }
    ASSERT_TRUE(Eventually([&] { return folder_->WaitForCommit(absl::Seconds(10)).ok(); }));
    folder_.reset();
    Open();
    EXPECT_EQ(folder_->Stats().blocks, 16 * (round + 1));
    EXPECT_EQ(folder_->Stats().lost_at_load, 0);
    for (uint64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(GetAndCheck(*folder_, KeyOf(100 * round + i)), absl::OkStatus());
      EXPECT_EQ(GetAndCheck(*folder_, KeyOf(100 * round + 50 + i)), absl::OkStatus());
    }
  }
}

}  // namespace
}  // namespace terrace::testing
