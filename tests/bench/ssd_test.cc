// The contenders do the real thing: what they write is there, and a round gives figures.
#include <filesystem>

#include "gtest/gtest.h"
#include "tests/bench/blobdb_contender.h"
#include "tests/bench/cold_contender.h"
#include "tests/bench/fio_contender.h"
#include "tests/bench/ssd_folder.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr size_t kBytes = size_t{8} << 20;
constexpr int kDepth = 4;

class SsdContenders : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = SsdFolder::Make("", BinFolder(), kGiB);
    if (!made.ok()) GTEST_SKIP() << made.status();
    folder_ = std::make_unique<SsdFolder>(*std::move(made));
  }
  static std::string BinFolder() {
    return std::filesystem::canonical("/proc/self/exe").parent_path();
  }

  template <typename Contender>
  void Exercise(Contender& contender, const auto& write) {
    for (const uint32_t block_bytes : {uint32_t{1} << 20, uint32_t{64} << 10}) {
      const absl::Status filled = contender.Fill(block_bytes, kBytes / block_bytes);
      ASSERT_TRUE(filled.ok()) << filled;
      ExpectFigures(contender.Read(kBytes, kDepth));
      ASSERT_TRUE(contender.Empty().ok());
      for (int i = 0; i < 3; ++i) ExpectFigures(write());
    }
  }
  static void ExpectFigures(const absl::StatusOr<Measurement>& measured) {
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_GT(measured->value, 0);
    EXPECT_GT(measured->cpu_s_per_GB, 0);
  }

  std::unique_ptr<SsdFolder> folder_;
  ColdArena sources_{kBytes}, destinations_{kBytes};
};

TEST_F(SsdContenders, Terrace) {
  auto terrace = ColdContender::Open(folder_->path() + "/terrace", 5 * kGiB / 8, sources_.all(),
                                     &destinations_);
  ASSERT_TRUE(terrace.ok()) << terrace.status();
  Exercise(**terrace, [&] { return (*terrace)->Write(kBytes, kDepth); });
}

TEST_F(SsdContenders, Blobdb) {
  auto blobdb = BlobdbContender::Open(folder_->path() + "/blobdb", sources_.all());
  ASSERT_TRUE(blobdb.ok()) << blobdb.status();
  Exercise(**blobdb, [&] { return (*blobdb)->Write(kBytes); });
}

TEST_F(SsdContenders, Fio) {
  auto fio = FioContender::Start(folder_->path(), 2 * kBytes);
  ASSERT_TRUE(fio.ok()) << fio.status();
  for (const auto& measured :
       {(*fio)->Read(64 << 10, kBytes, kDepth), (*fio)->Write(1 << 20, kBytes, kDepth)}) {
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_GT(measured->value, 0);
  }
}

TEST(SsdFolder, IsGoneWithTheObjectAndNamesTheFlagWhenItCannotBe) {
  const std::string parent = std::filesystem::canonical("/proc/self/exe").parent_path();
  std::string path;
  {
    auto made = SsdFolder::Make(parent, "", 1);
    if (!made.ok()) GTEST_SKIP() << made.status();
    path = made->path();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  for (const auto& impossible :
       {SsdFolder::Make(parent, "", uint64_t{1} << 60), SsdFolder::Make("/nowhere", "", 1)}) {
    ASSERT_FALSE(impossible.ok());
    EXPECT_NE(impossible.status().message().find("--ssd-folder"), std::string::npos);
  }
}

}  // namespace
}  // namespace terrace::bench
