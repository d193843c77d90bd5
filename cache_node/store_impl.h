// What a TieredStore is made of: the host tier, and the ssd tier below it where there is one. Only
// tiered_store.cc and store_cold.cc include this.
#pragma once

#include <atomic>
#include <cassert>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cache_node/cold_tier.h"
#include "cache_node/host_memory.h"
#include "cache_node/tier_space.h"
#include "cache_node/tiered_store.h"
#include "proto/mutex.h"
#include "storage/block_index.h"
#include "storage/frequency.h"
#include "storage/tier_policy.h"

namespace terrace::internal {

// Of the arena of the host tier.
constexpr uint64_t kChunkBytes = 2 << 20;

// Locks: fills_mutex_ comes before space_mutex_, and that before the index's own (within TierSpace
// and Reserve), never after. Keys enter the index under space_mutex_ only. Readers need the index's
// locks alone. Of the ssd tier only Find is called under them: it calls nobody back. The others
// call back from threads of their own.
class StoreImpl final : public TieredStore {
 public:
  StoreImpl(const TieredStoreOptions& options, HostMemory memory, std::unique_ptr<ColdTier> cold);
  ~StoreImpl() override {
    CloseColdTier(absl::ZeroDuration());  // its callbacks use the rest
    assert(referenced_blocks_.load() == 0 && "a BlockRef outlives the store");
    assert(reserved_bytes_.load() == 0 && "a Reservation outlives the store");
  }

  MutableByteSpan memory() const override { return memory_bytes_; }
  absl::StatusOr<Descriptor> ShareMemory(uint32_t tenant) override;
  uint32_t Match(std::span<const BlockKey> keys, bool count_use, std::vector<Tier>* tiers,
                 std::vector<BlockRef>* refs, bool* ask_again) override;
  BlockRef Acquire(const BlockKey& key) override;
  FillOutcome Fill(const BlockKey& key, FillWaiter waiter) override;
  void Touch(std::span<const BlockKey> keys) override;
  std::vector<ReserveResult> Reserve(std::span<const BlockKey> keys,
                                     std::span<const BlockShape> shapes,
                                     std::span<const uint16_t> opaque_bytes,
                                     std::span<const uint32_t> depths) override;
  void Persist(const BlockKey& key, PersistWaiter waiter) override;
  bool Evict(const BlockKey& key) override;
  Forgotten Forget(NamespaceId ns, uint64_t limit) override;
  bool Tidy() override;
  absl::Duration TidyAgainIn() const override;
  void SetRoomListener(std::function<void()> listener) override;
  absl::StatusOr<uint64_t> CountCold(NamespaceId ns) const override;
  LastDemotions CloseColdTier(absl::Duration timeout) override;
  std::optional<ResidentBlock> Find(const BlockKey& key) const override;
  std::vector<ResidentBlock> Top(size_t count,
                                 const std::function<bool(NamespaceId)>& wanted) const override;
  TierStats Stats() const override;
  std::vector<TierStats> Tiers() const override;
  ColdTier* cold() override { return cold_.get(); }
  std::map<NamespaceId, NamespaceUsage> UsageByNamespace() const override;

  // store_restore.cc: finds the blocks that lie in memory which an earlier process has left. Before
  // anybody else calls.
  void Restore();

  // The other ends of BlockRef and Reservation.
  void Release(BlockEntry* entry);
  bool Publish(BlockEntry* entry, const Envelope& envelope);
  void Abort(BlockEntry* entry);

 private:
  struct Counters {
    std::atomic<uint64_t> hits{0}, misses{0};
    std::atomic<uint64_t> puts{0}, puts_existing{0}, puts_no_space{0}, puts_never_fit{0},
        puts_aborted{0};
    std::atomic<uint64_t> forgotten{0}, kept{0}, corrupt{0};
    std::atomic<uint64_t> demoted{0}, demoted_by_name{0}, not_admitted{0};
    std::atomic<uint64_t> demotions_no_room{0}, demotions_failed{0};
    std::atomic<uint64_t> fills{0}, fills_failed{0}, fills_refused{0};
  };
  // A block on its way from the ssd tier into host memory, and who waits for it.
  struct FillJob {
    BlockKey key;
    absl::Duration since;             // by the clock
    BlockEntry* entry = nullptr;      // reserved; null while it waits for room
    std::vector<std::byte> envelope;  // as the ssd tier has it
    std::vector<FillWaiter> waiters;
    std::optional<absl::Status> status;  // the ssd tier has answered
    bool released = false;               // the device has let go of the memory
    bool ended = false;                  // both, and somebody sees to it
  };
  // A block on its way from host memory to the ssd tier; referenced.
  struct DemotionJob {
    BlockEntry* entry = nullptr;
    double score = 0;  // when it was chosen
    std::optional<absl::Status> status;
    bool released = false;
    bool ended = false;
  };

  struct Leaving {
    uint64_t blocks = 0, bytes = 0;
  };

