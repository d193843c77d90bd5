#include "cache_node/tiered_store.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "cache_node/store_impl.h"
#include "fmt/format.h"
#include "proto/log.h"
#include "proto/status.h"

namespace terrace {
namespace internal {
namespace {

constexpr uint32_t kOnlyTenant = 1;
// Blocks evicted by Tidy before it lets others at the lock.
constexpr int kTidyBatch = 64;

// Generations count on from the time of creation in nanoseconds. A store makes fewer than one
// per nanosecond, so a later one starts above all that were given out before.
uint64_t FirstGeneration() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

// With an ssd tier a block leaves only when it has been written there, which takes a while.
Watermarks MarksOf(const TieredStoreOptions& options, uint64_t bytes, bool cold) {
  if (options.high_mark > 0) return {options.high_mark, options.low_mark};
  return cold ? HostMarksOverSsd(bytes) : kHostMarks;
}

}  // namespace

StoreImpl::StoreImpl(const TieredStoreOptions& options, HostMemory memory,
                     std::unique_ptr<ColdTier> cold)
    : max_block_bytes_(options.max_block_bytes),
      tenant_of_(options.tenant_of ? options.tenant_of : [](NamespaceId) { return kOnlyTenant; }),
      memory_(std::move(memory)),
      memory_bytes_(memory_.bytes()),
      marks_(MarksOf(options, memory_bytes_.size(), cold != nullptr)),
      space_(memory_bytes_.size(), kChunkBytes, &index_),
      next_generation_(FirstGeneration()),
      cold_(std::move(cold)) {
  MutexLock lock(&space_mutex_);
  space_.SetOnRegion([this](uint64_t offset, uint64_t bytes, uint64_t side_bytes, PlaceClass size) {
    return TakeRegion(offset, bytes, side_bytes, size);
  });
  space_.SetOnFree([this](const BlockEntry& entry) { Invalidate(EnvelopeOf(entry)); });
  if (cold_ == nullptr) return;
  space_.SetCopied([this](const BlockKey& key) {
    ColdBlock block;
    cold_->Find({&key, 1}, {&block, 1});
    return block.presence == Presence::kHere;
  });
}

bool StoreImpl::TakeRegion(uint64_t offset, uint64_t bytes, uint64_t side_bytes, PlaceClass size) {
  const HostRegion region{static_cast<uint32_t>(offset / kChunkBytes),
                          static_cast<uint32_t>(bytes / kChunkBytes), size};
  const absl::Status begun = memory_.BeginRegion(region, side_bytes);
  if (!begun.ok()) Log(LogLevel::kError, "store", "{}", begun.ToString());
  return begun.ok();
}

absl::StatusOr<Descriptor> StoreImpl::ShareMemory(uint32_t tenant) {
  MutexLock lock(&space_mutex_);
  return memory_.OpenForReading(tenant);
}

// --- reading

BlockRef StoreImpl::Reference(BlockEntry& entry) {
  BlockRef ref;
  const auto [before, outcome] = entry.state.Apply(BlockEvent::kAcquire);
  if (outcome == BlockOutcome::kRefused) return ref;
  if (before.references == 0) Add(&referenced_blocks_, 1);
  ref.store_ = this;
  ref.entry_ = &entry;
  ref.envelope_ = EnvelopeOf(entry);
  ref.value_ = ValueOf(entry);
  return ref;
}

uint32_t StoreImpl::Match(std::span<const BlockKey> keys, bool count_use, std::vector<Tier>* tiers,
                          std::vector<BlockRef>* refs, bool* ask_again) {
  // One moment for the whole path: parents have all the uses of their children, and equal scores
  // are told apart by depth, so the order is as if it were touched leaf to root.
  const double moment = clock_.Moment();
  std::vector<ColdBlock> cold;  // of the keys from the first that is not in host memory
  uint32_t run = 0, cold_hits = 0;
  for (const BlockKey& key : keys) {
    bool readable = false;
    index_.Visit(key, [&](BlockEntry& entry) {
      if (refs != nullptr) {
        BlockRef ref = Reference(entry);
        readable = static_cast<bool>(ref);
        if (readable) refs->push_back(std::move(ref));
      } else {
        readable = entry.state.Load().phase == BlockPhase::kResident;
      }
      if (readable && count_use) CountUse(entry, moment);
    });
    if (readable && refs != nullptr && !IsRight(*static_cast<BlockEntry*>(refs->back().entry_))) {
      refs->pop_back();
      readable = false;
    }
    Tier tier = Tier::kHost;
    if (!readable) {
      if (cold_ == nullptr) break;
      if (cold.empty()) {
        cold.resize(keys.size() - run);
        cold_->Find(keys.subspan(run), cold);
      }
      const Presence presence = cold[cold.size() - (keys.size() - run)].presence;
      if (ask_again != nullptr) *ask_again = presence == Presence::kAskAgain;
      if (presence != Presence::kHere) break;
      tier = Tier::kSsd;
      ++cold_hits;
    }
    if (tiers != nullptr) tiers->push_back(tier);
    ++run;
  }
  if (count_use) {
    clock_.CountUses(run);
    Add(&counters_.hits, run - cold_hits);
    Add(&counters_.misses, keys.size() - (run - cold_hits));
    if (cold_ != nullptr) {
      cold_->Touch(keys.first(run));
      cold_->Elapse(run);
      cold_->CountRequested(cold_hits, keys.size() - run);
    }
  }
  return run;
}

BlockRef StoreImpl::Acquire(const BlockKey& key) {
  BlockRef ref;
  index_.Visit(key, [&](BlockEntry& entry) { ref = Reference(entry); });
  if (ref && !IsRight(*static_cast<BlockEntry*>(ref.entry_))) ref.Release();
  return ref;
}

void StoreImpl::Touch(std::span<const BlockKey> keys) {
  const double moment = clock_.Moment();
  uint64_t uses = 0;
  for (const BlockKey& key : keys) {
    index_.Visit(key, [&](BlockEntry& entry) {
      if (entry.state.Load().phase != BlockPhase::kResident) return;
      CountUse(entry, moment);
      ++uses;
    });
  }
  clock_.CountUses(uses);
  if (cold_ == nullptr) return;
  cold_->Touch(keys);
  cold_->Elapse(keys.size());
}

void StoreImpl::Release(BlockEntry* entry) {
  const auto [before, outcome] = entry->state.Apply(BlockEvent::kRelease);
  if (before.references == 1) referenced_blocks_.fetch_sub(1, std::memory_order_relaxed);
  if (outcome != BlockOutcome::kLast) return;  // the entry may be anybody's from here on
  MutexLock lock(&space_mutex_);
  space_.Reclaim(entry);
}

// --- writing

std::optional<ReserveOutcome> StoreImpl::OutcomeOfPresent(const BlockKey& key, double moment) {
  ReserveOutcome outcome = ReserveOutcome::kPending;
  const bool present = index_.Visit(key, [&](BlockEntry& entry) {
    if (entry.state.Load().phase != BlockPhase::kResident) return;
    outcome = ReserveOutcome::kExists;
    CountUse(entry, moment);
  });
  if (!present) return std::nullopt;
  Add(&counters_.puts_existing, 1);
  return outcome;
}

ReserveResult StoreImpl::ReserveOne(const BlockKey& key, const BlockShape& shape,
                                    uint16_t opaque_bytes, uint32_t depth, double moment) {
  const size_t envelope_bytes = EnvelopeBytes(shape.segments, opaque_bytes);
  const uint32_t tenant = tenant_of_(key.ns);
  const PlaceClass size = ClassFor(shape.length, envelope_bytes, tenant);
  MutexLock lock(&space_mutex_);
  if (const auto present = OutcomeOfPresent(key, moment)) return {*present, {}};
  if (shape.length > max_block_bytes_ || !space_.CanEverFit(size)) {
    Add(&counters_.puts_never_fit, 1);
    return {ReserveOutcome::kNeverFits, {}};
  }
  BlockEntry* entry = nullptr;
  if (tenant != 0) entry = space_.Take(size, TierSpace::Victims::kCopied);
  if (tenant != 0 && entry == nullptr) entry = space_.Take(size);
  if (entry == nullptr) {
    Add(&counters_.puts_no_space, 1);
    return {ReserveOutcome::kNoSpace, {}};
  }
  entry->key = key;
  entry->length = shape.length;
  entry->depth = depth;
  entry->envelope_bytes = static_cast<uint32_t>(envelope_bytes);
  const double before = space_.RecallScore(key);
  entry->score.store(AddUse(before, moment), std::memory_order_relaxed);
  entry->seen_again.store(before != kNoScore, std::memory_order_relaxed);
  entry->state.Apply(BlockEvent::kReserve);
  index_.Insert(entry);
  clock_.SetCapacity(space_.capacity_in_blocks());
  Add(&reserved_bytes_, size.bytes());

  ReserveResult result{ReserveOutcome::kReserved, {}};
  result.reservation.store_ = this;
  result.reservation.entry_ = entry;
  result.reservation.generation_ = next_generation_.fetch_add(1, std::memory_order_relaxed);
  result.reservation.key_ = key;
  result.reservation.value_ = ValueOf(*entry);
  return result;
}

std::vector<ReserveResult> StoreImpl::Reserve(std::span<const BlockKey> keys,
                                              std::span<const BlockShape> shapes,
                                              std::span<const uint16_t> opaque_bytes,
                                              std::span<const uint32_t> depths) {
  const double moment = clock_.Moment();
  std::vector<ReserveResult> results;
  results.reserve(keys.size());
  std::vector<ColdBlock> cold(cold_ == nullptr ? 0 : keys.size());
  if (cold_ != nullptr) cold_->Find(keys, cold);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!cold.empty() && cold[i].presence == Presence::kHere) {
      cold_->Touch(keys.subspan(i, 1));
      Add(&counters_.puts_existing, 1);
      results.push_back({ReserveOutcome::kExists, {}});
      continue;
    }
    results.push_back(ReserveOne(keys[i], shapes[i], opaque_bytes[i], depths[i], moment));
  }
  // What found no place used nothing.
  const auto uses = std::ranges::count_if(results, [](const ReserveResult& result) {
    return result.outcome == ReserveOutcome::kReserved || result.outcome == ReserveOutcome::kExists;
  });
  clock_.CountUses(uses);
  if (cold_ != nullptr) cold_->Elapse(uses);
  return results;
}

