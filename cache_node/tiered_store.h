// The node's blocks, whatever tier they are in: find, lease, put, forget. Composes arena, index
// and policy; knows no network. Thread-safe; but where a call says so, none waits for I/O (a lock
// at most).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_node/cold_tier.h"
#include "cache_node/descriptor_store.h"
#include "proto/block.h"
#include "proto/bytes.h"
#include "proto/descriptor.h"
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
  Tier tier = Tier::kHost;
  uint64_t bytes = 0;
  double score = 0;  // log2 of decayed uses, relative to now
  uint32_t depth = 0;
  uint32_t references = 0;
};

// Called once, on any thread, without locks held. An empty reference is a miss.
using FillWaiter = absl::AnyInvocable<void(BlockRef)>;

enum class FillOutcome {
  kComing,    // the waiter will be called
  kHere,      // it is in host memory: Acquire it
  kMiss,      // it is in no tier, is being written by a put, or finds no room in host memory
  kAskAgain,  // the ssd tier is still loading and has not met this key yet
  kBusy,      // as many fills or waiters as there may be
};

enum class PersistOutcome {
  kDurable,     // survives a kill and a power cut
  kMiss,        // no such block
  kNotDurable,  // no ssd tier, or it fails, or has no room
  kAskAgain,    // on its way between the tiers, or the ssd tier is loading
};
// Called once, on any thread, perhaps before the call returns, without locks held.
using PersistWaiter = absl::AnyInvocable<void(PersistOutcome)>;

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
  uint64_t evicted_copied = 0;  // for space, while a copy stays on ssd
  uint64_t forgotten = 0;       // because somebody asked: Evict, Forget
  uint64_t kept = 0;            // found again at start: an earlier process had left them
  double turnovers = 0;         // the policy's clock
  // Host tier over an ssd tier. Blocks that left, by what became of them there: written, there
  // already, not admitted by policy, budget or health, not written for want of room (which the
  // tier's own eviction makes) or because the device failed.
  uint64_t demoted = 0, demoted_by_name = 0, not_admitted = 0;
  uint64_t demotions_no_room = 0, demotions_failed = 0;
  // Blocks read from the ssd tier, reads that failed, reads that found no room or too many others.
  uint64_t fills = 0, fills_failed = 0, fills_refused = 0;
  uint64_t corrupt = 0;  // failed their checks, and are gone
  // Ssd tier.
  uint64_t evicted = 0, expired = 0;
};

struct LastDemotions {
  uint64_t blocks = 0, bytes = 0;  // written
  uint64_t lost = 0;               // blocks that were to be, without time or room for them
};

struct Forgotten {
  uint64_t host = 0, ssd = 0;  // a block that is in both counts in each
  uint64_t copies() const { return host + ssd; }
};

struct NamespaceUsage {
  uint64_t blocks = 0;
  uint64_t value_bytes = 0;
};

struct TieredStoreOptions {
  uint64_t host_bytes = 0;  // at least 2 MiB; whole multiples of it are used
  // Shares of the host tier; 0: by docs/decisions/0003-watermarks.md.
  double high_mark = 0, low_mark = 0;
  uint32_t max_block_bytes = kMaxBlockBytes;
  // The tenant of a namespace, by a number that is larger than 0; 0: there is no such namespace,
  // and nothing is taken for it. Called under locks. Empty: all are of tenant 1.
  std::function<uint32_t(NamespaceId)> tenant_of;
  // Where the host tier's memory outlives this process, and where that of an earlier one is found:
  // the blocks in it of tenants that `tenant_lives` knows are there again, each verified before it
  // is first read. Null: nowhere. Outlives the store.
  DescriptorStore* keep = nullptr;
  std::function<bool(uint32_t tenant)> tenant_lives;
  // Told while memory is touched at start: bytes done, bytes in all. Called by several threads,
  // one at a time. May be empty.
  std::function<void(uint64_t, uint64_t)> progress;
};

