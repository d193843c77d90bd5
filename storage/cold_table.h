// What memory knows of each cold block of a folder, in at most 48 bytes: enough to answer whether
// it is there, where, and which block goes first. Keys are not kept: 64 bits of a
// hash stand for one, and the reader of the bytes compares the whole key.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/block_key.h"
#include "storage/catalogue.h"
#include "storage/chunked_array.h"
#include "storage/tier_policy.h"

namespace terrace {

enum class ColdPhase : uint8_t {
  kFree = 0,     // names nothing
  kWriting = 1,  // on its way to the disk; invisible
  kHere = 2,
  kLeaving = 3,  // its deletion is on the way to the catalogue; invisible
};

struct ColdEntry {
  uint32_t fingerprint_low = 0;
  uint32_t fingerprint_high = 0;
  uint32_t number = 0;       // of its place
  uint32_t length : 31 = 0;  // of the value
  uint32_t risen : 1 = 0;    // the score is no longer the one that the catalogue has
  uint32_t expires_at = 0;   // Unix seconds, 0: never
  float score = 0;
  uint16_t depth = 0;  // deeper ones count as this deep
  uint16_t envelope_bytes : 12 = 0;
  uint16_t inlined : 1 = 0;
  ColdPhase phase : 2 = ColdPhase::kFree;
  uint16_t doomed : 1 = 0;  // while writing: deleted meanwhile
  uint32_t position = 0;    // in the order, while here
  uint32_t next = 0;        // of its bucket, or of the free entries

  ColdPlace place() const { return {inlined != 0, number}; }
  Rank rank() const { return {score, depth}; }
};
static_assert(sizeof(ColdEntry) == 36);
static_assert(kMaxEnvelopeBytes < 1 << 12);
static_assert(kMaxBlockBytes < uint32_t{1} << 31);

// Thread-compatible: the caller's lock.
class ColdTable {
 public:
  using Index = uint32_t;
  static constexpr Index kNone = UINT32_MAX;

  // Fingerprints depend on `seed`, which peers do not know. Memory for the entries comes from
  // `stock`, which outlives the table and may be made ready without the caller's lock.
  ColdTable(uint64_t seed, ChunkStock* stock);

  // Makes room for so many entries at once. The table is empty.
  void Reserve(uint64_t entries);

  uint64_t Fingerprint(const BlockKey& key) const;
  bool Names(const BlockKey& key, const ColdEntry& entry) const;
  Index Find(uint64_t fingerprint) const;
  // Whoever looks for many asks the memory for all of them first: a look is three misses in a row.
  void Prefetch(std::span<const uint64_t> fingerprints) const;
  // The same before many are inserted.
  void PrefetchBuckets(std::span<const uint64_t> fingerprints) const;
  // The entry begins in phase writing. Of two with one fingerprint only the later is found.
  Index Insert(uint64_t fingerprint);
  // Writing -> here; enters the order of eviction with the score in it.
  void Publish(Index index);
  // Here -> leaving; leaves the order.
  void BeginLeaving(Index index);
  // Leaving -> here, when it could not leave after all.
  void Stay(Index index) { Publish(index); }
  // Writing or leaving -> gone.
  void Erase(Index index);
  // Of an entry that is here; scores never fall.
  void SetScore(Index index, double score) {
    entries_[index].score = static_cast<float>(score);
    entries_[index].risen = 1;
  }

  ColdEntry& operator[](Index index) { return entries_[index]; }
  const ColdEntry& operator[](Index index) const { return entries_[index]; }

  // The `count` entries that go first, lowest score first and of equal ones the deeper.
  std::vector<Index> First(size_t count);

  // Entries are numbered below this, free ones among them.
  Index end() const { return static_cast<Index>(entries_.size()); }
  uint64_t size() const { return size_; }  // entries not free
  uint64_t here() const { return order_.size(); }
  uint64_t bytes() const { return entries_.bytes() + order_.bytes() + buckets_.bytes(); }

 private:
  // The order is a heap that does not hear of uses: an item carries the score that its entry had
  // when it was put there, and is moved when it comes to the front with an old one.
  struct Item {
    float score;
    Index index;
  };

  bool Before(const Item& a, const Item& b) const {
    return GivenUpBefore({a.score, entries_[a.index].depth}, {b.score, entries_[b.index].depth});
  }
  void Place(size_t position, Item item);
  void SiftUp(size_t position, Item item);
  void SiftDown(size_t position, Item item);
  void Refresh(size_t position);
  size_t BucketOf(uint64_t fingerprint) const;
  void SplitBucket();

  const uint64_t seed_;
  ChunkedArray<ColdEntry> entries_;
  Index free_ = kNone;
  uint64_t size_ = 0;
  ChunkedArray<Item> order_;
  // Linear hashing: one bucket is split at a time, so that growing never stops the readers.
  ChunkedArray<Index> buckets_;
  size_t half_;  // a power of two: buckets below buckets_.size() - half_ are split already
};

}  // namespace terrace
