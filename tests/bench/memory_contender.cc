#include "tests/bench/memory_contender.h"

#include <algorithm>
#include <cstring>

#include "proto/checksum.h"
#include "tests/bench/own_round.h"
#include "tests/bench/terrace_contender.h"

namespace terrace::bench {
namespace {

constexpr size_t kPart = 32 << 10;  // stays in the cache between copy and check

}  // namespace

MemoryContender::MemoryContender() : sources_(kArenaBytes), destinations_(kArenaBytes) {
  for (ColdArena* arena : {&sources_, &destinations_}) {
    std::ranges::fill(arena->all(), std::byte{1});
  }
}

absl::StatusOr<Measurement> MemoryContender::CopyAndCheck(uint32_t block_bytes, size_t bytes) {
  return Run(block_bytes, bytes, /*copy=*/true, /*check=*/true);
}

absl::StatusOr<Measurement> MemoryContender::Copy(uint32_t block_bytes, size_t bytes) {
  return Run(block_bytes, bytes, /*copy=*/true, /*check=*/false);
}

absl::StatusOr<Measurement> MemoryContender::Check(uint32_t block_bytes, size_t bytes) {
  return Run(block_bytes, bytes, /*copy=*/false, /*check=*/true);
}

absl::StatusOr<Measurement> MemoryContender::Run(uint32_t block_bytes, size_t bytes, bool copy,
                                                 bool check) {
  const size_t count = bytes / block_bytes;
  const OwnRound round;
  for (size_t i = 0; i < count; ++i) {
    const ByteSpan source = sources_.Next(block_bytes);
    const MutableByteSpan destination = copy ? destinations_.Next(block_bytes) : MutableByteSpan();
    uint32_t crc = 0;
    for (size_t at = 0; at < block_bytes; at += kPart) {
      ByteSpan part = source.subspan(at, std::min<size_t>(kPart, block_bytes - at));
      if (copy) {
        std::memcpy(destination.data() + at, part.data(), part.size());
        part = destination.subspan(at, part.size());
      }
      if (check) crc = Crc32c(part, crc);
    }
    sum_ += crc;
  }
  if (sum_ == 1) return absl::InternalError("");  // never: it keeps the passes
  return round.Ended(count * block_bytes);
}

}  // namespace terrace::bench
