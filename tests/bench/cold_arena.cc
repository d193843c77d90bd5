#include "tests/bench/cold_arena.h"

#include <sys/mman.h>

#include <cstring>

namespace terrace::bench {

ColdArena::ColdArena(size_t bytes, Pages pages)
    : size_(bytes),
      base_(static_cast<std::byte*>(
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
               (pages == Pages::kShared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0))) {
  madvise(base_, size_, MADV_HUGEPAGE);
  std::memset(base_, 1, size_);
}

ColdArena::~ColdArena() { munmap(base_, size_); }

MutableByteSpan ColdArena::Next(size_t bytes) {
  if (next_ + bytes > size_) next_ = 0;
  next_ += bytes;
  return {base_ + next_ - bytes, bytes};
}

}  // namespace terrace::bench
