// The ssd tier as a contender: one folder, used from this process as a node uses it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/cold_store.h"
#include "tests/bench/cold_arena.h"
#include "tests/bench/rounds.h"

namespace terrace::bench {

class ColdContender {
 public:
  // A new folder at `path`. Blocks are copies of pieces of `sources`; what is read goes to
  // `destinations`, piece after piece. Both outlive this object.
  static absl::StatusOr<std::unique_ptr<ColdContender>> Open(const std::string& path,
                                                             uint64_t budget_bytes,
                                                             ByteSpan sources,
                                                             ColdArena* destinations);

  // Replaces all that is here by `blocks` blocks of this size.
  absl::Status Fill(uint32_t block_bytes, size_t blocks);
  // Deletes the blocks of the last Fill: their slots are on disk and free, as in a folder that has
  // reached its budget.
  absl::Status Empty();

  // One round, `depth` blocks in flight. Write: new blocks until all are durable; those of the
  // round before are deleted first, untimed. Read: random blocks of the last Fill, verified.
  absl::StatusOr<Measurement> Write(size_t bytes, int depth);
  absl::StatusOr<Measurement> Read(size_t bytes, int depth);

 private:
  struct Block {
    BlockKey key;
    std::vector<std::byte> envelope;
    ByteSpan value;
  };

  ColdContender(std::unique_ptr<ColdStore> store, ByteSpan sources, ColdArena* destinations);
  void CutSources(uint32_t block_bytes);
  std::vector<Block> NewBlocks(size_t count);
  absl::Status WriteAll(const std::vector<Block>& blocks, int depth);
  absl::Status Delete(std::vector<BlockKey>* keys);

  const std::unique_ptr<ColdStore> store_;
  const ByteSpan sources_;
  ColdArena* const destinations_;
  uint32_t block_bytes_ = 0;
  std::vector<std::vector<uint32_t>> checksums_;  // of each piece of sources_
  std::vector<BlockKey> filled_, written_;
  uint64_t next_ = 0;  // number of the next new block
  uint64_t seed_ = 0;
};

}  // namespace terrace::bench