bool StoreImpl::Publish(BlockEntry* entry, const Envelope& envelope) {
  if (envelope.key != entry->key || envelope.shape.length != entry->length ||
      envelope.checksums.size() != envelope.shape.segments ||
      EnvelopeBytes(envelope.shape.segments, envelope.metadata.opaque.size()) !=
          entry->envelope_bytes) {
    std::abort();  // not the block that was reserved
  }
  envelope.EncodeTo(EnvelopeOf(*entry));
  const bool published = MakeResident(entry, {});
  Add(published ? &counters_.puts : &counters_.puts_aborted, 1);
  return published;
}

bool StoreImpl::MakeResident(BlockEntry* entry, std::span<BlockRef> refs) {
  const uint64_t bytes = entry->size.bytes();
  MutexLock lock(&space_mutex_);
  const auto [before, outcome] = entry->state.Apply(BlockEvent::kPublish);
  const bool published = before.phase == BlockPhase::kReserved;
  if (published) {
    space_.Publish(entry);
    index_.Visit(entry->key, [&](BlockEntry& found) {
      if (&found != entry) return;  // forgotten, and written anew
      for (BlockRef& ref : refs) ref = Reference(found);
    });
  } else if (outcome == BlockOutcome::kLast) {
    space_.GiveBack(entry);
  }
  reserved_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  return published;
}

