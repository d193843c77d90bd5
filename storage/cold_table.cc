#include "storage/cold_table.h"

#include <algorithm>
#include <bit>
#include <queue>

namespace terrace {
namespace {

constexpr size_t kFirstBuckets = 1024;
// Entries per bucket, in halves.
constexpr size_t kLoadHalves = 3;
constexpr size_t kHeapFan = 4;

// Folds the product of 128 bits; the same in every process, since scores are kept by it.
uint64_t Mix(uint64_t hash, uint64_t word) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  const auto product = static_cast<unsigned __int128>(hash ^ word) * kOdd;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t FingerprintOf(const ColdEntry& entry) {
  return uint64_t{entry.fingerprint_high} << 32 | entry.fingerprint_low;
}

}  // namespace

ColdTable::ColdTable(uint64_t seed, ChunkStock* stock)
    : seed_(seed), entries_(stock), order_(stock), buckets_(stock), half_(kFirstBuckets) {
  for (size_t i = 0; i < kFirstBuckets; ++i) buckets_.PushBack(kNone);
}

void ColdTable::Reserve(uint64_t entries) {
  while (buckets_.size() * kLoadHalves < entries * 2) buckets_.PushBack(kNone);
  half_ = std::bit_floor(buckets_.size());
}

uint64_t ColdTable::Fingerprint(const BlockKey& key) const {
  std::array<uint64_t, 4> words;
  std::memcpy(words.data(), key.digest.bytes.data(), sizeof(words));
  uint64_t hash = Mix(Mix(seed_, key.ns.value), key.shard);
  for (const uint64_t word : words) hash = Mix(hash, word);
  return hash;
}

bool ColdTable::Names(const BlockKey& key, const ColdEntry& entry) const {
  return Fingerprint(key) == FingerprintOf(entry);
}

size_t ColdTable::BucketOf(uint64_t fingerprint) const {
  const size_t wide = fingerprint & (2 * half_ - 1);
  return wide < buckets_.size() ? wide : fingerprint & (half_ - 1);
}

ColdTable::Index ColdTable::Find(uint64_t fingerprint) const {
  Index index = buckets_[BucketOf(fingerprint)];
  while (index != kNone && FingerprintOf(entries_[index]) != fingerprint) {
    index = entries_[index].next;
  }
  return index;
}

void ColdTable::PrefetchBuckets(std::span<const uint64_t> fingerprints) const {
  for (const uint64_t one : fingerprints) __builtin_prefetch(&buckets_[BucketOf(one)]);
}

void ColdTable::Prefetch(std::span<const uint64_t> fingerprints) const {
  PrefetchBuckets(fingerprints);
  for (const uint64_t one : fingerprints) {
    const Index first = buckets_[BucketOf(one)];
    if (first != kNone) __builtin_prefetch(&entries_[first]);
  }
  for (const uint64_t one : fingerprints) {
    const Index first = buckets_[BucketOf(one)];
    if (first == kNone || entries_[first].next == kNone) continue;
    __builtin_prefetch(&entries_[entries_[first].next]);
  }
}

void ColdTable::SplitBucket() {
  const size_t from = buckets_.size() - half_;
  buckets_.PushBack(kNone);
  Index index = std::exchange(buckets_[from], kNone);
  while (index != kNone) {
    const Index next = entries_[index].next;
    const bool moves = (FingerprintOf(entries_[index]) & half_) != 0;
    Index& head = buckets_[moves ? from + half_ : from];
    entries_[index].next = std::exchange(head, index);
    index = next;
  }
  if (buckets_.size() == 2 * half_) half_ *= 2;
}

ColdTable::Index ColdTable::Insert(uint64_t fingerprint) {
  if (++size_ * 2 > buckets_.size() * kLoadHalves) SplitBucket();
  Index index = free_;
  if (index == kNone) {
    index = end();
    entries_.PushBack(ColdEntry());
  } else {
    free_ = entries_[index].next;
  }
  ColdEntry& entry = entries_[index];
  entry = ColdEntry();
  entry.fingerprint_low = static_cast<uint32_t>(fingerprint);
  entry.fingerprint_high = static_cast<uint32_t>(fingerprint >> 32);
  entry.phase = ColdPhase::kWriting;
  entry.next = std::exchange(buckets_[BucketOf(fingerprint)], index);
  return index;
}

void ColdTable::Publish(Index index) {
  entries_[index].phase = ColdPhase::kHere;
  order_.PushBack({});
  SiftUp(order_.size() - 1, {entries_[index].score, index});
}

void ColdTable::BeginLeaving(Index index) {
  entries_[index].phase = ColdPhase::kLeaving;
  const size_t position = entries_[index].position;
  const Item last = order_[order_.size() - 1];
  order_.PopBack();
  if (last.index == index) return;
  if (position > 0 && Before(last, order_[(position - 1) / kHeapFan])) {
    SiftUp(position, last);
  } else {
    SiftDown(position, last);
  }
}

void ColdTable::Erase(Index index) {
  Index* link = &buckets_[BucketOf(FingerprintOf(entries_[index]))];
  while (*link != index) link = &entries_[*link].next;
  *link = entries_[index].next;
  entries_[index] = ColdEntry();
  entries_[index].next = std::exchange(free_, index);
  --size_;
}

void ColdTable::Place(size_t position, Item item) {
  order_[position] = item;
  entries_[item.index].position = static_cast<uint32_t>(position);
}

void ColdTable::SiftUp(size_t position, Item item) {
  while (position > 0) {
    const size_t parent = (position - 1) / kHeapFan;
    if (!Before(item, order_[parent])) break;
    Place(position, order_[parent]);
    position = parent;
  }
  Place(position, item);
}

void ColdTable::SiftDown(size_t position, Item item) {
  while (true) {
    const size_t child = position * kHeapFan + 1;
    if (child >= order_.size()) break;
    size_t least = child;
    for (size_t i = child + 1; i < std::min(child + kHeapFan, order_.size()); ++i) {
      if (Before(order_[i], order_[least])) least = i;
    }
    if (!Before(order_[least], item)) break;
    Place(position, order_[least]);
    position = least;
  }
  Place(position, item);
}

// Until the item at `position` carries its entry's score.
void ColdTable::Refresh(size_t position) {
  while (order_[position].score != entries_[order_[position].index].score) {
    const Index index = order_[position].index;
    SiftDown(position, {entries_[index].score, index});
  }
}

std::vector<ColdTable::Index> ColdTable::First(size_t count) {
  // The front of the heap, opened one item at a time: an item's children come after it.
  const auto after = [this](size_t a, size_t b) { return Before(order_[b], order_[a]); };
  std::priority_queue<size_t, std::vector<size_t>, decltype(after)> open(after);
  const auto add = [&](size_t position) {
    if (position >= order_.size()) return;
    Refresh(position);
    open.push(position);
  };
  std::vector<Index> first;
  add(0);
  while (!open.empty() && first.size() < count) {
    const size_t position = open.top();
    open.pop();
    first.push_back(order_[position].index);
    for (size_t i = 1; i <= kHeapFan; ++i) add(position * kHeapFan + i);
  }
  return first;
}

}  // namespace terrace
