// How much demotion disturbs those who read host memory: the slowest hundredth of gets from a node
// that writes to its ssd tier at a fifth of the device's speed, against the same when it is quiet.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/bench_node.h"
#include "tests/bench/cold_arena.h"
#include "tests/bench/rounds.h"
#include "tests/bench/ssd_folder.h"
#include "tests/support/stop.h"

namespace terrace::bench {

class DemotionRow {
 public:
  static constexpr char kName[] = "get_64KiB_p99_demoting";
  static constexpr uint64_t kDiskBytes = uint64_t{5} << 30;

  // Measures the device with fio, starts `terraced` from `bin_folder` with host memory and an ssd
  // tier in `folder`, and puts the blocks that are read.
  static absl::StatusOr<std::unique_ptr<DemotionRow>> Start(const std::string& bin_folder,
                                                            SsdFolder folder);

  // `stop`: as of RunRow.
  absl::StatusOr<RowResult> Run(int rounds, const std::atomic<bool>* stop);

 private:
  DemotionRow(SsdFolder folder, BenchNode node, std::string bin_folder, double device_bytes_per_s);
  absl::Status PutReadBlocks();
  absl::StatusOr<Measurement> Quiet() { return SlowestHundredth(); }
  absl::StatusOr<Measurement> Demoting();
  absl::StatusOr<Measurement> SlowestHundredth();
  // Puts blocks that are in host memory alone afterwards; host memory has room for one round's.
  absl::StatusOr<std::vector<BlockKey>> PutFresh();
  absl::Status ForgetFresh();
  // Has them written to the ssd tier at the row's pace, until `stop`.
  absl::Status Demote(const std::vector<BlockKey>& keys, testing::Stop* stop,
                      std::atomic<bool>* began);

  const SsdFolder folder_;  // outlives the node
  BenchNode node_;
  const std::string bin_folder_;
  const double demoted_bytes_per_s_;
  ColdArena memory_;
  Namespace read_, fresh_;
  uint64_t next_fresh_ = 0;
  uint64_t next_get_ = 0;
};

}  // namespace terrace::bench
