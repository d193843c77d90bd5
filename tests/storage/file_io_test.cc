#include "storage/file_io.h"

#include <cerrno>

#include "gtest/gtest.h"
#include "storage/blocking_io.h"
#include "storage/faulty_file_io.h"
#include "tests/storage/cold_support.h"

namespace terrace::testing {
namespace {

class Request : public IoRequest {
 public:
  void Complete(int64_t outcome) override {
    MutexLock lock(&mutex_);
    result_ = outcome;
    done_.SignalAll();
  }
  int64_t Wait() {
    MutexLock lock(&mutex_);
    for (int i = 0; !result_ && i < 1000; ++i) done_.WaitWithTimeout(&mutex_, absl::Seconds(1));
    return result_.value_or(INT64_MIN);
  }

 private:
  Mutex mutex_;
  CondVar done_;
  std::optional<int64_t> result_ ABSL_GUARDED_BY(mutex_);
};

// The same for the real one and its twin.
class FileIoTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      io_ = std::make_unique<FaultyFileIo>();
      return;
    }
    auto io = CreateFileIo(8);
    ASSERT_TRUE(io.ok()) << io.status().ToString();
    io_ = *std::move(io);
  }
  int64_t Move(IoKind kind, int file, uint64_t offset, MutableByteSpan memory) {
    Request request;
    request.kind = kind;
    request.file = file;
    request.offset = offset;
    if (kind != IoKind::kDataSync) request.AddPiece(memory);
    IoRequest* const one = &request;
    io_->Submit({&one, 1});
    return request.Wait();
  }

  TempFolder temp_;
  std::unique_ptr<FileIo> io_;
};

TEST_P(FileIoTest, WritesReadsAndSyncs) {
  const std::string path = temp_.path() + "/file";
  EXPECT_TRUE(absl::IsNotFound(io_->FileBytes(path).status()));
  const auto file = io_->Open(path, 1 << 20);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*io_->FileBytes(path), 1 << 20);
  AlignedBytes written(8192), read(8192);
  FillFor(KeyOf(1), written.span());
  EXPECT_EQ(Move(IoKind::kWrite, *file, 4096, written.span()), 8192);
  EXPECT_EQ(Move(IoKind::kDataSync, *file, 0, {}), 0);
  EXPECT_EQ(Move(IoKind::kRead, *file, 4096, read.span()), 8192);
  EXPECT_EQ(std::memcmp(written.span().data(), read.span().data(), 8192), 0);
  EXPECT_EQ(Move(IoKind::kRead, *file, 512 << 10, read.span()), 8192);
  EXPECT_EQ(read.span()[0], std::byte{0});
  io_->Close(*file);
  EXPECT_EQ(io_->Remove(path), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(io_->FileBytes(path).status()));
}

TEST_P(FileIoTest, MoreRequestsThanDepth) {
  constexpr size_t kRequests = 200;
  const auto file = io_->Open(temp_.path() + "/file", kRequests * 4096);
  ASSERT_TRUE(file.ok());
  AlignedBytes memory(kRequests * 4096);
  FillFor(KeyOf(2), memory.span());
  std::vector<Request> requests(kRequests);
  std::vector<IoRequest*> all;
  for (size_t i = 0; i < kRequests; ++i) {
    requests[i].kind = IoKind::kWrite;
    requests[i].file = *file;
    requests[i].offset = i * 4096;
    requests[i].AddPiece(memory.span().subspan(i * 4096, 4096));
    all.push_back(&requests[i]);
  }
  io_->Submit(all);
  for (Request& request : requests) EXPECT_EQ(request.Wait(), 4096);
  std::vector<PageAddress> pages;
  for (size_t i = 0; i < kRequests; ++i) pages.push_back({*file, i * 4096});
  const auto read = ReadPages(io_.get(), pages, absl::Seconds(10));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(std::memcmp(read->data(), memory.span().data(), kRequests * 4096), 0);
  const int files[] = {*file};
  EXPECT_EQ(SyncFiles(io_.get(), files, absl::Seconds(10)), absl::OkStatus());
  io_->Close(*file);
}

INSTANTIATE_TEST_SUITE_P(Both, FileIoTest, ::testing::Bool());

TEST(IoRequest, AdvanceDropsWhatWasMoved) {
  AlignedBytes memory(5 * 4096);
  Request request;
  request.offset = 4096;
  request.AddPiece(memory.span().first(4096));
  request.AddPiece(memory.span().subspan(4096, 3 * 4096));
  request.AddPiece(memory.span().last(4096));
  request.Advance(2 * 4096);
  EXPECT_EQ(request.offset, 3 * 4096);
  EXPECT_EQ(request.bytes(), 3 * 4096);
  ASSERT_EQ(request.pieces().size(), 2);
  EXPECT_EQ(request.pieces()[0].iov_base, memory.span().data() + 2 * 4096);
}

TEST(FaultyFileIo, PowerCutKeepsWhatWasSynced) {
  FaultyFileIo io;
  const auto file = io.Open("file", 64 * 4096);
  ASSERT_TRUE(file.ok());
  AlignedBytes memory(64 * 4096);
  const auto move = [&](IoKind kind, FaultyFileIo* disk, int number) {
    Request request;
    request.kind = kind;
    request.file = number;
    if (kind != IoKind::kDataSync) request.AddPiece(memory.span());
    IoRequest* const one = &request;
    disk->Submit({&one, 1});
    return request.Wait();
  };
  std::ranges::fill(memory.span(), std::byte{1});
  move(IoKind::kWrite, &io, *file);
  move(IoKind::kDataSync, &io, *file);
  std::ranges::fill(memory.span(), std::byte{2});
  move(IoKind::kWrite, &io, *file);
  const auto after = io.PowerCut(3);
  move(IoKind::kRead, after.get(), *after->Open("file", 0));
  int old_pages = 0;
  for (size_t page = 0; page < 64; ++page) {
    const std::byte value = memory.span()[page * 4096];
    ASSERT_TRUE(value == std::byte{1} || value == std::byte{2});
    old_pages += value == std::byte{1};
  }
  EXPECT_GT(old_pages, 10);
  EXPECT_LT(old_pages, 54);
}

TEST(BlockingIo, HungRequestsKeepTheirMemory) {
  FaultyFileIo io;
  const auto file = io.Open("file", 4096);
  io.SetScript([](const IoRequest&) { return IoFault{IoFault::kHold}; });
  const PageAddress pages[] = {{*file, 0}};
  EXPECT_TRUE(absl::IsDeadlineExceeded(ReadPages(&io, pages, absl::Milliseconds(20)).status()));
  EXPECT_TRUE(io.WaitForHeld(1));
  io.Release();
}

}  // namespace
}  // namespace terrace::testing
