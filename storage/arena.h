// Exact-size places over a range [0, size) that it does not own. It deals in offsets only, so
// that the range may be memory, a device pool or an extent of a disk.
//
// The range is a row of chunks. A *region* is a run of chunks cut for one size class: in front a
// table of side records (one per place, for envelopes), then the places, so that places stay
// aligned to 4 KiB and a 64 KiB block costs 64 KiB and its envelope, not a page more:
//
//   | side 0 | side 1 | ... | pad to 4 KiB | place 0 | place 1 | ... | tail |
//
// A region without a place in use turns into free chunks at once, so memory moves between
// classes by itself; whoever wants it sooner clears a *window*, a run of whole regions of other
// classes. Places of different tenants never share a region.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace terrace {

struct PlaceClass {
  uint32_t place_bytes = 0;  // a multiple of 4 KiB
  uint32_t side_bytes = 0;   // one of kSideSizes
  uint32_t tenant = 0;       // a number that means nothing to the arena

  uint64_t bytes() const { return uint64_t{place_bytes} + side_bytes; }
  bool operator==(const PlaceClass&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const PlaceClass& c) {
    return H::combine(std::move(state), c.place_bytes, c.side_bytes, c.tenant);
  }
};

constexpr uint32_t kPlaceAlignment = 4096;
// Sizes of side records; each keeps 64-byte alignment. The last holds the largest envelope; on
// disk there is none, since the envelope stands in front of the value.
constexpr uint32_t kSideSizes[] = {0, 256, 512, 1024, 2560};

// The class of a block: `bytes` rounded up to 4 KiB and the smallest side record that fits.
// 0 < bytes < 4 GiB - 4 KiB, side_bytes <= 2560.
PlaceClass ClassFor(uint64_t bytes, size_t side_bytes, uint32_t tenant = 0);

struct Place {
  uint64_t offset = 0;
  uint64_t side_offset = 0;
};

struct ArenaStats {
  struct Class {
    PlaceClass size;
    uint64_t regions = 0, places = 0, used = 0;
  };
  std::vector<Class> classes;
  uint64_t chunks = 0, free_chunks = 0, longest_free_run = 0;
  double fragmentation = 0;  // share of free chunks outside the longest run
};

// Thread-compatible: the caller's lock.
class Arena {
 public:
  // `chunk_bytes` is a multiple of 4 KiB. A tail of `size` that is no whole chunk stays unused.
  // Regions have at most `most_region_chunks`, unless a single place needs more: 1 where a chunk
  // is a file of its own.
  Arena(uint64_t size, uint64_t chunk_bytes, uint32_t most_region_chunks = UINT32_MAX);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Told of each new region before a place in it is handed out: where it begins, its bytes, those
  // of them that are side records, and its class. False: the region cannot be used, and whoever
  // wanted a place gets none.
  using OnRegion =
      std::function<bool(uint64_t offset, uint64_t bytes, uint64_t side_bytes, PlaceClass size)>;
  void SetOnRegion(OnRegion on_region) { on_region_ = std::move(on_region); }

  // Whether an empty arena has room for one place of the class.
  bool CanEverFit(PlaceClass size) const { return MinChunks(size) <= region_at_.size(); }

  // Adds one free chunk at the end.
  void Grow();

  // A place in the fullest region that has one (so that others run empty), else in a new region;
  // nothing when neither is to be had. `owner` means nothing to the arena; null is never visited.
  std::optional<Place> Allocate(PlaceClass size, void* owner);
  // Takes the place that an earlier arena handed out at `offset`, without owner; only where
  // regions are single chunks. False when it cannot be free: outside, in use, of another class.
  bool Restore(PlaceClass size, uint64_t offset);
  // The same for regions of any length, at once: cuts the region that an earlier arena of the same
  // sizes had, and takes those of its places for which `owner_of` returns an owner. False, and
  // nothing happens, when its chunks are not free.
  bool RestoreRegion(PlaceClass size, uint32_t first_chunk, uint32_t chunks,
                     absl::FunctionRef<void*(Place)> owner_of);
  // Whoever restores many asks the memory for all of them first.
  void PrefetchForRestore(uint64_t offset) const;
  // `offset` is that of a place in use.
  void Free(uint64_t offset);

