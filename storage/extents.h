// The value files of one folder: recycled extents, cut into slots of one size each by the arena
// that cuts memory too. Only bookkeeping and names here; who reads and writes slots is
// storage/cold_folder.h.
//
// A slot that is given up is quarantined until the catalogue that forgot it is on disk: before
// that a power cut would bring the old entry back, pointing at new bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/arena.h"
#include "storage/disk_format.h"
#include "storage/file_io.h"

namespace terrace {

// Pages are numbered through the folder: extent * pages per extent + page in the extent.
struct Slot {
  uint32_t page = 0;
  uint32_t pages = 0;
  auto operator<=>(const Slot&) const = default;
};

struct ExtentStats {
  std::vector<ArenaStats::Class> sizes;  // place_bytes: of a slot, header page included
  uint64_t extents = 0, free_extents = 0;
  uint64_t used_bytes = 0;         // slots in use or quarantined
  uint64_t quarantined_bytes = 0;  // of these, waiting for the catalogue's sync
  uint64_t set_aside_bytes = 0;    // of these, not to be trusted
};

// Thread-compatible: the caller's lock.
class Extents {
 public:
  // `extent_bytes`: a multiple of 4 KiB, the same for the life of the folder.
  Extents(FileIo* io, uint64_t folder_id, uint64_t extent_bytes);
  ~Extents();  // closes the files
  Extents(const Extents&) = delete;
  Extents& operator=(const Extents&) = delete;

  // Adds the next extent, whose file is open as `file` and is closed here. `header` is what its
  // page 0 says, nothing where that is not valid.
  void Add(int file, const std::optional<ExtentHeader>& header);
  uint32_t count() const { return static_cast<uint32_t>(extents_.size()); }

  // A free slot for a value of `length` bytes; nothing when there is none. An extent of that size
  // which is being drained serves it after all.
  std::optional<Slot> Allocate(uint32_t length);
  bool CanEverFit(uint32_t length) const;
  // Takes the slot that the catalogue knows; false when it cannot be one.
  bool Restore(Slot slot);
  // Whoever restores many asks the memory for all of them first.
  void PrefetchForRestore(uint32_t page) const;
  // Never written, or written by a request that failed: free at once.
  void Free(Slot slot);
  // Was in the catalogue: free after the sync that follows (TakeQuarantined, then Free).
  void Quarantine(Slot slot);
  std::vector<Slot> TakeQuarantined();
  // Failed to read or write: out of use. Of such slots the oldest are tried again (quarantined)
  // when they are more than a hundredth of the folder.
  void SetAside(Slot slot);

  // Page 0 is written before the first slot of a new size counts: true when the slot's extent
  // has a header that does not fit it yet, which the caller writes now.
  bool NeedsHeader(Slot slot) const;
  // Draws a new cut for it.
  ExtentHeader NewHeader(Slot slot);
  // Writing it failed: the next slot tries again.
  void ForgetHeader(uint32_t extent) { extents_[extent].header.reset(); }
  SlotRecord RecordFor(Slot slot) const;  // page, cut and folder
  const std::optional<ExtentHeader>& header(uint32_t extent) const {
    return extents_[extent].header;
  }

  int FileOf(uint32_t page) const { return extents_[ExtentOf(page)].file; }
  uint64_t OffsetOf(uint32_t page) const { return uint64_t{page % pages_per_extent_} * kPageBytes; }
  uint32_t ExtentOf(uint32_t page) const { return page / pages_per_extent_; }
  uint32_t FirstPage(uint32_t extent) const { return extent * pages_per_extent_; }
  uint32_t pages_per_extent() const { return pages_per_extent_; }
  uint64_t extent_bytes() const { return uint64_t{pages_per_extent_} * kPageBytes; }

  // Extents in which something was written since the last call.
  std::vector<uint32_t> TakeDirty();
  void MarkDirty(uint32_t page) { extents_[ExtentOf(page)].dirty = true; }

  // Extents cut for other sizes than that of `length`: emptied, each makes room for it. Those being
  // drained come first, then a few from where it last stopped.
  std::vector<uint32_t> CandidatesToRecut(uint32_t length);
  // Nothing is allocated from this extent until all of its slots are free.
  void Drain(uint32_t extent);
  bool draining(uint32_t extent) const { return extents_[extent].draining; }

  uint64_t bytes() const { return arena_.size() + count() * kPageBytes; }
  uint64_t used_bytes() const { return arena_.bytes_in_use(); }
  uint64_t bookkeeping_bytes() const {
    return arena_.bookkeeping_bytes() + extents_.capacity() * sizeof(Extent);
  }
  ExtentStats Stats() const;

 private:
  struct Extent {
    int file = -1;
    std::optional<ExtentHeader> header;
    uint32_t used = 0;  // slots taken from the arena
    bool dirty = false;
    bool draining = false;
    std::vector<Slot> held_back;  // free, while draining
  };

  static PlaceClass ClassOf(uint32_t pages) { return {pages * kPageBytes, 0}; }
  uint64_t ArenaOffset(uint32_t page) const;
  uint32_t PageAt(uint64_t arena_offset) const;
  std::optional<Slot> Take(uint32_t pages);
  // Gives back what is free there.
  void EndDrain(Extent* extent);

  FileIo* const io_;
  const uint64_t folder_id_;
  const uint32_t pages_per_extent_;
  Arena arena_;  // a chunk is an extent without its page 0
  std::vector<Extent> extents_;
  std::vector<Slot> quarantined_;
  uint64_t quarantined_bytes_ = 0;
  std::vector<Slot> set_aside_;  // oldest first
  uint64_t set_aside_bytes_ = 0;
  uint32_t recut_cursor_ = 0;
  uint32_t draining_ = 0;  // extents
};

}  // namespace terrace
