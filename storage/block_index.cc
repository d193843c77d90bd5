#include "storage/block_index.h"

#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/hash/hash.h"

namespace terrace {
namespace {

constexpr BlockTransition Done(BlockPhase phase, uint32_t references) {
  return {{phase, references}, BlockOutcome::kDone};
}

constexpr BlockTransition LastOut() { return {{BlockPhase::kRetired, 0}, BlockOutcome::kLast}; }

constexpr BlockTransition DropReference(BlockState state) {
  if (state.phase == BlockPhase::kRetired && state.references == 1) return LastOut();
  return Done(state.phase, state.references - 1);
}

BlockTransition NextReserved(BlockState state, BlockEvent event) {
  switch (event) {
    case BlockEvent::kPublish:
      return Done(BlockPhase::kResident, 0);
    case BlockEvent::kAbort:
      return LastOut();
    case BlockEvent::kForget:
      return Done(BlockPhase::kRetired, 1);
    case BlockEvent::kAcquire:
    case BlockEvent::kRetire:
      return {state, BlockOutcome::kRefused};
    default:
      return {state, BlockOutcome::kImpossible};
  }
}

BlockTransition NextResident(BlockState state, BlockEvent event) {
  const uint32_t references = state.references;
  switch (event) {
    case BlockEvent::kAcquire:
      if (references == std::numeric_limits<uint32_t>::max()) {
        return {state, BlockOutcome::kRefused};
      }
      return Done(BlockPhase::kResident, references + 1);
    case BlockEvent::kRelease:
      if (references == 0) return {state, BlockOutcome::kImpossible};
      return DropReference(state);
    case BlockEvent::kRetire:
      if (references > 0) return {state, BlockOutcome::kRefused};
      return LastOut();
    case BlockEvent::kForget:
      if (references == 0) return LastOut();
      return Done(BlockPhase::kRetired, references);
    default:
      return {state, BlockOutcome::kImpossible};
  }
}

BlockTransition NextRetired(BlockState state, BlockEvent event) {
  switch (event) {
    case BlockEvent::kPublish:
    case BlockEvent::kAbort:
    case BlockEvent::kRelease:
      if (state.references == 0) return {state, BlockOutcome::kImpossible};
      return DropReference(state);
    case BlockEvent::kAcquire:
    case BlockEvent::kRetire:
    case BlockEvent::kForget:
      return {state, BlockOutcome::kRefused};
    case BlockEvent::kReclaim:
      if (state.references > 0) return {state, BlockOutcome::kImpossible};
      return Done(BlockPhase::kFree, 0);
    default:
      return {state, BlockOutcome::kImpossible};
  }
}

BlockTransition NextFree(BlockState state, BlockEvent event) {
  switch (event) {
    case BlockEvent::kReserve:
      return Done(BlockPhase::kReserved, 0);
    case BlockEvent::kAcquire:
    case BlockEvent::kRetire:
    case BlockEvent::kForget:
      return {state, BlockOutcome::kRefused};
    default:
      return {state, BlockOutcome::kImpossible};
  }
}

}  // namespace

BlockTransition Next(BlockState state, BlockEvent event) {
  switch (state.phase) {
    case BlockPhase::kFree:
      return NextFree(state, event);
    case BlockPhase::kReserved:
      return NextReserved(state, event);
    case BlockPhase::kResident:
      return NextResident(state, event);
    case BlockPhase::kRetired:
      return NextRetired(state, event);
  }
  return {state, BlockOutcome::kImpossible};
}

std::pair<BlockState, BlockOutcome> BlockStateWord::Apply(BlockEvent event) {
  uint64_t word = word_.load(std::memory_order_acquire);
  while (true) {
    const BlockState state = Unpack(word);
    const auto [next, outcome] = Next(state, event);
    if (outcome == BlockOutcome::kImpossible) std::abort();
    if (outcome == BlockOutcome::kRefused) return {state, outcome};
    if (word_.compare_exchange_weak(word, Pack(next), std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      return {state, outcome};
    }
  }
}

BlockEntry* EntryPool::Take() {
  if (free_.empty()) {
    slabs_.push_back(std::make_unique<std::array<BlockEntry, kSlabEntries>>());
    for (BlockEntry& entry : *slabs_.back()) free_.push_back(&entry);
  }
  BlockEntry* entry = free_.back();
  free_.pop_back();
  return entry;
}

void EntryPool::Give(BlockEntry* entry) { free_.push_back(entry); }

uint64_t EntryPool::bytes() const {
  return slabs_.size() * sizeof(*slabs_[0]) + slabs_.capacity() * sizeof(slabs_[0]) +
         free_.capacity() * sizeof(void*);
}

uint64_t BlockIndex::Hash(const BlockKey& key) {
  std::array<uint64_t, 4> words;
  std::memcpy(words.data(), key.digest.bytes.data(), sizeof(words));
  return absl::HashOf(key.ns.value, words[0], words[1], words[2], words[3], key.shard);
}

bool BlockIndex::Visit(const BlockKey& key, absl::FunctionRef<void(BlockEntry&)> visit) const {
  const uint64_t hash = Hash(key);
  const Shard& shard = ShardOf(hash);
  MutexLock lock(&shard.mutex);
  const auto found = shard.entries.find(key, hash);
  if (found == shard.entries.end()) return false;
  visit(**found);
  return true;
}

bool BlockIndex::Insert(BlockEntry* entry) {
  Shard& shard = ShardOf(Hash(entry->key));
  MutexLock lock(&shard.mutex);
  return shard.entries.insert(entry).second;
}

bool BlockIndex::EraseIf(const BlockKey& key, absl::FunctionRef<bool(BlockEntry&)> condition) {
  const uint64_t hash = Hash(key);
  Shard& shard = ShardOf(hash);
  MutexLock lock(&shard.mutex);
  const auto found = shard.entries.find(key, hash);
  if (found == shard.entries.end() || !condition(**found)) return false;
  shard.entries.erase(found);
  return true;
}

void BlockIndex::SweepShard(size_t shard, absl::FunctionRef<bool(BlockEntry&)> condition) {
  Shard& swept = shards_[shard];
  MutexLock lock(&swept.mutex);
  absl::erase_if(swept.entries, [&](BlockEntry* entry) { return condition(*entry); });
}

void BlockIndex::VisitShard(size_t shard, absl::FunctionRef<void(const BlockEntry&)> visit) const {
  const Shard& visited = shards_[shard];
  MutexLock lock(&visited.mutex);
  for (const BlockEntry* entry : visited.entries) visit(*entry);
}

uint64_t BlockIndex::bytes() const {
  uint64_t bytes = sizeof(*this);
  for (const Shard& shard : shards_) {
    MutexLock lock(&shard.mutex);
    // One pointer and one control byte per slot.
    bytes += shard.entries.capacity() * (sizeof(void*) + 1);
  }
  return bytes;
}

}  // namespace terrace
