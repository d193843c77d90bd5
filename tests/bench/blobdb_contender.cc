#include "tests/bench/blobdb_contender.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "proto/mutex.h"
#include "proto/status.h"
#include "rocksdb/options.h"
#include "rocksdb/table.h"
#include "tests/bench/own_round.h"

namespace terrace::bench {
namespace {

absl::Status ToStatus(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("blobdb: {}", status.ToString()));
}

std::string KeyOf(size_t number) { return fmt::format("block:{:032}", number); }

// What was found to be fastest here: direct I/O for flushes, for one, makes them wait for each
// megabyte, which is a third of the speed.
rocksdb::Options BlobOptions() {
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.enable_blob_files = true;
  options.min_blob_size = 4096;
  options.max_write_buffer_number = 4;
  options.max_background_jobs = 4;
  options.use_direct_reads = true;
  // The log is written while the round goes on and not only when it ends.
  options.wal_bytes_per_sync = 1 << 20;
  return options;
}

// Calls `work` for 0 … count-1 on `threads` threads: RocksDB has no calls that return before
// their end. The first error.
absl::Status OnThreads(int threads, size_t count,
                       const std::function<rocksdb::Status(size_t)>& work) {
  std::atomic<size_t> next = 0;
  Mutex mutex;
  absl::Status first;
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) {
    pool.emplace_back([&] {
      for (size_t mine = next++; mine < count; mine = next++) {
        const rocksdb::Status status = work(mine);
        if (status.ok()) continue;
        MutexLock lock(&mutex);
        first.Update(ToStatus(status));
        next = count;
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  return first;
}

// What follows does not pay for files that were deleted before.
void Settle(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ::syncfs(folder);
  ::close(folder);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlobdbContender>> BlobdbContender::Open(const std::string& path,
                                                                       ByteSpan sources) {
  // It allocates each value that it reads and each memtable, and their pages are dear to fault in:
  // memory stays with the process, which gave a fifth.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  std::unique_ptr<BlobdbContender> blobdb(new BlobdbContender(path, sources));
  TERRACE_RETURN_IF_ERROR(blobdb->Empty());
  return blobdb;
}

absl::Status BlobdbContender::Empty() {
  db_.reset();
  TERRACE_RETURN_IF_ERROR(ToStatus(rocksdb::DestroyDB(path_, BlobOptions())));
  rocksdb::DB* db = nullptr;
  TERRACE_RETURN_IF_ERROR(ToStatus(rocksdb::DB::Open(BlobOptions(), path_, &db)));
  db_.reset(db);
  Settle(path_);
  return absl::OkStatus();
}

absl::Status BlobdbContender::Fill(uint32_t block_bytes, size_t blocks) {
  TERRACE_RETURN_IF_ERROR(Empty());
  block_bytes_ = block_bytes;
  filled_ = blocks;
  return WriteAll(blocks);
}

// One thread: RocksDB's writers go one after another, and with more of them a round took longer.
absl::Status BlobdbContender::WriteAll(size_t count) {
  const size_t pieces = sources_.size() / block_bytes_;
  for (size_t i = 0; i < count; ++i) {
    const ByteSpan value = sources_.subspan(i % pieces * block_bytes_, block_bytes_);
    const auto* bytes = reinterpret_cast<const char*>(value.data());
    TERRACE_RETURN_IF_ERROR(ToStatus(db_->Put({}, KeyOf(i), rocksdb::Slice(bytes, value.size()))));
  }
  return ToStatus(db_->Flush({}));
}

absl::StatusOr<Measurement> BlobdbContender::Write(size_t bytes) {
  TERRACE_RETURN_IF_ERROR(Empty());
  const OwnRound round;
  TERRACE_RETURN_IF_ERROR(WriteAll(bytes / block_bytes_));
  return round.Ended(bytes);
}

absl::StatusOr<Measurement> BlobdbContender::Read(size_t bytes, int depth) {
  std::mt19937_64 random(++seed_);
  std::vector<std::string> keys;
  for (size_t i = 0; i < bytes / block_bytes_; ++i) keys.push_back(KeyOf(random() % filled_));
  const OwnRound round;
  TERRACE_RETURN_IF_ERROR(OnThreads(depth, keys.size(), [&](size_t i) {
    thread_local rocksdb::PinnableSlice value;
    value.Reset();
    return db_->Get({}, db_->DefaultColumnFamily(), keys[i], &value);
  }));
  return round.Ended(bytes);
}

}  // namespace terrace::bench
