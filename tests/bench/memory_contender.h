// Memory doing what a client on the node's machine does in the same row: the limit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "tests/bench/cold_arena.h"
#include "tests/bench/rounds.h"

namespace terrace::bench {

// One thread, block after block, from memory that no cache holds to memory that none holds.
class MemoryContender {
 public:
  MemoryContender();

  // Copied and checksummed, part by part: what a verified copy cannot do without.
  absl::StatusOr<Measurement> CopyAndCheck(uint32_t block_bytes, size_t bytes);
  absl::StatusOr<Measurement> Copy(uint32_t block_bytes, size_t bytes);
  absl::StatusOr<Measurement> Check(uint32_t block_bytes, size_t bytes);

 private:
  absl::StatusOr<Measurement> Run(uint32_t block_bytes, size_t bytes, bool copy, bool check);

  ColdArena sources_, destinations_;
  uint32_t sum_ = 0;  // so that no pass is thought to be for nothing
};

}  // namespace terrace::bench
