#include "storage/extents.h"

#include <algorithm>
#include <utility>

#include "proto/block_key.h"

namespace terrace {
namespace {

// Starting points that one search for an extent to re-cut looks at.
constexpr size_t kRecutCandidates = 8;
// Set aside at most this part of the folder.
constexpr uint64_t kSetAsideShare = 100;

uint32_t RandomCut() {
  uint32_t cut;
  const std::vector<uint8_t> drawn = RandomBytes(sizeof(cut));
  std::memcpy(&cut, drawn.data(), sizeof(cut));
  return cut;
}

uint64_t BytesOf(Slot slot) { return uint64_t{slot.pages} * kPageBytes; }

}  // namespace

Extents::Extents(FileIo* io, uint64_t folder_id, uint64_t extent_bytes)
    : io_(io),
      folder_id_(folder_id),
      pages_per_extent_(static_cast<uint32_t>(extent_bytes / kPageBytes)),
      arena_(0, extent_bytes - kPageBytes, /*most_region_chunks=*/1) {}

Extents::~Extents() {
  for (const Extent& extent : extents_) io_->Close(extent.file);
}

void Extents::Add(int file, const std::optional<ExtentHeader>& header) {
  const uint32_t number = count();
  Extent& extent = extents_.emplace_back();
  extent.file = file;
  if (header && header->folder_id == folder_id_ && header->extent == number) {
    extent.header = header;
  }
  arena_.Grow();
}

uint64_t Extents::ArenaOffset(uint32_t page) const {
  return ExtentOf(page) * arena_.chunk_bytes() +
         (uint64_t{page % pages_per_extent_} - 1) * kPageBytes;
}

uint32_t Extents::PageAt(uint64_t offset) const {
  const auto extent = static_cast<uint32_t>(offset / arena_.chunk_bytes());
  const uint64_t page = 1 + offset % arena_.chunk_bytes() / kPageBytes;
  return FirstPage(extent) + static_cast<uint32_t>(page);
}

std::optional<Slot> Extents::Allocate(uint32_t length) {
  if (!CanEverFit(length)) return std::nullopt;
  const uint32_t pages = SlotPages(length);
  auto slot = Take(pages);
  for (uint32_t i = 0; !slot && draining_ > 0 && i < count(); ++i) {
    if (!extents_[i].draining || !extents_[i].header || extents_[i].header->slot_pages != pages) {
      continue;
    }
    EndDrain(&extents_[i]);
    slot = Take(pages);
  }
  return slot;
}

std::optional<Slot> Extents::Take(uint32_t pages) {
  const auto place = arena_.Allocate(ClassOf(pages), nullptr);
  if (!place) return std::nullopt;
  const Slot slot{PageAt(place->offset), pages};
  extents_[ExtentOf(slot.page)].used += 1;
  return slot;
}

bool Extents::CanEverFit(uint32_t length) const {
  return uint64_t{SlotPages(length)} * kPageBytes <= arena_.chunk_bytes();
}

bool Extents::Restore(Slot slot) {
  if (slot.pages < 2 || slot.pages >= pages_per_extent_ || ExtentOf(slot.page) >= count() ||
      slot.page % pages_per_extent_ == 0 ||
      !arena_.Restore(ClassOf(slot.pages), ArenaOffset(slot.page))) {
    return false;
  }
  extents_[ExtentOf(slot.page)].used += 1;
  return true;
}

void Extents::PrefetchForRestore(uint32_t page) const {
  if (ExtentOf(page) < count() && page % pages_per_extent_ != 0) {
    arena_.PrefetchForRestore(ArenaOffset(page));
  }
}

void Extents::Free(Slot slot) {
  Extent& extent = extents_[ExtentOf(slot.page)];
  if (!extent.draining) {
    extent.used -= 1;
    arena_.Free(ArenaOffset(slot.page));
    return;
  }
  extent.held_back.push_back(slot);
  if (extent.held_back.size() == extent.used) EndDrain(&extent);
}

void Extents::EndDrain(Extent* extent) {
  extent->draining = false;
  draining_ -= 1;
  for (const Slot held : std::exchange(extent->held_back, {})) Free(held);
}

void Extents::Quarantine(Slot slot) {
  quarantined_.push_back(slot);
  quarantined_bytes_ += BytesOf(slot);
}

std::vector<Slot> Extents::TakeQuarantined() {
  quarantined_bytes_ = 0;
  return std::exchange(quarantined_, {});
}

void Extents::SetAside(Slot slot) {
  if (extents_[ExtentOf(slot.page)].draining) return Quarantine(slot);
  set_aside_.push_back(slot);
  set_aside_bytes_ += BytesOf(slot);
  while (set_aside_bytes_ > bytes() / kSetAsideShare && set_aside_.size() > 1) {
    const Slot oldest = set_aside_.front();
    set_aside_.erase(set_aside_.begin());
    set_aside_bytes_ -= BytesOf(oldest);
    Quarantine(oldest);
  }
}

bool Extents::NeedsHeader(Slot slot) const {
  const auto& header = extents_[ExtentOf(slot.page)].header;
  return !header || header->slot_pages != slot.pages;
}

ExtentHeader Extents::NewHeader(Slot slot) {
  const uint32_t number = ExtentOf(slot.page);
  extents_[number].header = ExtentHeader{folder_id_, number, slot.pages, RandomCut()};
  return *extents_[number].header;
}

SlotRecord Extents::RecordFor(Slot slot) const {
  SlotRecord record;
  record.folder_id = folder_id_;
  record.page = slot.page;
  record.cut = extents_[ExtentOf(slot.page)].header->cut;
  return record;
}

std::vector<uint32_t> Extents::TakeDirty() {
  std::vector<uint32_t> dirty;
  for (uint32_t i = 0; i < count(); ++i) {
    if (std::exchange(extents_[i].dirty, false)) dirty.push_back(i);
  }
  return dirty;
}

std::vector<uint32_t> Extents::CandidatesToRecut(uint32_t length) {
  std::vector<uint32_t> candidates;
  if (count() == 0) return candidates;
  const PlaceClass wanted = ClassOf(SlotPages(length));
  for (uint32_t i = 0; draining_ > 0 && i < count(); ++i) {
    if (extents_[i].draining) candidates.push_back(i);
  }
  const size_t looks = std::min<size_t>(kRecutCandidates, count());
  for (const auto& window : arena_.Windows(wanted, 1, looks, &recut_cursor_)) {
    if (!extents_[window.first].draining) candidates.push_back(window.first);
  }
  return candidates;
}

void Extents::Drain(uint32_t extent) {
  Extent& drained = extents_[extent];
  if (drained.used == 0 || drained.draining) return;
  drained.draining = true;
  draining_ += 1;
  // Slots that are free already are held back like those to come.
  const uint32_t pages = drained.header ? drained.header->slot_pages : 0;
  for (uint32_t page = 1; pages > 0 && page + pages <= pages_per_extent_; page += pages) {
    const Slot slot{FirstPage(extent) + page, pages};
    if (Restore(slot)) drained.held_back.push_back(slot);
  }
  // A slot set aside would keep the extent as it is for ever.
  std::erase_if(set_aside_, [&](Slot slot) {
    if (ExtentOf(slot.page) != extent) return false;
    set_aside_bytes_ -= BytesOf(slot);
    Quarantine(slot);
    return true;
  });
}

ExtentStats Extents::Stats() const {
  ArenaStats arena = arena_.Stats();
  ExtentStats stats;
  stats.sizes = std::move(arena.classes);
  stats.extents = arena.chunks;
  stats.free_extents = arena.free_chunks;
  stats.used_bytes = arena_.bytes_in_use();
  stats.quarantined_bytes = quarantined_bytes_;
  stats.set_aside_bytes = set_aside_bytes_;
  return stats;
}

}  // namespace terrace