class TieredStore {
 public:
  // Takes and touches host_bytes of memory (in parallel, with progress; blocks meanwhile).
  // ResourceExhausted names host_bytes and what the machine or its limits (cgroup, rlimit) have.
  // InvalidArgument names the option that is out of bounds. `cold` is the ssd tier, null where
  // there is none.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Create(
      TieredStoreOptions options, std::unique_ptr<ColdTier> cold = nullptr);
  virtual ~TieredStore() = default;  // after every BlockRef and Reservation is gone

  // The memory of the host tier, for registration with a transport.
  virtual MutableByteSpan memory() const = 0;
  // For processes of one tenant on this machine: a file of the size of memory() in which that
  // tenant's blocks lie where they lie in memory(), all else being zeros or rubbish. For reading
  // only; errors of HostMemory::OpenForReading.
  virtual absl::StatusOr<Descriptor> ShareMemory(uint32_t tenant) = 0;

  // Length of the leading run of `keys` that is resident, all or nothing per key; one tier per
  // key of the run is appended to `tiers` unless null. With `refs` each block of the run is
  // referenced in the same step in which it is found, if it is in host memory. `count_use` counts
  // one use of each block of the run, leaf to root. `ask_again`, unless null, tells whether the run
  // ended at a key that the ssd tier may yet turn out to have. Keys of one chain in order, at most
  // kMaxKeysPerFrame.
  virtual uint32_t Match(std::span<const BlockKey> keys, bool count_use, std::vector<Tier>* tiers,
                         std::vector<BlockRef>* refs, bool* ask_again = nullptr) = 0;
  // A block in host memory; an empty reference when it is not there. Does not count a use.
  virtual BlockRef Acquire(const BlockKey& key) = 0;
  // Brings a block that Acquire did not find from the ssd tier into host memory, verified, and
  // hands it to `waiter` (kComing). One read per key, however many wait for it.
  virtual FillOutcome Fill(const BlockKey& key, FillWaiter waiter) = 0;
  // Counts one use of each resident block of `keys` (a path, root first).
  virtual void Touch(std::span<const BlockKey> keys) = 0;

  // `shape` is valid (proto/block.h). Blocks reserved in one call share one moment of use, so
  // that a chain's parents never rank below its children.
  virtual std::vector<ReserveResult> Reserve(std::span<const BlockKey> keys,
                                             std::span<const BlockShape> shapes,
                                             std::span<const uint16_t> opaque_bytes,
                                             std::span<const uint32_t> depths) = 0;

  // Makes the block durable, whatever policy thinks of it, with the next group commit of the ssd
  // tier; it stays where it is, too.
  virtual void Persist(const BlockKey& key, PersistWaiter waiter) = 0;

  // Drops the block from all tiers if nobody references or writes it; true when it is gone, or was
  // not there. Waits for the ssd tier.
  virtual bool Evict(const BlockKey& key) = 0;
  // Forgets up to `limit` copies of blocks of a namespace, of those on ssd at least what is left of
  // it; returns how many it found. None: all are gone (referenced ones are invisible at once and
  // freed with their last reference). Waits for the ssd tier.
  virtual Forgotten Forget(NamespaceId ns, uint64_t limit) = 0;
  // Blocks of a namespace in the ssd tier and on their way there: the end of a deletion is when
  // Forget finds nothing and this, asked afterwards, neither. Reads the catalogue.
  virtual absl::StatusOr<uint64_t> CountCold(NamespaceId ns) const = 0;

  // One round of background work: evict from above the high mark down to the low mark, by way of
  // the ssd tier where there is one. Returns whether anything was done.
  virtual bool Tidy() = 0;
  // When to call Tidy again without being told: fills wait for room, or demotions for their turn.
  virtual absl::Duration TidyAgainIn() const = 0;
  // Told, on any thread, when a block has left for the ssd tier and Tidy may have more to do.
  // Empty: nobody; after that return the last one is not called any more.
  virtual void SetRoomListener(std::function<void()> listener) = 0;
  // The end of the ssd tier: what it does not have of host memory is written to it, most valuable
  // blocks first, until done or the time is up; fills end, their waiters are called. Returns what
  // became of those blocks. Blocks. Nobody else calls meanwhile, and Fill not any more.
  virtual LastDemotions CloseColdTier(absl::Duration timeout) = 0;

  // In the fastest tier that has it.
  virtual std::optional<ResidentBlock> Find(const BlockKey& key) const = 0;
  // The blocks in host memory of the namespaces `wanted` that have the highest scores, those first.
  // `wanted` is called under a lock of the index.
  virtual std::vector<ResidentBlock> Top(size_t count,
                                         const std::function<bool(NamespaceId)>& wanted) const = 0;
  virtual TierStats Stats() const = 0;  // of the host tier
  virtual std::vector<TierStats> Tiers() const = 0;
  virtual ColdTier* cold() = 0;  // null: none
  // The resident blocks of each namespace that has any. Visits every block: for operators, not for
  // the way of a request.
  virtual std::map<NamespaceId, NamespaceUsage> UsageByNamespace() const = 0;
};

}  // namespace terrace
