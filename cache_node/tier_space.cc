#include "cache_node/tier_space.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace terrace {
namespace {

// Referenced blocks that one eviction passes over before it gives up. They are read now and so
// rarely stand at the front of the order.
constexpr size_t kMostPassedOver = 1024;
// Blocks without a copy that one eviction looks at before it gives up.
constexpr size_t kMostUncopied = 16;
// Starting points of windows priced at a time; each costs a look at the blocks of a region.
constexpr size_t kWindowsPerLook = 16;
// Rounds of making room for one block. A second is needed when readers take blocks of a window
// while it is cleared.
constexpr int kMostRounds = 4;

}  // namespace

TierSpace::TierSpace(uint64_t bytes, uint64_t chunk_bytes, BlockIndex* index)
    : index_(index), arena_(bytes, chunk_bytes) {}

BlockEntry* TierSpace::Take(PlaceClass size, Victims victims) {
  BlockEntry* entry = pool_.Take();
  for (int round = 0; round <= kMostRounds; ++round) {
    if (const auto place = arena_.Allocate(size, entry)) {
      entry->place = *place;
      entry->size = size;
      ghosts_.Reserve(arena_.places_in_use());
      return entry;
    }
    if (round == kMostRounds) break;
    const bool any = victims == Victims::kAny;
    if (any ? !MakeRoom(size) : !EvictFirst(size, &counts_.evicted_copied, victims)) break;
  }
  pool_.Give(entry);
  return nullptr;
}

void TierSpace::GiveBack(BlockEntry* entry) {
  if (on_free_) on_free_(*entry);
  arena_.Free(entry->place.offset);
  entry->state.Apply(BlockEvent::kReclaim);
  entry->unverified.store(false, std::memory_order_relaxed);
  pool_.Give(entry);
}

bool TierSpace::Restore(PlaceClass size, uint32_t first_chunk, uint32_t chunks,
                        absl::FunctionRef<bool(BlockEntry*)> describe) {
  const bool restored = arena_.RestoreRegion(size, first_chunk, chunks, [&](Place place) -> void* {
    BlockEntry* const entry = pool_.Take();
    entry->place = place;
    entry->size = size;
    if (describe(entry) && index_->Insert(entry)) {
      entry->state.Apply(BlockEvent::kReserve);
      entry->state.Apply(BlockEvent::kPublish);
      Publish(entry);
      return entry;
    }
    if (on_free_) on_free_(*entry);
    entry->unverified.store(false, std::memory_order_relaxed);
    pool_.Give(entry);
    return nullptr;
  });
  ghosts_.Reserve(arena_.places_in_use());
  return restored;
}

void TierSpace::Publish(BlockEntry* entry) {
  classes_[entry->size].order.Insert(entry);
  counts_.blocks += 1;
  counts_.value_bytes += entry->length;
}

void TierSpace::Reclaim(BlockEntry* entry) {
  // An eviction that met the block after it was retired has taken it out of the order already.
  if (entry->position != Ranked::kNotOrdered) {
    const auto own = classes_.find(entry->size);
    own->second.order.Remove(entry);
    if (own->second.order.empty()) classes_.erase(own);
  }
  counts_.blocks -= 1;
  counts_.value_bytes -= entry->length;
  GiveBack(entry);
}

bool TierSpace::Drop(BlockEntry* entry) {
  const bool retired = index_->EraseIf(entry->key, [entry](BlockEntry& found) {
    // Another entry may carry the key when this one was forgotten and written anew.
    return &found == entry && found.state.Apply(BlockEvent::kRetire).second == BlockOutcome::kLast;
  });
  if (retired) Reclaim(entry);
  return retired;
}

bool TierSpace::Evict(BlockEntry* entry, uint64_t* counter) {
  const uint64_t hash = BlockIndex::Hash(entry->key);
  const double score = entry->rank().score;
  if (!Drop(entry)) return false;
  ghosts_.Remember(hash, score);
  *counter += 1;
  return true;
}

// Evicts the first block of a class that nobody references (and that has a copy).
bool TierSpace::EvictFirst(PlaceClass size, uint64_t* counter, Victims victims) {
  absl::InlinedVector<BlockEntry*, 8> passed_over;
  bool evicted = false;
  const size_t most = victims == Victims::kAny ? kMostPassedOver : kMostUncopied;
  if (victims == Victims::kCopied && !copied_) return false;
  while (!evicted && passed_over.size() < most) {
    const auto own = classes_.find(size);
    Ranked* first = own == classes_.end() ? nullptr : own->second.order.First();
    if (first == nullptr) break;
    auto* entry = static_cast<BlockEntry*>(first);
    evicted = (victims == Victims::kAny || copied_(entry->key)) && Evict(entry, counter);
    if (evicted) break;
    own->second.order.Remove(entry);
    passed_over.push_back(entry);
  }
  for (BlockEntry* entry : passed_over) classes_[size].order.Insert(entry);
  return evicted;
}

uint64_t TierSpace::EvictLowest() {
  absl::InlinedVector<std::pair<Rank, PlaceClass>, 8> firsts;
  for (auto& [size, own] : classes_) firsts.emplace_back(own.order.First()->rank(), size);
  std::ranges::sort(firsts, GivenUpBefore, &std::pair<Rank, PlaceClass>::first);
  for (const auto& [rank, size] : firsts) {
    if (EvictFirst(size, &counts_.evicted_watermark)) return size.bytes();
  }
  return 0;
}

