// What the index costs per resident block, counted at the allocator.

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <new>

#include "gtest/gtest.h"
#include "storage/arena.h"
#include "storage/block_index.h"
#include "storage/eviction_order.h"

namespace {
std::atomic<int64_t> allocated{0};
}  // namespace

// Not inlined: gcc would take malloc and operator delete for a pair that does not match.
[[gnu::noinline]] void* operator new(size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  allocated += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr) allocated -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace terrace {
namespace {

constexpr PlaceClass kClass{64 << 10, 256};
constexpr uint64_t kLimit = 200;  // bytes per block

double BytesPerBlock(uint64_t blocks) {
  const int64_t before = allocated;
  auto index = std::make_unique<BlockIndex>();
  EntryPool pool;
  EvictionOrder order;
  Arena arena(blocks * (kClass.place_bytes + (4 << 10)), 2 << 20);
  for (uint64_t i = 0; i < blocks; ++i) {
    BlockEntry* entry = pool.Take();
    const uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15;
    std::memcpy(entry->key.digest.bytes.data(), &mixed, 8);
    entry->place = arena.Allocate(kClass, entry).value();
    entry->score = static_cast<double>(i);
    index->Insert(entry);
    order.Insert(entry);
  }
  const auto counted = static_cast<double>(allocated - before);
  const uint64_t stated = index->bytes() + pool.bytes() + order.bytes() + arena.bookkeeping_bytes();
  EXPECT_NEAR(static_cast<double>(stated) / counted, 1, 0.05) << "bytes() disagrees";
  return counted / static_cast<double>(blocks);
}

// Before and after the tables double.
TEST(IndexMemory, IsBoundedPerResidentBlock) {
  for (const uint64_t blocks : {200'000, 235'000}) {
    const double bytes = BytesPerBlock(blocks);
    EXPECT_LE(bytes, kLimit) << blocks << " blocks";
    std::cout << blocks << " blocks: " << bytes << " bytes each (limit " << kLimit << ")\n";
  }
}

}  // namespace
}  // namespace terrace