void StoreImpl::Abort(BlockEntry* entry) {
  GiveUp(entry);
  Add(&counters_.puts_aborted, 1);
}

void StoreImpl::GiveUp(BlockEntry* entry) {
  const uint64_t bytes = entry->size.bytes();
  MutexLock lock(&space_mutex_);
  const bool erased = index_.EraseIf(entry->key, [entry](BlockEntry& found) {
    return &found == entry && found.state.Apply(BlockEvent::kAbort).second == BlockOutcome::kLast;
  });
  // Forgotten while it was written: out of the index, and the writer's reference is the last.
  if (!erased) entry->state.Apply(BlockEvent::kAbort);
  space_.GiveBack(entry);
  reserved_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

// --- dropping

bool StoreImpl::Evict(const BlockKey& key) {
  if (cold_ != nullptr && !cold_->Delete(key).ok()) return false;
  MutexLock lock(&space_mutex_);
  BlockEntry* entry = nullptr;
  index_.Visit(key, [&](BlockEntry& found) { entry = &found; });
  if (entry == nullptr) return true;
  // Forget may retire it at this point; its memory stays while the lock is held.
  if (!space_.Drop(entry)) return !index_.Visit(key, [](BlockEntry&) {});
  Add(&counters_.forgotten, 1);
  return true;
}

Forgotten StoreImpl::Forget(NamespaceId ns, uint64_t limit) {
  Forgotten forgotten;
  uint64_t& found = forgotten.host;
  std::vector<BlockEntry*> unreferenced;
  for (size_t shard = 0; shard < BlockIndex::kShards && found < limit; ++shard) {
    unreferenced.clear();
    index_.SweepShard(shard, [&](BlockEntry& entry) {
      if (entry.key.ns != ns || found == limit) return false;
      ++found;
      if (entry.state.Apply(BlockEvent::kForget).second == BlockOutcome::kLast) {
        unreferenced.push_back(&entry);
      }
      return true;
    });
    for (BlockEntry* entry : unreferenced) {
      MutexLock lock(&space_mutex_);
      space_.Reclaim(entry);
    }
  }
  Add(&counters_.forgotten, found);
  if (cold_ != nullptr && found < limit) {
    const absl::StatusOr<uint64_t> more = cold_->Forget(ns, limit - found);
    if (more.ok()) forgotten.ssd = *more;
  }
  return forgotten;
}

bool StoreImpl::Tidy() {
  uint64_t to_free;
  {
    MutexLock lock(&space_mutex_);
    to_free = BytesToFree(marks_, space_.occupied_bytes(), space_.arena().size());
  }
  if (cold_ != nullptr) {
    StartWaitingFills();
    return DemoteSome(to_free);
  }
  bool any = false;
  while (to_free > 0) {
    MutexLock lock(&space_mutex_);
    for (int i = 0; i < kTidyBatch && to_free > 0; ++i) {
      const uint64_t freed = space_.EvictLowest();
      if (freed == 0) return any;
      any = true;
      to_free -= std::min(to_free, freed);
    }
  }
  return any;
}

// --- seeing

ResidentBlock StoreImpl::Describe(const BlockEntry& entry) const {
  return {entry.key,    Tier::kHost,
          entry.length, entry.rank().score - clock_.Now(),
          entry.depth,  entry.state.Load().references};
}

std::optional<ResidentBlock> StoreImpl::Find(const BlockKey& key) const {
  std::optional<ResidentBlock> row;
  index_.Visit(key, [&](BlockEntry& entry) {
    if (entry.state.Load().phase == BlockPhase::kResident) row = Describe(entry);
  });
  if (row || cold_ == nullptr) return row;
  ColdBlock cold;
  cold_->Find({&key, 1}, {&cold, 1});
  if (cold.presence != Presence::kHere) return std::nullopt;
  return ResidentBlock{key, Tier::kSsd, cold.length, cold.score - cold_->now(), cold.depth, 0};
}

std::vector<ResidentBlock> StoreImpl::Top(size_t count,
                                          const std::function<bool(NamespaceId)>& wanted) const {
  const auto higher = [](const ResidentBlock& a, const ResidentBlock& b) {
    return GivenUpBefore({b.score, b.depth}, {a.score, a.depth});
  };
  std::vector<ResidentBlock> rows;  // a heap whose front is the lowest of those kept
  for (size_t shard = 0; shard < BlockIndex::kShards && count > 0; ++shard) {
    index_.VisitShard(shard, [&](const BlockEntry& entry) {
      if (entry.state.Load().phase != BlockPhase::kResident || !wanted(entry.key.ns)) return;
      const ResidentBlock row = Describe(entry);
      if (rows.size() == count) {
        if (!higher(row, rows.front())) return;
        std::ranges::pop_heap(rows, higher);
        rows.pop_back();
      }
      rows.push_back(row);
      std::ranges::push_heap(rows, higher);
    });
  }
  std::ranges::sort_heap(rows, higher);
  return rows;
}

std::map<NamespaceId, NamespaceUsage> StoreImpl::UsageByNamespace() const {
  std::map<NamespaceId, NamespaceUsage> usage;
  for (size_t shard = 0; shard < BlockIndex::kShards; ++shard) {
    index_.VisitShard(shard, [&](const BlockEntry& entry) {
      if (entry.state.Load().phase != BlockPhase::kResident) return;
      NamespaceUsage& sum = usage[entry.key.ns];
      ++sum.blocks;
      sum.value_bytes += entry.length;
    });
  }
  return usage;
}

TierStats StoreImpl::Stats() const {
  TierStats stats;
  stats.index_bytes = index_.bytes();
  {
    MutexLock lock(&space_mutex_);
    const TierSpace::Counts& counts = space_.counts();
    stats.capacity_bytes = space_.arena().size();
    stats.value_bytes = counts.value_bytes;
    stats.occupied_bytes = space_.occupied_bytes();
    stats.blocks = counts.blocks;
    stats.index_bytes += space_.bookkeeping_bytes();
    stats.evicted_for_space = counts.evicted_for_space;
    stats.evicted_watermark = counts.evicted_watermark;
    stats.evicted_region_move = counts.evicted_region_move;
    stats.evicted_copied = counts.evicted_copied;
  }
  stats.reserved_bytes = reserved_bytes_.load(std::memory_order_relaxed);
  stats.referenced_blocks = referenced_blocks_.load(std::memory_order_relaxed);
  stats.hits = counters_.hits.load(std::memory_order_relaxed);
  stats.misses = counters_.misses.load(std::memory_order_relaxed);
  stats.puts = counters_.puts.load(std::memory_order_relaxed);
  stats.puts_existing = counters_.puts_existing.load(std::memory_order_relaxed);
  stats.puts_no_space = counters_.puts_no_space.load(std::memory_order_relaxed);
  stats.puts_never_fit = counters_.puts_never_fit.load(std::memory_order_relaxed);
  stats.puts_aborted = counters_.puts_aborted.load(std::memory_order_relaxed);
  stats.forgotten = counters_.forgotten.load(std::memory_order_relaxed);
  stats.kept = counters_.kept.load(std::memory_order_relaxed);
  stats.corrupt = counters_.corrupt.load(std::memory_order_relaxed);
  stats.turnovers = clock_.Turnovers();
  stats.demoted = counters_.demoted.load(std::memory_order_relaxed);
  stats.demoted_by_name = counters_.demoted_by_name.load(std::memory_order_relaxed);
  stats.not_admitted = counters_.not_admitted.load(std::memory_order_relaxed);
  stats.demotions_no_room = counters_.demotions_no_room.load(std::memory_order_relaxed);
  stats.demotions_failed = counters_.demotions_failed.load(std::memory_order_relaxed);
  stats.fills = counters_.fills.load(std::memory_order_relaxed);
  stats.fills_failed = counters_.fills_failed.load(std::memory_order_relaxed);
  stats.fills_refused = counters_.fills_refused.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace internal

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  if (this == &other) return *this;
  Release();
  store_ = std::exchange(other.store_, nullptr);
  entry_ = std::exchange(other.entry_, nullptr);
  envelope_ = std::exchange(other.envelope_, {});
  value_ = std::exchange(other.value_, {});
  return *this;
}

void BlockRef::Release() {
  if (store_ == nullptr) return;
  auto* store = std::exchange(store_, nullptr);
  envelope_ = value_ = {};
  store->Release(static_cast<BlockEntry*>(std::exchange(entry_, nullptr)));
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Abort();
  store_ = std::exchange(other.store_, nullptr);
  entry_ = std::exchange(other.entry_, nullptr);
  generation_ = std::exchange(other.generation_, 0);
  key_ = other.key_;
  value_ = std::exchange(other.value_, {});
  return *this;
}

bool Reservation::Publish(Envelope envelope) {
  envelope.generation = std::exchange(generation_, 0);
  value_ = {};
  auto* store = std::exchange(store_, nullptr);
  return store->Publish(static_cast<BlockEntry*>(std::exchange(entry_, nullptr)), envelope);
}

void Reservation::Abort() {
  if (store_ == nullptr) return;
  generation_ = 0;
  value_ = {};
  auto* store = std::exchange(store_, nullptr);
  store->Abort(static_cast<BlockEntry*>(std::exchange(entry_, nullptr)));
}

absl::StatusOr<std::unique_ptr<TieredStore>> TieredStore::Create(TieredStoreOptions options,
                                                                 std::unique_ptr<ColdTier> cold) {
  if (options.high_mark > 0 || options.low_mark > 0) {
    TERRACE_RETURN_IF_ERROR(Validate(Watermarks{options.high_mark, options.low_mark}));
  }
  if (options.host_bytes < internal::kChunkBytes) {
    return absl::InvalidArgumentError(fmt::format("host_bytes is {}; at least {} are needed",
                                                  options.host_bytes, internal::kChunkBytes));
  }
  if (options.max_block_bytes < kMinBlockBytes || options.max_block_bytes > kMaxBlockBytes) {
    return absl::InvalidArgumentError(fmt::format("max_block_bytes is {}; {} to {} are accepted",
                                                  options.max_block_bytes, kMinBlockBytes,
                                                  kMaxBlockBytes));
  }
  const uint64_t bytes = options.host_bytes / internal::kChunkBytes * internal::kChunkBytes;
  absl::StatusOr<HostMemory> memory = absl::NotFoundError("not kept");
  if (options.keep != nullptr) {
    const auto lives = [&](uint32_t tenant) {
      return !options.tenant_lives || options.tenant_lives(tenant);
    };
    memory = HostMemory::Adopt(bytes, internal::kChunkBytes, options.keep, lives);
  }
  const bool adopted = memory.ok();
  if (!adopted) {
    if (!absl::IsNotFound(memory.status())) {
      Log(LogLevel::kWarning, "store", "host memory of an earlier process is left: {}",
          memory.status().ToString());
    }
    memory = HostMemory::Create(bytes, internal::kChunkBytes, options.progress, options.keep);
    if (!memory.ok()) return memory.status();
  }
  auto store = std::make_unique<internal::StoreImpl>(options, *std::move(memory), std::move(cold));
  if (adopted) store->Restore();
  return store;
}

}  // namespace terrace
