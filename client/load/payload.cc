#include "client/load/payload.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  return x;
}

// Counter mode: word i depends on the seed and on i alone, so the loops over words carry no
// dependency from one to the next.
uint64_t Word(uint64_t seed, uint64_t i) { return Mix(seed + i * kGolden); }

}  // namespace

Payload::Payload(const BlockKey& key) : seed_(Mix(key.ns.value + kGolden) + key.shard) {
  std::array<uint64_t, 4> digest;
  static_assert(sizeof(digest) == sizeof(key.digest.bytes));
  std::memcpy(digest.data(), key.digest.bytes.data(), sizeof(digest));
  for (uint64_t word : digest) seed_ = Mix(seed_ ^ word) + kGolden;
}

void Payload::Fill(MutableByteSpan out) const {
  const uint64_t seed = seed_;
  std::byte* const begin = out.data();
  for (uint64_t i = 0; i < out.size() / sizeof(uint64_t); ++i) {
    const uint64_t word = Word(seed, i);
    std::memcpy(begin + i * sizeof(word), &word, sizeof(word));
  }
}

uint64_t Payload::CountWrong(ByteSpan bytes) const {
  constexpr uint64_t kStretch = 512;  // words judged at once; only a wrong stretch is counted
  const uint64_t seed = seed_;
  const uint64_t words = bytes.size() / sizeof(uint64_t);
  uint64_t wrong = 0;
  for (uint64_t first = 0; first < words; first += kStretch) {
    const uint64_t end = std::min(words, first + kStretch);
    const auto difference = [&](uint64_t i) {
      uint64_t found;
      std::memcpy(&found, bytes.data() + i * sizeof(found), sizeof(found));
      return found ^ Word(seed, i);
    };
    uint64_t any = 0;
    for (uint64_t i = first; i < end; ++i) any |= difference(i);
    for (uint64_t i = first; any != 0 && i < end; ++i) {
      for (uint64_t rest = difference(i); rest != 0; rest >>= 8) wrong += (rest & 0xff) != 0;
    }
  }
  return wrong;
}

}  // namespace terrace
