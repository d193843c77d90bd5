// What a store finds in memory that an earlier process has left. That one may have been killed at
// any instant: what counts is what a block's envelope says, which is written when the block's bytes
// are whole and verified, and made invalid before they are touched again.
#include <chrono>

#include "cache_node/store_impl.h"
#include "proto/log.h"
#include "proto/units.h"
#include "storage/disk_format.h"

namespace terrace::internal {

void StoreImpl::Restore() {
  const auto began = std::chrono::steady_clock::now();
  uint64_t regions = 0, newest = 0, value_bytes = 0, blocks = 0;
  {
    MutexLock lock(&space_mutex_);
    for (const HostRegion& region : memory_.Regions()) {
      regions += space_.Restore(region.size, region.first_chunk, region.chunks,
                                [&](BlockEntry* entry) { return DescribeKept(entry, &newest); });
    }
    clock_.SetCapacity(space_.capacity_in_blocks());
    blocks = space_.counts().blocks;
    value_bytes = space_.counts().value_bytes;
  }
  // Even where the system's clock was set back meanwhile.
  next_generation_ = std::max(next_generation_.load(), newest + 1);
  Add(&counters_.kept, blocks);
  const auto took = std::chrono::steady_clock::now() - began;
  Log(LogLevel::kInfo, "store",
      "host memory was kept: {} blocks ({}) in {} regions, found in {} ms", blocks,
      FormatBytes(value_bytes), regions,
      std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
}

// Of a place: whether a whole block lies there, and which. Scores have not been kept; all count as
// used once, now.
bool StoreImpl::DescribeKept(BlockEntry* entry, uint64_t* newest) {
  const auto envelope =
      EnvelopeView::Parse(memory_bytes_.subspan(entry->place.side_offset, entry->size.side_bytes));
  entry->envelope_bytes = 0;
  if (!envelope.ok()) {
    entry->envelope_bytes = kEnvelopeFixedBytes;  // to be made invalid for good
    return false;
  }
  entry->envelope_bytes = static_cast<uint32_t>(envelope->bytes().size());
  *newest = std::max(*newest, envelope->generation());
  const BlockKey key = envelope->key();
  const uint32_t tenant = tenant_of_(key.ns);
  if (envelope->generation() == 0 || tenant == 0 ||
      ClassFor(envelope->shape().length, entry->envelope_bytes, tenant) != entry->size) {
    return false;
  }
  entry->key = key;
  entry->length = envelope->shape().length;
  entry->depth = envelope->depth();
  entry->score.store(AddUse(kNoScore, clock_.Moment()), std::memory_order_relaxed);
  entry->seen_again.store(false, std::memory_order_relaxed);
  entry->unverified.store(true, std::memory_order_relaxed);
  return true;
}

bool StoreImpl::IsRight(BlockEntry& entry) {
  if (!entry.unverified.load(std::memory_order_acquire)) return true;
  const auto envelope = EnvelopeView::Parse(EnvelopeOf(entry));
  if (envelope.ok() && VerifyValue(*envelope, ValueOf(entry)).ok()) {
    entry.unverified.store(false, std::memory_order_release);
    return true;
  }
  const bool first = index_.EraseIf(entry.key, [&entry](BlockEntry& found) {
    if (&found != &entry) return false;
    found.state.Apply(BlockEvent::kForget);  // the caller has a reference, which is not the last
    return true;
  });
  if (first) {
    Add(&counters_.corrupt, 1);
    Log(LogLevel::kError, "store", "a block that was kept in host memory is spoilt; it is gone");
  }
  return false;
}

}  // namespace terrace::internal