BlockEntry* TierSpace::BeginLeaving(BlockState* before) {
  absl::InlinedVector<std::pair<Rank, PlaceClass>, 8> firsts;
  for (auto& [size, own] : classes_) firsts.emplace_back(own.order.First()->rank(), size);
  std::ranges::sort(firsts, GivenUpBefore, &std::pair<Rank, PlaceClass>::first);
  for (const auto& [rank, size] : firsts) {
    EvictionOrder& order = classes_[size].order;
    absl::InlinedVector<BlockEntry*, 8> passed_over;
    BlockEntry* chosen = nullptr;
    while (chosen == nullptr && passed_over.size() < kMostPassedOver) {
      auto* const entry = static_cast<BlockEntry*>(order.First());
      if (entry == nullptr) break;
      order.Remove(entry);
      BlockOutcome outcome = BlockOutcome::kRefused;
      if (entry->state.Load() == BlockState{BlockPhase::kResident, 0}) {
        std::tie(*before, outcome) = entry->state.Apply(BlockEvent::kAcquire);
      }
      if (outcome == BlockOutcome::kRefused) {
        passed_over.push_back(entry);
      } else {
        chosen = entry;
      }
    }
    for (BlockEntry* entry : passed_over) order.Insert(entry);
    if (order.empty()) classes_.erase(size);
    if (chosen != nullptr) return chosen;
  }
  return nullptr;
}

void TierSpace::EndLeaving(BlockEntry* entry, bool drop) {
  if (!drop || !Evict(entry, &counts_.evicted_watermark)) classes_[entry->size].order.Insert(entry);
}

// Frees a place of the class, or a stretch of chunks for a new region. False when nothing can be
// evicted now.
bool TierSpace::MakeRoom(PlaceClass size) {
  const bool others = arena_.HoldsOtherClasses(size);
  const auto own = classes_.find(size);
  if (own != classes_.end()) {
    if (others && own->second.bytes_until_look == 0) {
      const Offer first{Worth(own->second.order.First()->rank().score, size.place_bytes),
                        size.bytes()};
      if (ClearWindow(size, first)) return true;
      own->second.bytes_until_look = arena_.UsualRegionChunks(size) * arena_.chunk_bytes();
    }
    own->second.bytes_until_look -= std::min(own->second.bytes_until_look, size.bytes());
    if (EvictFirst(size, &counts_.evicted_for_space)) return true;
  }
  return others && ClearWindow(size, std::nullopt);
}

// Clears a window that is worth less per byte than `own`; then one look is enough, and after a
// vain one the next waits until as much was evicted as a window holds. Without an own victim the
// newcomer depends on it and the whole arena is gone through, for a long region, then for any.
bool TierSpace::ClearWindow(PlaceClass size, const std::optional<Offer>& own) {
  const uint32_t usual = arena_.UsualRegionChunks(size);
  if (own) return ClearCheapest(size, usual, own);
  for (const uint32_t chunks : {usual, arena_.MinChunks(size)}) {
    for (uint32_t looked = 0; looked < arena_.chunks(); looked += kWindowsPerLook) {
      if (ClearCheapest(size, chunks, std::nullopt)) return true;
    }
  }
  return false;
}

bool TierSpace::ClearCheapest(PlaceClass size, uint32_t chunks, const std::optional<Offer>& own) {
  std::vector<Arena::Window> windows;
  std::vector<Offer> offers;
  for (const Arena::Window& window :
       arena_.Windows(size, chunks, kWindowsPerLook, &window_cursor_)) {
    if (const auto offer = Price(window)) {
      windows.push_back(window);
      offers.push_back(*offer);
    }
  }
  const auto chosen = ChooseWindow(own, offers);
  return chosen && Clear(windows[*chosen]);
}

// What a window is worth; nothing when one of its blocks is being read or written.
std::optional<Offer> TierSpace::Price(Arena::Window window) const {
  Offer offer{kNoScore, window.chunks * arena_.chunk_bytes()};
  const bool clearable = arena_.ForEachOwner(window, [&](void* owner) {
    const auto* entry = static_cast<const BlockEntry*>(owner);
    if (entry->state.Load() != BlockState{BlockPhase::kResident, 0}) return false;
    offer.worth = LogSum(offer.worth, Worth(entry->rank().score, entry->size.place_bytes));
    return true;
  });
  if (!clearable) return std::nullopt;
  return offer;
}

bool TierSpace::Clear(Arena::Window window) {
  std::vector<BlockEntry*> entries;
  arena_.ForEachOwner(window, [&](void* owner) {
    entries.push_back(static_cast<BlockEntry*>(owner));
    return true;
  });
  bool any = false;
  for (BlockEntry* entry : entries) any |= Evict(entry, &counts_.evicted_region_move);
  return any;
}

uint64_t TierSpace::bookkeeping_bytes() const {
  uint64_t bytes = arena_.bookkeeping_bytes() + pool_.bytes() + ghosts_.bytes();
  for (const auto& [size, own] : classes_) bytes += own.order.bytes() + sizeof(own);
  return bytes;
}

}  // namespace terrace
