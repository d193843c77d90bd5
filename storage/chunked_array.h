// An array that grows at its end without moving or doubling: for tables of millions whose memory
// is counted.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace terrace {

template <typename T>
class ChunkedArray {
 public:
  T& operator[](size_t i) { return (*chunks_[i / kPerChunk])[i % kPerChunk]; }
  const T& operator[](size_t i) const { return (*chunks_[i / kPerChunk])[i % kPerChunk]; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void PushBack(T value) {
    if (size_ == chunks_.size() * kPerChunk) chunks_.push_back(std::make_unique<Chunk>());
    (*this)[size_++] = value;
  }
  // One chunk more than needed is kept, so that a size to and fro costs nothing.
  void PopBack() {
    --size_;
    if (size_ + 2 * kPerChunk <= chunks_.size() * kPerChunk) chunks_.pop_back();
  }
  size_t bytes() const {
    return chunks_.size() * sizeof(Chunk) + chunks_.capacity() * sizeof(chunks_[0]);
  }

 private:
  static constexpr size_t kPerChunk = 16 << 10;
  using Chunk = std::array<T, kPerChunk>;

  std::vector<std::unique_ptr<Chunk>> chunks_;
  size_t size_ = 0;
};

}  // namespace terrace