  // Adds a use; under the lock of the entry's shard, which makes it the only writer.
  static void CountUse(BlockEntry& entry, double moment) {
    entry.score.store(AddUse(entry.rank().score, moment), std::memory_order_relaxed);
    entry.seen_again.store(true, std::memory_order_relaxed);
  }
  static void Add(std::atomic<uint64_t>* counter, uint64_t count) {
    counter->fetch_add(count, std::memory_order_relaxed);
  }

  // A reference to a resident entry, or an empty one; under the lock of its shard.
  BlockRef Reference(BlockEntry& entry);
  MutableByteSpan ValueOf(const BlockEntry& entry) const {
    return memory_bytes_.subspan(entry.place.offset, entry.length);
  }
  MutableByteSpan EnvelopeOf(const BlockEntry& entry) const {
    return memory_bytes_.subspan(entry.place.side_offset, entry.envelope_bytes);
  }
  // A place that is free again, or was never used, has no valid envelope: whoever still looks at
  // it from outside sees that its block has gone, before anything else is written there. Called by
  // space_, that is under its lock.
  bool TakeRegion(uint64_t offset, uint64_t bytes, uint64_t side_bytes,
                  PlaceClass size) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Whether a referenced block is what its envelope says, which is looked at once where an earlier
  // process has left it; reads all of it then. One that is not is forgotten.
  bool IsRight(BlockEntry& entry);
  bool DescribeKept(BlockEntry* entry, uint64_t* newest) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // kExists or kPending, or nothing when the key is not in the index.
  std::optional<ReserveOutcome> OutcomeOfPresent(const BlockKey& key, double moment);
  ReserveResult ReserveOne(const BlockKey& key, const BlockShape& shape, uint16_t opaque_bytes,
                           uint32_t depth, double moment);
  ResidentBlock Describe(const BlockEntry& entry) const;
  // Makes a reserved entry readable and references it for `refs` in the same step, before anybody
  // can evict it; false when it was forgotten meanwhile.
  bool MakeResident(BlockEntry* entry, std::span<BlockRef> refs);
  void GiveUp(BlockEntry* entry);

  // store_cold.cc: the way to the ssd tier and back.
  // kComing: with an entry, or without room for one now.
  FillOutcome BeginFill(const BlockKey& key, const ColdBlock& cold, TierSpace::Victims victims,
                        BlockEntry** entry);
  void StartFill(const std::shared_ptr<FillJob>& job);
  void StartWaitingFills();
  void EndWaitingFill(const std::shared_ptr<FillJob>& job);
  void TellIfFull();
  void TellRoomListener();
  void OnFill(const std::shared_ptr<FillJob>& job);
  bool DemoteSome(uint64_t to_free);
  std::vector<std::shared_ptr<DemotionJob>> ChooseLeaving(uint64_t to_free, size_t most);
  void Demote(const std::vector<std::shared_ptr<DemotionJob>>& jobs);
  void StartDemotion(const std::shared_ptr<DemotionJob>& job);
  void OnDemotion(const std::shared_ptr<DemotionJob>& job);
  void EndDemotion(DemotionJob* job, bool drop);
  void StoreDurably(const BlockKey& key, BlockRef block, PersistWaiter waiter);
  // Between these a block of the namespace is on its way to the ssd tier.
  void BeginWriteOf(NamespaceId ns);
  void EndWriteOf(NamespaceId ns);
  LastDemotions DemoteAll(absl::Duration timeout);

  const uint32_t max_block_bytes_;
  const std::function<uint32_t(NamespaceId)> tenant_of_;

  BlockIndex index_;
  mutable Mutex space_mutex_;
  HostMemory memory_ ABSL_GUARDED_BY(space_mutex_);
  const MutableByteSpan memory_bytes_;  // of it; who has a place may use it without the lock
  const Watermarks marks_;
  TierSpace space_ ABSL_GUARDED_BY(space_mutex_);

  DecayClock clock_{kHalfLifeTurnovers};
  std::atomic<uint64_t> next_generation_;
  std::atomic<uint64_t> referenced_blocks_{0};
  std::atomic<uint64_t> reserved_bytes_{0};
  Counters counters_;

  mutable Mutex fills_mutex_;  // also of the jobs' fields
  std::deque<std::shared_ptr<FillJob>> waiting_fills_ ABSL_GUARDED_BY(fills_mutex_);
  absl::flat_hash_map<BlockKey, std::shared_ptr<FillJob>> fills_ ABSL_GUARDED_BY(fills_mutex_);

  // Taken while no other is held; the listener is called under it. Also of the jobs' fields.
  Mutex demotions_mutex_;
  Leaving leaving_ ABSL_GUARDED_BY(demotions_mutex_);
  std::function<void()> room_listener_ ABSL_GUARDED_BY(demotions_mutex_);

  mutable Mutex writes_mutex_;  // innermost
  absl::flat_hash_map<uint64_t, uint32_t> writes_of_ ABSL_GUARDED_BY(writes_mutex_);

  std::unique_ptr<ColdTier> cold_;  // null: none
};

}  // namespace terrace::internal
