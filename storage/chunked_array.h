// An array that grows at its end without moving or doubling: for tables of millions whose memory
// is counted.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "proto/mutex.h"

namespace terrace {

// The chunks of arrays: huge pages where the kernel has some, since a fault for each 4 KiB would be
// most of the cost of growing, and a miss of the address cache most of that of looking. Some can be
// made ready ahead, away from the lock of whoever grows: the kernel takes its time to clear them.
// Thread-safe.
class ChunkStock {
 public:
  static constexpr size_t kChunkBytes = 2 << 20;
  struct Free {
    void operator()(std::byte* chunk) const { std::free(chunk); }
  };
  using Chunk = std::unique_ptr<std::byte[], Free>;

  // Has so many chunks ready; with 0 it drops those that were.
  void Prepare(size_t chunks) {
    while (true) {
      {
        MutexLock lock(&mutex_);
        while (ready_.size() > chunks) ready_.pop_back();
        if (ready_.size() == chunks) return;
      }
      Chunk chunk = New();
      for (size_t i = 0; i < kChunkBytes; i += kSmallPageBytes) chunk[i] = std::byte{0};
      MutexLock lock(&mutex_);
      ready_.push_back(std::move(chunk));
    }
  }
  Chunk Take() {
    {
      MutexLock lock(&mutex_);
      if (!ready_.empty()) {
        Chunk chunk = std::move(ready_.back());
        ready_.pop_back();
        return chunk;
      }
    }
    return New();
  }

 private:
  static constexpr size_t kSmallPageBytes = 4096;

  static Chunk New() {
    void* memory = std::aligned_alloc(kChunkBytes, kChunkBytes);
    if (memory == nullptr) std::abort();
    (void)::madvise(memory, kChunkBytes, MADV_HUGEPAGE);  // a kernel without them is slower
    return Chunk(static_cast<std::byte*>(memory));
  }

  Mutex mutex_;
  std::vector<Chunk> ready_ ABSL_GUARDED_BY(mutex_);
};

template <typename T>
class ChunkedArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  // `stock` outlives the array.
  explicit ChunkedArray(ChunkStock* stock) : stock_(stock) {}

  T& operator[](size_t i) { return At(i); }
  const T& operator[](size_t i) const { return At(i); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void PushBack(T value) {
    if (size_ == chunks_.size() * kPerChunk) chunks_.push_back(stock_->Take());
    (*this)[size_++] = value;
  }
  // One chunk more than needed is kept, so that a size to and fro costs nothing.
  void PopBack() {
    --size_;
    if (size_ + 2 * kPerChunk <= chunks_.size() * kPerChunk) chunks_.pop_back();
  }
  size_t bytes() const {
    return chunks_.size() * ChunkStock::kChunkBytes + chunks_.capacity() * sizeof(chunks_[0]);
  }

 private:
  static constexpr size_t kPerChunk = ChunkStock::kChunkBytes / sizeof(T);

  T& At(size_t i) const {
    return reinterpret_cast<T*>(chunks_[i / kPerChunk].get())[i % kPerChunk];
  }

  ChunkStock* const stock_;
  std::vector<ChunkStock::Chunk> chunks_;
  size_t size_ = 0;
};

}  // namespace terrace
