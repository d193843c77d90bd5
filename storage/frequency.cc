#include "storage/frequency.h"

#include <bit>

namespace terrace {

void GhostTable::Reserve(uint64_t blocks) {
  if (blocks <= slots_.size()) return;
  const uint64_t slots = std::bit_ceil(std::max<uint64_t>(blocks, kBucketSlots));
  slots_ = std::vector<Slot>(slots);
}

GhostTable::Slot* GhostTable::Bucket(uint64_t hash) {
  const uint64_t buckets = slots_.size() / kBucketSlots;  // a power of two
  return &slots_[((hash >> 32) & (buckets - 1)) * kBucketSlots];
}

void GhostTable::Remember(uint64_t hash, double score) {
  if (slots_.empty()) return;
  Slot* bucket = Bucket(hash);
  Slot* chosen = bucket;
  for (Slot* slot = bucket; slot != bucket + kBucketSlots; ++slot) {
    if (slot->tag == 0 || slot->tag == Tag(hash)) {
      chosen = slot;
      break;
    }
    if (slot->score < chosen->score) chosen = slot;
  }
  *chosen = {Tag(hash), static_cast<float>(score)};
}

double GhostTable::Recall(uint64_t hash) {
  if (slots_.empty()) return kNoScore;
  Slot* bucket = Bucket(hash);
  for (Slot* slot = bucket; slot != bucket + kBucketSlots; ++slot) {
    if (slot->tag != Tag(hash)) continue;
    const double score = slot->score;
    *slot = {};
    return score;
  }
  return kNoScore;
}

}  // namespace terrace
