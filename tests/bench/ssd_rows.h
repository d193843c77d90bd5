// The rows of the ssd tier: fio is the limit, RocksDB with blob files the peer, all in one folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/blobdb_contender.h"
#include "tests/bench/cold_arena.h"
#include "tests/bench/cold_contender.h"
#include "tests/bench/fio_contender.h"
#include "tests/bench/rounds.h"
#include "tests/bench/ssd_folder.h"

namespace terrace::bench {

class SsdRows {
 public:
  // What all contenders together take of the disk, at most.
  static constexpr uint64_t kDiskBytes = uint64_t{6} << 30;

  // Whose name contains `only`.
  static std::vector<std::string> Names(const std::string& only);
  static absl::StatusOr<std::unique_ptr<SsdRows>> Start(SsdFolder folder);

  // Lays out the files of the row with this name and runs it.
  absl::StatusOr<RowResult> Run(const std::string& name, int rounds, const std::atomic<bool>* stop);

 private:
  explicit SsdRows(SsdFolder folder);

  const SsdFolder folder_;  // outlives those who use it
  ColdArena sources_, destinations_;
  std::unique_ptr<ColdContender> terrace_;
  std::unique_ptr<FioContender> fio_;
  std::unique_ptr<BlobdbContender> blobdb_;
};

}  // namespace terrace::bench
