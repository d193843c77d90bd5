// Blocks that any reader can judge alone: key and payload follow from a number.
#pragma once

#include <cstring>
#include <vector>

#include "cache_node/tiered_store.h"
#include "proto/block.h"
#include "proto/block_key.h"
#include "proto/checksum.h"
#include "proto/envelope.h"

namespace terrace {

inline uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline BlockKey TestKey(uint64_t number, uint64_t ns = 1) {
  BlockKey key;
  key.ns.value = ns;
  for (uint64_t i = 0; i < 4; ++i) {
    const uint64_t word = Mix(4 * number + i);
    std::memcpy(key.digest.bytes.data() + 8 * i, &word, 8);
  }
  return key;
}

// The payload of a block is a function of its key: PRF(key), 8 bytes at a time.
inline uint64_t PayloadWord(const BlockKey& key, uint64_t index) {
  uint64_t seed;
  std::memcpy(&seed, key.digest.bytes.data(), sizeof(seed));
  return Mix(seed ^ key.ns.value << 32 ^ uint64_t{key.shard} << 56 ^ index);
}

inline void FillPayload(const BlockKey& key, MutableByteSpan out) {
  for (uint64_t i = 0; i < out.size() / 8; ++i) {
    const uint64_t word = PayloadWord(key, i);
    std::memcpy(out.data() + 8 * i, &word, 8);
  }
}

inline bool HasPayload(const BlockKey& key, ByteSpan bytes) {
  for (uint64_t i = 0; i < bytes.size() / 8; ++i) {
    const uint64_t word = PayloadWord(key, i);
    if (std::memcmp(bytes.data() + 8 * i, &word, 8) != 0) return false;
  }
  return true;
}

inline Envelope EnvelopeOf(const BlockKey& key, BlockShape shape, uint32_t depth, ByteSpan value) {
  Envelope envelope;
  envelope.key = key;
  envelope.shape = shape;
  envelope.metadata.depth = depth;
  envelope.checksums.resize(shape.segments);
  SegmentChecksummer(shape.segment_bytes(), envelope.checksums).Update(value);
  return envelope;
}

inline ReserveResult ReserveBlock(TieredStore* store, const BlockKey& key, BlockShape shape,
                                  uint32_t depth = 0) {
  const uint16_t opaque = 0;
  return std::move(store->Reserve({&key, 1}, {&shape, 1}, {&opaque, 1}, {&depth, 1}).front());
}

inline bool WriteAndPublish(Reservation reservation, BlockShape shape, uint32_t depth = 0) {
  FillPayload(reservation.key(), reservation.value());
  Envelope envelope = EnvelopeOf(reservation.key(), shape, depth, reservation.value());
  return reservation.Publish(std::move(envelope));
}

// Reserve, write and publish; the outcome of the reservation.
inline ReserveOutcome PutBlock(TieredStore* store, const BlockKey& key, BlockShape shape,
                               uint32_t depth = 0) {
  ReserveResult result = ReserveBlock(store, key, shape, depth);
  if (result.outcome == ReserveOutcome::kReserved) {
    WriteAndPublish(std::move(result.reservation), shape, depth);
  }
  return result.outcome;
}

// Whether the bytes behind a reference are those of the key, by envelope, checksums and oracle.
inline bool IsIntact(const BlockRef& ref, const BlockKey& key) {
  const auto envelope = EnvelopeView::Parse(ref.envelope());
  if (!envelope.ok() || envelope->key() != key) return false;
  if (envelope->shape().length != ref.value().size()) return false;
  const uint32_t bytes = envelope->shape().segment_bytes();
  for (uint32_t i = 0; i < envelope->shape().segments; ++i) {
    if (Crc32c(ref.value().subspan(size_t{i} * bytes, bytes)) != envelope->checksum(i)) {
      return false;
    }
  }
  return HasPayload(key, ref.value());
}

}  // namespace terrace
