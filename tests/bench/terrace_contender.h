// Terrace as a contender: a node process of its own, and this process as the worker.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/bench_node.h"
#include "tests/bench/cold_arena.h"
#include "tests/bench/rounds.h"

namespace terrace::bench {

// Of sources and destinations: more than any cache holds.
constexpr size_t kArenaBytes = size_t{5} << 28;  // 1.25 GiB
// The same where memory is measured against memory: enough for that, and quick to warm up.
constexpr size_t kLocalArenaBytes = size_t{512} << 20;

class TerraceContender {
 public:
  // Starts `terraced` from `bin_folder` with a host tier of `host_bytes`, and connects; `local` as
  // in BenchNode::Connect.
  static absl::StatusOr<std::unique_ptr<TerraceContender>> Start(const std::string& bin_folder,
                                                                 uint64_t host_bytes, bool local);

  // Puts `blocks` blocks of `block_bytes` into a namespace of their own, for Get.
  absl::Status Fill(uint32_t block_bytes, size_t blocks);

  // One round: `bytes` in blocks of the last Fill, `depth` single-block operations at a time, each
  // to a cold destination, every byte verified by the client library.
  absl::StatusOr<Measurement> Get(size_t bytes, int depth);
  // The same for new blocks, from cold sources.
  absl::StatusOr<Measurement> Put(size_t bytes, int depth);
  // Views of blocks of the working set, in order, `depth` at a time; of a local contender.
  absl::StatusOr<Measurement> View(size_t bytes, int depth);
  // The median of `calls` matches of 128 keys that are all there, in microseconds.
  absl::StatusOr<Measurement> Match128(int calls);
  // Microseconds that one of `calls` such matches takes which leases the 128 blocks, the releases
  // included.
  absl::StatusOr<Measurement> Lease128(int calls);

 private:
  // The chain of those keys, its blocks put where they are not there.
  absl::StatusOr<Chain> Stored128();
  TerraceContender(BenchNode node, bool local);
  absl::StatusOr<Measurement> Run(size_t bytes, int depth, bool put);

  BenchNode node_;
  const bool local_;
  ColdArena arena_;
  Namespace ns_;
  size_t filled_ = 0;      // blocks of the working set
  uint64_t next_get_ = 0;  // block of the working set
  uint64_t next_put_ = 0;  // number of the next new block
};

}  // namespace terrace::bench
