// Memory doing what a client on the node's machine does in the same row: the limit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "tests/bench/cold_arena.h"
#include "tests/bench/rounds.h"

namespace terrace::bench {

// One thread, block after block. Blocks lie in memory like the node's, which no cache holds; so
// does what they are copied to or from, in memory like a worker's.
class MemoryContender {
 public:
  MemoryContender();

  // Of blocks, to the worker's memory, part by part: what a verified copy cannot do without.
  absl::StatusOr<Measurement> CopyAndCheck(uint32_t block_bytes, size_t bytes);
  // Of the worker's memory, to where blocks lie.
  absl::StatusOr<Measurement> Copy(uint32_t block_bytes, size_t bytes);
  // Of blocks.
  absl::StatusOr<Measurement> Check(uint32_t block_bytes, size_t bytes);

 private:
  absl::StatusOr<Measurement> Run(uint32_t block_bytes, size_t bytes, ColdArena* from,
                                  ColdArena* to, bool check);

  ColdArena blocks_, worker_;
  uint32_t sum_ = 0;  // so that no pass is thought to be for nothing
};

}  // namespace terrace::bench
