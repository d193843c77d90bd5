// An array that grows at its end without moving or doubling: for tables of millions whose memory
// is counted.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <vector>

namespace terrace {

// Chunks are huge pages where the kernel has some: a fault for each 4 KiB would be most of the cost
// of growing, and a miss of the address cache most of that of looking.
template <typename T>
class ChunkedArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  T& operator[](size_t i) { return chunks_[i / kPerChunk].get()[i % kPerChunk]; }
  const T& operator[](size_t i) const { return chunks_[i / kPerChunk].get()[i % kPerChunk]; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void PushBack(T value) {
    if (size_ == chunks_.size() * kPerChunk) chunks_.push_back(NewChunk());
    (*this)[size_++] = value;
  }
  // One chunk more than needed is kept, so that a size to and fro costs nothing.
  void PopBack() {
    --size_;
    if (size_ + 2 * kPerChunk <= chunks_.size() * kPerChunk) chunks_.pop_back();
  }
  size_t bytes() const {
    return chunks_.size() * kChunkBytes + chunks_.capacity() * sizeof(chunks_[0]);
  }

 private:
  static constexpr size_t kChunkBytes = 2 << 20;
  static constexpr size_t kPerChunk = kChunkBytes / sizeof(T);
  struct Free {
    void operator()(T* chunk) const { std::free(chunk); }
  };
  using Chunk = std::unique_ptr<T[], Free>;

  static Chunk NewChunk() {
    void* memory = std::aligned_alloc(kChunkBytes, kChunkBytes);
    if (memory == nullptr) std::abort();
    (void)::madvise(memory, kChunkBytes, MADV_HUGEPAGE);  // a kernel without them is slower
    return Chunk(static_cast<T*>(memory));
  }

  std::vector<Chunk> chunks_;
  size_t size_ = 0;
};

}  // namespace terrace
