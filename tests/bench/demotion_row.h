// How much demotion disturbs those who read host memory: the slowest hundredth of gets from a node
// that writes to its ssd tier at a fifth of the device's speed, against the same when it is quiet.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "tests/bench/cold_arena.h"
#include "tests/bench/rounds.h"
#include "tests/bench/ssd_folder.h"
#include "tests/support/child_process.h"

namespace terrace::bench {

class DemotionRow {
 public:
  static constexpr char kName[] = "get_64KiB_p99_demoting";
  static constexpr uint64_t kDiskBytes = uint64_t{4} << 30;

  // Measures the device with fio, starts `terraced` from `bin_folder` with host memory and an ssd
  // tier in `folder`, and puts the blocks that are read.
  static absl::StatusOr<std::unique_ptr<DemotionRow>> Start(const std::string& bin_folder,
                                                            SsdFolder folder);

  absl::StatusOr<RowResult> Run(int rounds, const std::atomic<bool>* stop);

 private:
  DemotionRow(SsdFolder folder, ChildProcess node, std::unique_ptr<Client> client,
              double device_bytes_per_s);
  absl::Status Fill();
  absl::StatusOr<Measurement> Quiet();
  absl::StatusOr<Measurement> Demoting();
  // Of kGets gets, one at a time, in microseconds.
  absl::StatusOr<double> SlowestHundredth();
  absl::StatusOr<std::vector<BlockKey>> PutFresh();
  // Writes `keys` to the ssd tier, at the row's pace, until `stop`.
  absl::Status DemoteAll(const std::vector<BlockKey>& keys, const std::atomic<bool>& stop,
                         std::atomic<bool>* began);

  const SsdFolder folder_;  // outlives the node
  ChildProcess node_;
  const std::unique_ptr<Client> client_;
  const double device_bytes_per_s_;
  ColdArena memory_;
  Namespace read_, demoted_;
  std::vector<BlockKey> hot_;
  uint64_t next_fresh_ = 0;
  uint64_t next_get_ = 0;
};

}  // namespace terrace::bench
