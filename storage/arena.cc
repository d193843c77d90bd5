#include "storage/arena.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <tuple>

namespace terrace {
namespace {

// A region is long enough when its tail wastes no more than this share of it.
constexpr double kSmallWaste = 0.02;
// And no longer than this part of the arena, so that classes can share it.
constexpr uint32_t kLargestShare = 16;
// Of many places restored to one region, one in so many files it anew: its place in the order of
// regions is a preference.
constexpr uint32_t kFileEvery = 64;

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

PlaceClass ClassFor(uint64_t bytes, size_t side_bytes, uint32_t tenant) {
  const auto* side = std::ranges::lower_bound(kSideSizes, side_bytes);
  return {static_cast<uint32_t>(RoundUp(bytes, kPlaceAlignment)), *side, tenant};
}

Arena::Arena(uint64_t size, uint64_t chunk_bytes, uint32_t most_region_chunks)
    : chunk_bytes_(chunk_bytes),
      most_region_chunks_(most_region_chunks),
      region_at_(size / chunk_bytes, kNoRegion) {
  free_chunks_ = region_at_.size();
  if (free_chunks_ > 0) free_runs_.emplace(0, chunks());
}

void Arena::Grow() {
  region_at_.push_back(kNoRegion);
  ReturnRun(chunks() - 1, 1);
}

uint64_t Arena::TableBytes(PlaceClass size, uint64_t places) {
  return RoundUp(places * size.side_bytes, kPlaceAlignment);
}

uint64_t Arena::PlacesIn(PlaceClass size, uint64_t chunks) const {
  const uint64_t bytes = chunks * chunk_bytes_;
  uint64_t places = bytes / size.bytes();
  while (places > 0 && TableBytes(size, places) + places * size.place_bytes > bytes) --places;
  return places;
}

uint32_t Arena::MinChunks(PlaceClass size) const {
  const uint64_t bytes = uint64_t{size.place_bytes} + TableBytes(size, 1);
  return static_cast<uint32_t>(RoundUp(bytes, chunk_bytes_) / chunk_bytes_);
}

// The least number of chunks, up to `most`, whose waste is small; else the one that wastes least.
uint32_t Arena::RegionChunks(PlaceClass size, uint32_t most) const {
  uint32_t best = 0;
  double best_waste = 1;
  for (uint32_t chunks = MinChunks(size); chunks <= most; ++chunks) {
    const auto used = static_cast<double>(PlacesIn(size, chunks) * size.bytes());
    const double waste = 1 - used / static_cast<double>(chunks * chunk_bytes_);
    if (waste <= kSmallWaste) return chunks;
    if (waste < best_waste) {
      best_waste = waste;
      best = chunks;
    }
  }
  return best;
}

uint32_t Arena::UsualRegionChunks(PlaceClass size) const {
  const uint32_t most = std::min(chunks() / kLargestShare, most_region_chunks_);
  return RegionChunks(size, std::max(MinChunks(size), most));
}

// Cuts `wanted` chunks from the shortest run that has them; without one, all of the longest run
// if that has at least `least`. Returns the first chunk, or kNoRegion.
uint32_t Arena::TakeRun(uint32_t wanted, uint32_t least, uint32_t* chunks) {
  auto fitting = free_runs_.end(), longest = free_runs_.end();
  for (auto run = free_runs_.begin(); run != free_runs_.end(); ++run) {
    const uint32_t length = run->second;
    if (length >= wanted && (fitting == free_runs_.end() || length < fitting->second)) {
      fitting = run;
    }
    if (longest == free_runs_.end() || length > longest->second) longest = run;
  }
  const auto chosen = fitting != free_runs_.end() ? fitting : longest;
  if (chosen == free_runs_.end() || chosen->second < least) return kNoRegion;
  const auto [first, length] = *chosen;
  *chunks = std::min(wanted, length);
  free_runs_.erase(chosen);
  if (length > *chunks) free_runs_.emplace(first + *chunks, length - *chunks);
  free_chunks_ -= *chunks;
  return first;
}

void Arena::ReturnRun(uint32_t first, uint32_t chunks) {
  free_chunks_ += chunks;
  auto next = free_runs_.lower_bound(first);
  if (next != free_runs_.end() && next->first == first + chunks) {
    chunks += next->second;
    next = free_runs_.erase(next);
  }
  if (next != free_runs_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == first) {
      before->second += chunks;
      return;
    }
  }
  free_runs_.emplace(first, chunks);
}

Arena::RegionId Arena::OpenRegion(PlaceClass size) {
  uint32_t got = 0;
  const uint32_t first = TakeRun(UsualRegionChunks(size), MinChunks(size), &got);
  if (first == kNoRegion) return kNoRegion;
  if (const uint32_t fitting = RegionChunks(size, got); fitting < got) {
    ReturnRun(first + fitting, got - fitting);
    got = fitting;
  }
  if (on_region_ && !on_region_(first * chunk_bytes_, got * chunk_bytes_,
                                TableBytes(size, PlacesIn(size, got)), size)) {
    ReturnRun(first, got);
    return kNoRegion;
  }
  return CutRegion(size, first, got);
}

// `first` and the chunks after it were taken from the free runs.
Arena::RegionId Arena::CutRegion(PlaceClass size, uint32_t first, uint32_t chunks) {
  if (unused_ids_.empty()) {
    unused_ids_.push_back(static_cast<RegionId>(regions_.size()));
    regions_.emplace_back();
  }
  const RegionId id = unused_ids_.back();
  unused_ids_.pop_back();
  Region& region = regions_[id];
  region.size = size;
  region.first_chunk = first;
  region.chunks = chunks;
  region.filed = 0;
  region.places = static_cast<uint32_t>(PlacesIn(size, chunks));
  region.table_bytes = TableBytes(size, region.places);
  region.free_bits.assign((region.places + 63) / 64, ~uint64_t{0});
  if (region.places % 64 != 0) region.free_bits.back() = (uint64_t{1} << region.places % 64) - 1;
  std::fill_n(region_at_.begin() + first, chunks, id);
  Class& state = classes_[size];
  state.open.emplace(0, id);
  state.regions += 1;
  state.places += region.places;
  free_place_bytes_ += region.places * size.bytes();
  return id;
}

void Arena::CloseRegion(RegionId id) {
  const Region region = std::exchange(regions_[id], Region{});
  std::fill_n(region_at_.begin() + region.first_chunk, region.chunks, kNoRegion);
  ReturnRun(region.first_chunk, region.chunks);
  unused_ids_.push_back(id);
  free_place_bytes_ -= region.places * region.size.bytes();
  const auto state = classes_.find(region.size);
  state->second.open.erase(std::pair(uint32_t{0}, id));
  state->second.places -= region.places;
  if (--state->second.regions == 0) classes_.erase(state);
}

Place Arena::PlaceAt(const Region& region, uint32_t index) const {
  const uint64_t begin = region.first_chunk * chunk_bytes_;
  return {begin + region.table_bytes + uint64_t{index} * region.size.place_bytes,
          begin + uint64_t{index} * region.size.side_bytes};
}

std::optional<Place> Arena::Allocate(PlaceClass size, void* owner) {
  auto state = classes_.find(size);
  if (state == classes_.end() || state->second.open.empty()) {
    if (OpenRegion(size) == kNoRegion) return std::nullopt;
    state = classes_.find(size);
  }
  const RegionId id = std::prev(state->second.open.end())->second;
  Region& region = regions_[id];
  uint32_t word = 0;
  while (region.free_bits[word] == 0) ++word;
  const uint32_t index = word * 64 + std::countr_zero(region.free_bits[word]);
  TakePlace(id, index);
  if (owner != nullptr) {
    if (region.owners.empty()) region.owners.assign(region.places, nullptr);
    region.owners[index] = owner;
  }
  return PlaceAt(region, index);
}

void Arena::TakePlace(RegionId id, uint32_t index, bool file) {
  Region& region = regions_[id];
  Class& state = classes_.find(region.size)->second;
  ++region.used;
  if (file || region.used == region.places) {
    state.open.erase(std::pair(region.filed, id));
    region.filed = region.used;
    if (region.used < region.places) state.open.emplace(region.filed, id);
  }
  region.free_bits[index / 64] &= ~(uint64_t{1} << index % 64);
  state.used += 1;
  places_in_use_ += 1;
  bytes_in_use_ += region.size.bytes();
  free_place_bytes_ -= region.size.bytes();
}

// False when they are not all free.
bool Arena::TakeChunks(uint32_t first, uint32_t chunks) {
  auto run = free_runs_.upper_bound(first);
  if (run == free_runs_.begin()) return false;
  const auto [begin, length] = *--run;
  if (first + chunks > begin + length) return false;
  free_runs_.erase(run);
  free_chunks_ -= length;
  if (first > begin) ReturnRun(begin, first - begin);
  const uint32_t end = first + chunks;
  if (end < begin + length) ReturnRun(end, begin + length - end);
  return true;
}

bool Arena::RestoreRegion(PlaceClass size, uint32_t first_chunk, uint32_t chunks,
                          absl::FunctionRef<void*(Place)> owner_of) {
  if (chunks < MinChunks(size) || !TakeChunks(first_chunk, chunks)) return false;
  const RegionId id = CutRegion(size, first_chunk, chunks);
  const uint32_t places = regions_[id].places;
  regions_[id].owners.assign(places, nullptr);
  for (uint32_t index = 0; index < places; ++index) {
    void* const owner = owner_of(PlaceAt(regions_[id], index));
    if (owner == nullptr) continue;
    TakePlace(id, index);
    regions_[id].owners[index] = owner;
  }
  if (regions_[id].used == 0) CloseRegion(id);
  return true;
}

bool Arena::Restore(PlaceClass size, uint64_t offset) {
  const uint64_t chunk = offset / chunk_bytes_;
  if (chunk >= chunks()) return false;
  if (region_at_[chunk] == kNoRegion) {
    const uint64_t places = PlacesIn(size, 1);
    const uint64_t in_chunk = offset % chunk_bytes_, table = TableBytes(size, places);
    if (in_chunk < table || (in_chunk - table) / size.place_bytes >= places) return false;
    TakeChunks(static_cast<uint32_t>(chunk), 1);
    CutRegion(size, static_cast<uint32_t>(chunk), 1);
  }
  const RegionId id = region_at_[chunk];
  const Region& region = regions_[id];
  if (region.size != size || region.chunks != 1) return false;
  const uint64_t begin = chunk * chunk_bytes_ + region.table_bytes;
  if (offset < begin || (offset - begin) % size.place_bytes != 0) return false;
  const uint64_t index = (offset - begin) / size.place_bytes;
  if (index >= region.places) return false;
  if ((region.free_bits[index / 64] >> index % 64 & 1) == 0) return false;
  const bool file = region.used % kFileEvery == 0;
  TakePlace(id, static_cast<uint32_t>(index), file);
  return true;
}

void Arena::PrefetchForRestore(uint64_t offset) const {
  const uint64_t chunk = offset / chunk_bytes_;
  if (chunk >= chunks() || region_at_[chunk] == kNoRegion) return;
  const Region& region = regions_[region_at_[chunk]];
  const uint64_t index = offset % chunk_bytes_ / region.size.place_bytes;
  if (index < region.places) __builtin_prefetch(&region.free_bits[index / 64]);
}

void Arena::Free(uint64_t offset) {
  const RegionId id = region_at_[offset / chunk_bytes_];
  Region& region = regions_[id];
  const uint64_t places_begin = region.first_chunk * chunk_bytes_ + region.table_bytes;
  const auto index = static_cast<uint32_t>((offset - places_begin) / region.size.place_bytes);
  region.free_bits[index / 64] |= uint64_t{1} << index % 64;
  if (!region.owners.empty()) region.owners[index] = nullptr;
  Class& state = classes_.find(region.size)->second;
  state.used -= 1;
  places_in_use_ -= 1;
  bytes_in_use_ -= region.size.bytes();
  free_place_bytes_ += region.size.bytes();
  state.open.erase(std::pair(region.filed, id));
  region.filed = --region.used;
  state.open.emplace(region.filed, id);
  if (region.used == 0) CloseRegion(id);
}

std::vector<Arena::Window> Arena::Windows(PlaceClass size, uint32_t wanted, size_t limit,
                                          uint32_t* cursor) const {
  std::vector<Window> windows;
  // From `chunk` on, the first chunk that belongs to something else.
  const auto skip = [this](uint32_t chunk) {
    const RegionId id = region_at_[chunk];
    return id == kNoRegion ? chunk + 1 : regions_[id].first_chunk + regions_[id].chunks;
  };
  const auto own = [&](uint32_t chunk) {
    return region_at_[chunk] != kNoRegion && regions_[region_at_[chunk]].size == size;
  };
  for (size_t looked = 0; looked < limit; ++looked) {
    if (*cursor >= chunks()) *cursor = 0;
    uint32_t begin = *cursor;
    if (const RegionId id = region_at_[begin]; id != kNoRegion) begin = regions_[id].first_chunk;
    uint32_t end = begin;
    while (end < chunks() && end - begin < wanted && !own(end)) end = skip(end);
    if (end - begin >= wanted) windows.push_back({begin, end - begin});
    *cursor = skip(*cursor);
  }
  return windows;
}

bool Arena::ForEachOwner(Window window, absl::FunctionRef<bool(void*)> visit) const {
  for (uint32_t chunk = window.first; chunk < window.first + window.chunks;) {
    const RegionId id = region_at_[chunk];
    if (id == kNoRegion) {
      ++chunk;
      continue;
    }
    for (void* owner : regions_[id].owners) {
      if (owner != nullptr && !visit(owner)) return false;
    }
    chunk = regions_[id].first_chunk + regions_[id].chunks;
  }
  return true;
}

bool Arena::HoldsOtherClasses(PlaceClass size) const {
  return classes_.size() > (classes_.contains(size) ? 1 : 0);
}

uint64_t Arena::bookkeeping_bytes() const {
  uint64_t bytes = region_at_.capacity() * sizeof(RegionId) + regions_.capacity() * sizeof(Region);
  for (const Region& region : regions_) {
    bytes += region.free_bits.capacity() * sizeof(uint64_t);
    bytes += region.owners.capacity() * sizeof(void*);
  }
  return bytes;
}

ArenaStats Arena::Stats() const {
  ArenaStats stats;
  for (const auto& [size, state] : classes_) {
    stats.classes.push_back({size, state.regions, state.places, state.used});
  }
  std::ranges::sort(stats.classes, {}, [](const ArenaStats::Class& c) {
    return std::tuple(c.size.place_bytes, c.size.side_bytes, c.size.tenant);
  });
  stats.chunks = chunks();
  stats.free_chunks = free_chunks_;
  for (const auto& [first, length] : free_runs_) {
    stats.longest_free_run = std::max<uint64_t>(stats.longest_free_run, length);
  }
  if (free_chunks_ > 0) {
    stats.fragmentation =
        1 - static_cast<double>(stats.longest_free_run) / static_cast<double>(free_chunks_);
  }
  return stats;
}

}  // namespace terrace
