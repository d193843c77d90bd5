// The places of one tier, and which block gives its place up for which: arena, order of eviction
// and ghosts, composed by the rules of storage/tier_policy. Knows nothing of the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "storage/arena.h"
#include "storage/block_index.h"
#include "storage/eviction_order.h"
#include "storage/frequency.h"
#include "storage/tier_policy.h"

namespace terrace {

// Thread-compatible: the caller's lock, which is taken before the locks of the index and never
// within them. Entries go back to the pool only here, so whoever holds the lock may look at any
// entry that has a place, whatever its phase.
class TierSpace {
 public:
  // `index` outlives this.
  TierSpace(uint64_t bytes, uint64_t chunk_bytes, BlockIndex* index);

  bool CanEverFit(PlaceClass size) const { return arena_.CanEverFit(size); }

  // Told of each new region (Arena::SetOnRegion), and of each place that is about to be free, which
  // nobody reads any more. Called under the caller's lock. Unset: nobody is told.
  void SetOnRegion(Arena::OnRegion on_region) { arena_.SetOnRegion(std::move(on_region)); }
  void SetOnFree(std::function<void(const BlockEntry&)> on_free) { on_free_ = std::move(on_free); }

  // Whether a block has a copy in a slower tier, so that nothing is lost when it goes. Called under
  // the caller's lock, without those of the index. Unset: none has.
  void SetCopied(std::function<bool(const BlockKey&)> copied) { copied_ = std::move(copied); }

  // An entry in phase free with a place of its own, blocks evicted for it where need be: those
  // alone that have a copy, or any. Null when nothing can be evicted now.
  enum class Victims { kCopied, kAny };
  BlockEntry* Take(PlaceClass size, Victims victims = Victims::kAny);
  // Gives back what was taken and never published; retired, without a reference.
  void GiveBack(BlockEntry* entry);

  // Takes over a region that an earlier arena of the same sizes had. `describe` is called with an
  // entry that has its place there: true when it has filled in a block, which is published then.
  // False when the region cannot be there.
  bool Restore(PlaceClass size, uint32_t first_chunk, uint32_t chunks,
               absl::FunctionRef<bool(BlockEntry*)> describe);

  // A block that has been published: from now on it may be evicted.
  void Publish(BlockEntry* entry);
  // A published block that was retired and has no reference left (BlockOutcome::kLast).
  void Reclaim(BlockEntry* entry);
  // Drops the block unless it is referenced; returns whether it did.
  bool Drop(BlockEntry* entry);

  // Evicts the block that stands lowest of all classes. Returns the bytes freed, 0 when none can
  // go.
  uint64_t EvictLowest();

  // The unreferenced block that stands lowest of all classes, now referenced and out of the order,
  // for the caller to copy elsewhere; null when there is none. `before` is its state until now.
  BlockEntry* BeginLeaving(BlockState* before);
  // Of such a block, whose reference has been given back and which is still resident: evicted if
  // `drop` and nobody else references it, else in the order again.
  void EndLeaving(BlockEntry* entry, bool drop);

  // The score with which an evicted block went, forgotten by this; kNoScore for a stranger.
  double RecallScore(const BlockKey& key) { return ghosts_.Recall(BlockIndex::Hash(key)); }

  struct Counts {
    uint64_t blocks = 0, value_bytes = 0;  // published
    uint64_t evicted_for_space = 0, evicted_watermark = 0, evicted_region_move = 0;
    uint64_t evicted_copied = 0;  // for space, a copy stays in a slower tier
  };
  const Counts& counts() const { return counts_; }
  const Arena& arena() const { return arena_; }
  // Places in use with what rounding and region tails cost; the rest can be handed out.
  uint64_t occupied_bytes() const { return arena_.size() - arena_.allocatable_bytes(); }
  double capacity_in_blocks() const {
    return CapacityInBlocks(arena_.size(), arena_.places_in_use(), arena_.bytes_in_use());
  }
  uint64_t bookkeeping_bytes() const;

 private:
  struct Class {
    EvictionOrder order;
    uint64_t bytes_until_look = 0;  // evicted for space before windows are priced again
  };

  bool MakeRoom(PlaceClass size);
  bool EvictFirst(PlaceClass size, uint64_t* counter, Victims victims = Victims::kAny);
  bool Evict(BlockEntry* entry, uint64_t* counter);
  bool ClearWindow(PlaceClass size, const std::optional<Offer>& own);
  bool ClearCheapest(PlaceClass size, uint32_t chunks, const std::optional<Offer>& own);
  std::optional<Offer> Price(Arena::Window window) const;
  bool Clear(Arena::Window window);

  BlockIndex* const index_;
  std::function<bool(const BlockKey&)> copied_;
  std::function<void(const BlockEntry&)> on_free_;
  Arena arena_;
  EntryPool pool_;
  absl::flat_hash_map<PlaceClass, Class> classes_;  // those with a published block
  GhostTable ghosts_;
  Counts counts_;
  uint32_t window_cursor_ = 0;
};

}  // namespace terrace
