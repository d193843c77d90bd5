// How much demotion disturbs those who read host memory: the slowest hundredth of gets from a node
// whose host tier is over its mark, so that its mover writes to the ssd tier at a fifth of the
// device's speed, against the same when the node is quiet.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/chain.h"
#include "tests/bench/bench_node.h"
#include "tests/bench/cold_arena.h"
#include "tests/bench/rounds.h"
#include "tests/bench/ssd_folder.h"

namespace terrace::bench {

class DemotionRow {
 public:
  static constexpr char kName[] = "get_64KiB_p99_demoting";
  static constexpr uint64_t kDiskBytes = uint64_t{5} << 30;

  // Measures the device with fio, starts `terraced` from `bin_folder` with host memory and an ssd
  // tier in `folder`, puts the blocks that are read and others up to the mark.
  static absl::StatusOr<std::unique_ptr<DemotionRow>> Start(const std::string& bin_folder,
                                                            SsdFolder folder);

  // `stop`: as of RunRow.
  absl::StatusOr<RowResult> Run(int rounds, const std::atomic<bool>* stop);

 private:
  struct State {  // of the node's tiers
    uint64_t occupied = 0, leaving = 0, demoted = 0;
  };

  DemotionRow(SsdFolder folder, BenchNode node, std::string bin_folder, double device_bytes_per_s);
  absl::Status PutReadBlocks();
  absl::Status PutFresh(uint64_t bytes);
  absl::StatusOr<State> Look() const;
  // When nothing leaves host memory any more. The blocks that are read count as used, so that
  // they are the last to leave.
  absl::StatusOr<State> Settle();
  absl::StatusOr<Measurement> Quiet();
  absl::StatusOr<Measurement> Demoting();
  absl::StatusOr<Measurement> SlowestHundredth();

  const SsdFolder folder_;  // outlives the node
  BenchNode node_;
  const std::string bin_folder_;
  const double demoted_bytes_per_s_;
  ColdArena memory_;
  Namespace fresh_;
  std::optional<Chain> read_;
  uint64_t next_fresh_ = 0;
  uint64_t next_get_ = 0;
};

}  // namespace terrace::bench