  // Chunks of the least region with a place of the class, and of the region that wastes little.
  uint32_t MinChunks(PlaceClass size) const;
  uint32_t UsualRegionChunks(PlaceClass size) const;

  // A run of chunks made of whole regions and free chunks.
  struct Window {
    uint32_t first = 0, chunks = 0;
  };
  // Windows of at least `wanted` chunks that hold no region of `size`: cleared, each makes room for
  // a region of that class. At most `limit` starting points are looked at, from chunk `*cursor`
  // on, which is moved past them and wraps at the end: repeated calls see all of the arena.
  std::vector<Window> Windows(PlaceClass size, uint32_t wanted, size_t limit,
                              uint32_t* cursor) const;
  // Calls `visit` with the owner of each place in use until it returns false; returns whether it
  // never did. `visit` must not change the arena.
  bool ForEachOwner(Window window, absl::FunctionRef<bool(void*)> visit) const;
  // Whether a region of another class than `size` exists.
  bool HoldsOtherClasses(PlaceClass size) const;

  uint64_t size() const { return region_at_.size() * chunk_bytes_; }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  uint32_t chunks() const { return static_cast<uint32_t>(region_at_.size()); }
  uint64_t places_in_use() const { return places_in_use_; }
  uint64_t bytes_in_use() const { return bytes_in_use_; }  // of places and side records
  // What could be handed out at once: free chunks and free places.
  uint64_t allocatable_bytes() const { return free_chunks_ * chunk_bytes_ + free_place_bytes_; }
  uint64_t bookkeeping_bytes() const;
  ArenaStats Stats() const;

 private:
  using RegionId = uint32_t;
  static constexpr RegionId kNoRegion = UINT32_MAX;

  struct Region {
    PlaceClass size;
    uint32_t first_chunk = 0, chunks = 0;
    uint32_t places = 0, used = 0;
    uint32_t filed = 0;  // the use that it stands under among the open ones
    uint64_t table_bytes = 0;
    std::vector<uint64_t> free_bits;
    std::vector<void*> owners;  // empty until a place has one
  };
  struct Class {
    absl::btree_set<std::pair<uint32_t, RegionId>> open;  // (filed, region) with a free place
    uint32_t regions = 0;
    uint64_t places = 0, used = 0;
  };

  static uint64_t TableBytes(PlaceClass size, uint64_t places);
  uint64_t PlacesIn(PlaceClass size, uint64_t chunks) const;
  uint32_t RegionChunks(PlaceClass size, uint32_t most) const;
  RegionId OpenRegion(PlaceClass size);
  RegionId CutRegion(PlaceClass size, uint32_t first, uint32_t chunks);
  void TakePlace(RegionId id, uint32_t index, bool file = true);
  void CloseRegion(RegionId id);
  uint32_t TakeRun(uint32_t wanted, uint32_t least, uint32_t* chunks);
  void ReturnRun(uint32_t first, uint32_t chunks);
  bool TakeChunks(uint32_t first, uint32_t chunks);
  Place PlaceAt(const Region& region, uint32_t index) const;

  const uint64_t chunk_bytes_;
  const uint32_t most_region_chunks_;
  OnRegion on_region_;
  std::vector<RegionId> region_at_;  // by chunk
  std::vector<Region> regions_;
  std::vector<RegionId> unused_ids_;
  absl::flat_hash_map<PlaceClass, Class> classes_;
  absl::btree_map<uint32_t, uint32_t> free_runs_;  // first chunk -> chunks; never adjacent
  uint64_t free_chunks_ = 0;
  uint64_t free_place_bytes_ = 0;
  uint64_t places_in_use_ = 0;
  uint64_t bytes_in_use_ = 0;
};

}  // namespace terrace
