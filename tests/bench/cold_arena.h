// Memory that no cache holds, on huge pages, for sources and destinations.
#pragma once

#include <cstddef>

#include "proto/bytes.h"

namespace terrace::bench {

// Memory that is touched once and then handed out in turn, so that a block's bytes have left the
// caches long before its turn comes again. Pieces of whole pages are aligned to pages.
class ColdArena {
 public:
  // Shared memory has the pages that the system grants it, as the host tier of a node does.
  enum class Pages { kPrivate, kShared };
  explicit ColdArena(size_t bytes, Pages pages = Pages::kPrivate);
  ~ColdArena();
  ColdArena(const ColdArena&) = delete;
  ColdArena& operator=(const ColdArena&) = delete;
  MutableByteSpan Next(size_t bytes);
  MutableByteSpan all() const { return {base_, size_}; }

 private:
  const size_t size_;
  std::byte* base_;
  size_t next_ = 0;
};

}  // namespace terrace::bench
