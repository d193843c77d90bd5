// Key -> block: the sharded index of a node, and the state of each block in it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "proto/block_key.h"
#include "proto/mutex.h"
#include "storage/arena.h"
#include "storage/eviction_order.h"

namespace terrace {

enum class BlockPhase : uint8_t {
  kFree = 0,      // names nothing
  kReserved = 1,  // has a place that one writer fills; invisible to readers
  kResident = 2,  // readable; leaves only by retiring
  kRetired = 3,   // out of the index for good; its place is reclaimed after the last reference
};

enum class BlockEvent : uint8_t {
  kReserve,  // a writer takes it
  kPublish,  // the writer is done
  kAbort,    // the writer gives up
  kAcquire,  // a reader takes a reference
  kRelease,  // and gives it back
  kRetire,   // evict: only when nobody references it
  kForget,   // drop, referenced or not
  kReclaim,  // its place has been given back
};

enum class BlockOutcome : uint8_t {
  kDone,        // the event happened
  kLast,        // it happened, and nobody holds the retired block: the caller reclaims it
  kRefused,     // it did not happen, as may be
  kImpossible,  // only a bug of ours asks for it
};

// The state is a phase and a count of references. `n` is at least 1 below.
//
//          free        reserved      resident, 0   resident, n    retired, 0  retired, n
// reserve  reserved    impossible    impossible    impossible     impossible  impossible
// publish  impossible  resident, 0   impossible    impossible     impossible  as release *
// abort    impossible  retired, 0 L  impossible    impossible     impossible  as release *
// acquire  refused     refused       resident, 1   resident, n+1  refused     refused
// release  impossible  impossible    impossible    resident, n-1  impossible  retired, n-1 (0: L)
// retire   refused     refused       retired, 0 L  refused        refused     refused
// forget   refused     retired, 1    retired, 0 L  retired, n     refused     refused
// reclaim  impossible  impossible    impossible    impossible     free        impossible
//
// L: kLast, exactly one thread gets it. *: a block that is forgotten while it is written keeps
// one reference, the writer's, until the writer comes to publish or abort.
struct BlockState {
  BlockPhase phase = BlockPhase::kFree;
  uint32_t references = 0;
  auto operator<=>(const BlockState&) const = default;
};

struct BlockTransition {
  BlockState next;
  BlockOutcome outcome;
  auto operator<=>(const BlockTransition&) const = default;
};

// The table above, as a function.
BlockTransition Next(BlockState state, BlockEvent event);

// The state in one atomic word. What a thread wrote before an event is seen by whoever sees the
// state after it.
class BlockStateWord {
 public:
  // Applies the event; the impossible ones abort the process. Returns the state before and the
  // outcome.
  std::pair<BlockState, BlockOutcome> Apply(BlockEvent event);
  BlockState Load() const { return Unpack(word_.load(std::memory_order_acquire)); }

 private:
  static BlockState Unpack(uint64_t word) {
    return {static_cast<BlockPhase>(word & 3), static_cast<uint32_t>(word >> 2)};
  }
  static uint64_t Pack(BlockState state) {
    return uint64_t{state.references} << 2 | static_cast<uint64_t>(state.phase);
  }

  std::atomic<uint64_t> word_{0};
};

// What the node knows of a block without looking at its bytes. All but state and score is set
// before the block enters the index and constant until it is reclaimed.
struct BlockEntry : Ranked {
  BlockStateWord state;
  std::atomic<bool> seen_again{false};  // used since it came, or it had left before
  // An earlier process has left it, and nobody has compared it with its envelope since.
  std::atomic<bool> unverified{false};
  BlockKey key;
  Place place;
  PlaceClass size;
  uint32_t length = 0;          // of the value
  uint32_t envelope_bytes = 0;  // set by the writer before it publishes
};

// Memory for entries: grows by slabs, never shrinks, so pointers stay good. The caller's lock.
class EntryPool {
 public:
  BlockEntry* Take();
  void Give(BlockEntry* entry);  // in phase free
  uint64_t bytes() const;

 private:
  static constexpr size_t kSlabEntries = 256;

  std::vector<std::unique_ptr<std::array<BlockEntry, kSlabEntries>>> slabs_;
  std::vector<BlockEntry*> free_;
};

// Thread-safe; each call holds the locks of one shard at a time. Entries are not owned: one stays
// valid while it is in the index, and afterwards until whoever retired it reclaims it.
class BlockIndex {
 public:
  BlockIndex() = default;
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // Calls `visit` with the entry of `key`, which cannot leave the index meanwhile; returns whether
  // there is one.
  bool Visit(const BlockKey& key, absl::FunctionRef<void(BlockEntry&)> visit) const;
  // False, and nothing happens, when the key is there.
  bool Insert(BlockEntry* entry);
  // Removes the entry of `key` if `condition` holds for it, in one step with the condition.
  // Returns whether it did.
  bool EraseIf(const BlockKey& key, absl::FunctionRef<bool(BlockEntry&)> condition);

  // The same for all entries of one shard.
  static constexpr size_t kShards = 256;
  void SweepShard(size_t shard, absl::FunctionRef<bool(BlockEntry&)> condition);
  void VisitShard(size_t shard, absl::FunctionRef<void(const BlockEntry&)> visit) const;

  uint64_t bytes() const;  // of the hash tables

  // Of the whole key: its digest's first bytes alone are what a peer chooses.
  static uint64_t Hash(const BlockKey& key);

 private:
  struct EntryHash {
    using is_transparent = void;
    size_t operator()(const BlockKey& key) const { return Hash(key); }
    size_t operator()(const BlockEntry* entry) const { return Hash(entry->key); }
  };
  struct EntryEqual {
    using is_transparent = void;
    static const BlockKey& KeyOf(const BlockKey& key) { return key; }
    static const BlockKey& KeyOf(const BlockEntry* entry) { return entry->key; }
    bool operator()(const auto& a, const auto& b) const { return KeyOf(a) == KeyOf(b); }
  };
  struct Shard {
    mutable Mutex mutex;
    absl::flat_hash_set<BlockEntry*, EntryHash, EntryEqual> entries ABSL_GUARDED_BY(mutex);
  };

  Shard& ShardOf(uint64_t hash) { return shards_[hash >> 56]; }
  const Shard& ShardOf(uint64_t hash) const { return shards_[hash >> 56]; }

  std::array<Shard, kShards> shards_;
};

}  // namespace terrace
