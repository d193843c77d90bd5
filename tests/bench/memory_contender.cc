#include "tests/bench/memory_contender.h"

#include <algorithm>
#include <cstring>

#include "proto/checksum.h"
#include "tests/bench/own_round.h"
#include "tests/bench/terrace_contender.h"

namespace terrace::bench {
namespace {

constexpr size_t kPart = 32 << 10;  // stays in the cache between copy and check
// A virtual machine's memory has its full speed only after some passes.
constexpr int kWarmUps = 4;

}  // namespace

MemoryContender::MemoryContender()
    : blocks_(kLocalArenaBytes, ColdArena::Pages::kShared), worker_(kLocalArenaBytes) {
  for (int i = 0; i < kWarmUps; ++i) {
    std::ranges::copy(blocks_.all(), worker_.all().begin());
    std::ranges::copy(worker_.all(), blocks_.all().begin());
  }
}

absl::StatusOr<Measurement> MemoryContender::CopyAndCheck(uint32_t block_bytes, size_t bytes) {
  return Run(block_bytes, bytes, &blocks_, &worker_, /*check=*/true);
}

absl::StatusOr<Measurement> MemoryContender::Copy(uint32_t block_bytes, size_t bytes) {
  return Run(block_bytes, bytes, &worker_, &blocks_, /*check=*/false);
}

absl::StatusOr<Measurement> MemoryContender::Check(uint32_t block_bytes, size_t bytes) {
  return Run(block_bytes, bytes, &blocks_, nullptr, /*check=*/true);
}

absl::StatusOr<Measurement> MemoryContender::Run(uint32_t block_bytes, size_t bytes,
                                                 ColdArena* from, ColdArena* to, bool check) {
  const size_t count = bytes / block_bytes;
  const OwnRound round;
  for (size_t i = 0; i < count; ++i) {
    const ByteSpan source = from->Next(block_bytes);
    const MutableByteSpan destination = to != nullptr ? to->Next(block_bytes) : MutableByteSpan();
    uint32_t crc = 0;
    for (size_t at = 0; at < block_bytes; at += kPart) {
      ByteSpan part = source.subspan(at, std::min<size_t>(kPart, block_bytes - at));
      if (to != nullptr) {
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
