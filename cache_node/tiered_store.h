// The node's blocks, whatever tier they are in: find, lease, put, forget. Composes arena, index
// and policy; knows no network. Thread-safe; no call waits for I/O (a lock at most).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/block.h"
#include "proto/bytes.h"
#include "proto/envelope.h"

namespace terrace {

class TieredStore;
namespace internal {
class StoreImpl;
}

// A reference to a resident block: its copy stays readable and unchanged until release, even
// when the block is evicted or forgotten meanwhile. Move-only; releases on destruction. The
// store outlives it.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept { *this = std::move(other); }
  BlockRef& operator=(BlockRef&& other) noexcept;
  ~BlockRef() { Release(); }

  explicit operator bool() const { return store_ != nullptr; }
  ByteSpan envelope() const { return envelope_; }  // encoded (proto/envelope.h)
  ByteSpan value() const { return value_; }
  Tier tier() const { return Tier::kHost; }
  void Release();

 private:
  friend class internal::StoreImpl;
  internal::StoreImpl* store_ = nullptr;
  void* entry_ = nullptr;
  ByteSpan envelope_;
  ByteSpan value_;
};

// A place for a block being written; invisible until Publish. Move-only; destruction without
// Publish gives the place back. `generation` distinguishes this reservation from every other.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Abort(); }

  explicit operator bool() const { return store_ != nullptr; }
  uint64_t generation() const { return generation_; }
  const BlockKey& key() const { return key_; }
  MutableByteSpan value() const { return value_; }  // exactly the block's length

  // Makes the block visible in one step. `envelope.generation` is set to generation(); key,
  // shape and opaque bytes must be those reserved (else the process aborts), and the caller has
  // verified the value against `envelope.checksums`. Returns false when the key was forgotten
  // meanwhile: the place is given back, and a block written under the key since stays. The
  // reservation is empty afterwards.
  bool Publish(Envelope envelope);
  void Abort();

 private:
  friend class internal::StoreImpl;
  internal::StoreImpl* store_ = nullptr;
  void* entry_ = nullptr;
  uint64_t generation_ = 0;
  BlockKey key_;
  MutableByteSpan value_;
};

enum class ReserveOutcome {
  kReserved,
  kExists,     // already resident: success without a transfer; counted as a use
  kPending,    // another writer is at it: as good as exists for a cache, nothing is promised
  kNoSpace,    // nothing can be evicted now; later may do
  kNeverFits,  // larger than the tier can ever hold; nothing was evicted for it
};

struct ReserveResult {
  ReserveOutcome outcome;
  Reservation reservation;  // non-empty only for kReserved
};

struct ResidentBlock {  // one row of `top`
  BlockKey key;
  uint64_t bytes = 0;
  double score = 0;  // log2 of decayed uses, relative to now
  uint32_t depth = 0;
  uint32_t references = 0;
};

struct TierStats {
  Tier tier = Tier::kHost;
  uint64_t capacity_bytes = 0;  // memory of the tier
  uint64_t value_bytes = 0;     // resident blocks' lengths
  uint64_t occupied_bytes = 0;  // places in use, envelopes and rounding included
  uint64_t reserved_bytes = 0;  // of these, being written
  uint64_t blocks = 0;
  uint64_t referenced_blocks = 0;  // leased or being sent
  uint64_t index_bytes = 0;        // index, eviction order, arena and ghosts, counted
  uint64_t hits = 0, misses = 0;   // blocks asked for by Match with count_use, each once
  uint64_t puts = 0;               // published
  uint64_t puts_existing = 0;      // kExists and kPending
  uint64_t puts_no_space = 0, puts_never_fit = 0, puts_aborted = 0;
  uint64_t evicted_for_space = 0, evicted_watermark = 0, evicted_region_move = 0;
  uint64_t forgotten = 0;  // because somebody asked: Evict, Forget
  double turnovers = 0;    // the policy's clock
};

struct NamespaceUsage {
  uint64_t blocks = 0;
  uint64_t value_bytes = 0;
};

struct TieredStoreOptions {
  uint64_t host_bytes = 0;                   // at least 2 MiB; whole multiples of it are used
  double high_mark = 0.99, low_mark = 0.98;  // shares; docs/decisions/0003-watermarks.md
  uint32_t max_block_bytes = kMaxBlockBytes;
  // Told while memory is touched at start: bytes done, bytes in all. Called by several threads,
  // one at a time. May be empty.
  std::function<void(uint64_t, uint64_t)> progress;
};

class TieredStore {
 public:
  // Takes and touches host_bytes of memory (in parallel, with progress; blocks meanwhile).
  // ResourceExhausted names host_bytes and what the machine or its limits (cgroup, rlimit) have.
  // InvalidArgument names the option that is out of bounds.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Create(TieredStoreOptions options);
  virtual ~TieredStore() = default;  // after every BlockRef and Reservation is gone

  // The memory of the host tier, for registration with a transport.
  virtual MutableByteSpan memory() const = 0;

  // Length of the leading run of `keys` that is resident, all or nothing per key; one tier per
  // key of the run is appended to `tiers` unless null. With `refs` each block of the run is
  // referenced in the same step in which it is found. `count_use` counts one use of each block
  // of the run, leaf to root. Keys of one chain in order, at most kMaxKeysPerFrame.
  virtual uint32_t Match(std::span<const BlockKey> keys, bool count_use, std::vector<Tier>* tiers,
                         std::vector<BlockRef>* refs) = 0;
  // An empty reference is a miss. Does not count a use.
  virtual BlockRef Acquire(const BlockKey& key) = 0;
  // Counts one use of each resident block of `keys` (a path, root first).
  virtual void Touch(std::span<const BlockKey> keys) = 0;

  // `shape` is valid (proto/block.h). Blocks reserved in one call share one moment of use, so
  // that a chain's parents never rank below its children.
  virtual std::vector<ReserveResult> Reserve(std::span<const BlockKey> keys,
                                             std::span<const BlockShape> shapes,
                                             std::span<const uint16_t> opaque_bytes,
                                             std::span<const uint32_t> depths) = 0;

  // Drops the block if nobody references or writes it; true when it is gone, or was not there.
  virtual bool Evict(const BlockKey& key) = 0;
  // Forgets up to `limit` blocks of a namespace; returns how many it found. 0: all are gone
  // (referenced ones are invisible at once and freed with their last reference).
  virtual uint64_t Forget(NamespaceId ns, uint64_t limit) = 0;

  // One round of background work: evict from above the high mark down to the low mark. Returns
  // whether anything was done.
  virtual bool Tidy() = 0;

  virtual std::optional<ResidentBlock> Find(const BlockKey& key) const = 0;
  // The blocks of the namespaces `wanted` that have the highest scores, those first. `wanted` is
  // called under a lock of the index.
  virtual std::vector<ResidentBlock> Top(size_t count,
                                         const std::function<bool(NamespaceId)>& wanted) const = 0;
  virtual TierStats Stats() const = 0;
  // The resident blocks of each namespace that has any. Visits every block: for operators, not for
  // the way of a request.
  virtual std::map<NamespaceId, NamespaceUsage> UsageByNamespace() const = 0;
};

}  // namespace terrace
