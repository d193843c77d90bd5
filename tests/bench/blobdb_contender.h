// RocksDB with blob files doing what the ssd tier does in the same row.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/bytes.h"
#include "rocksdb/db.h"
#include "tests/bench/rounds.h"

namespace terrace::bench {

class BlobdbContender {
 public:
  // A database at `path`. Values are pieces of `sources`, which outlives this object.
  static absl::StatusOr<std::unique_ptr<BlobdbContender>> Open(const std::string& path,
                                                               ByteSpan sources);

  // The contract of ColdContender's functions of the same names; it has a log as well, and a
  // round of writing ends when the values are durable in blob files.
  absl::Status Fill(uint32_t block_bytes, size_t blocks);
  // Begins a new database, which is the best case: deleted values cost it nothing, where one in
  // use would have to move those that stay.
  absl::Status Empty();
  absl::StatusOr<Measurement> Write(size_t bytes);
  absl::StatusOr<Measurement> Read(size_t bytes, int depth);

 private:
  BlobdbContender(const std::string& path, ByteSpan sources) : path_(path), sources_(sources) {}
  // Until they are in their place, and durable.
  absl::Status WriteAll(size_t count);

  const std::string path_;
  const ByteSpan sources_;
  std::unique_ptr<rocksdb::DB> db_;
  size_t block_bytes_ = 0;
  size_t filled_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace terrace::bench
