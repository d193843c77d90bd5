#include "storage/frequency.h"

#include <bit>

namespace terrace {

void GhostTable::Reserve(uint64_t blocks) {
  // Of two buckets the emptier is taken: over 60 % of the slots are filled before both are full.
  const uint64_t needed = std::max<uint64_t>(blocks * 5 / 3, kBucketSlots);
  if (needed <= slots_.size()) return;
  slots_ = std::vector<Slot>(std::bit_ceil(needed), Slot{0, kNothing});
  horizon_ = kNothing;
}

GhostTable::Bucket GhostTable::BucketAt(uint64_t hash) {
  const uint64_t buckets = slots_.size() / kBucketSlots;  // a power of two
  return Bucket(&slots_[((hash >> 32) & (buckets - 1)) * kBucketSlots], kBucketSlots);
}

GhostTable::Slot* GhostTable::Find(uint64_t hash) {
  for (const uint64_t h : {hash, SecondHash(hash)}) {
    for (Slot& slot : BucketAt(h)) {
      if (slot.tag == static_cast<uint32_t>(hash) && slot.score > horizon_) return &slot;
    }
  }
  return nullptr;
}

GhostTable::Slot* GhostTable::Lowest(Bucket bucket) {
  return &*std::ranges::min_element(bucket, {}, &Slot::score);
}

void GhostTable::Remember(uint64_t hash, double score) {
  if (slots_.empty()) return;
  const Slot ghost{static_cast<uint32_t>(hash), static_cast<float>(score)};
  Slot* slot = Find(hash);
  if (slot == nullptr) {
    const Bucket first = BucketAt(hash), second = BucketAt(SecondHash(hash));
    const auto forgotten = [this](const Slot& s) { return s.score <= horizon_; };
    const bool in_first =
        std::ranges::count_if(first, forgotten) >= std::ranges::count_if(second, forgotten);
    slot = Lowest(in_first ? first : second);
    horizon_ = std::max(horizon_, std::min(slot->score, ghost.score));
    if (ghost.score <= horizon_) return;
  }
  *slot = ghost;
}

double GhostTable::Recall(uint64_t hash) {
  if (slots_.empty()) return kNoScore;
  Slot* slot = Find(hash);
  if (slot == nullptr) return kNoScore;
  const double score = slot->score;
  slot->score = kNothing;
  return score;
}

}  // namespace terrace
