// The envelope: what every block carries in every tier and on the wire, so that whoever holds
// the bytes can judge them alone. A reader compares the key it asked for, and verifies the
// checksums; self-consistency is not enough, since a reused slab is self-consistent too.
//
// Format 1, little-endian, 192 fixed bytes, then one CRC32C per segment, then opaque metadata:
//
//   offset size  field
//        0    4  magic "TRCE"
//        4    2  format version (1)
//        6    2  envelope bytes (192 + 4 x segments + opaque bytes)
//        8    4  CRC32C of the whole envelope with this field zero
//       12    1  codec           13  1 traffic class      14  2 flags (bit 0: parent present)
//       16    8  namespace id    24 32 digest             56  2 shard    58  2 opaque bytes
//       60    4  depth in chain  64  8 generation (never reused within a node's cluster)
//       72    8  layout id       80  4 block length       84  4 segments
//       88   32  parent digest (zero when absent)        120 72 reserved, zero
//      192       checksums, then opaque bytes
//
// A reader of format 1 refuses another version and any reserved byte that is not zero.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/block.h"
#include "proto/bytes.h"

namespace terrace {

constexpr uint32_t kEnvelopeMagic = 0x45435254;  // "TRCE"
constexpr uint16_t kEnvelopeVersion = 1;
constexpr size_t kEnvelopeFixedBytes = 192;
constexpr size_t kMaxEnvelopeBytes = kEnvelopeFixedBytes + 4 * kMaxSegments + kMaxOpaqueBytes;

constexpr size_t EnvelopeBytes(uint32_t segments, size_t opaque_bytes) {
  return kEnvelopeFixedBytes + size_t{4} * segments + opaque_bytes;
}

// The envelope as a value.
struct Envelope {
  BlockKey key;
  uint64_t generation = 0;
  uint64_t layout_id = 0;
  BlockShape shape;
  Codec codec = Codec::kRaw;
  BlockMetadata metadata;
  std::vector<uint32_t> checksums;  // one per segment

  // Writes EnvelopeBytes() bytes to the front of `out`, which must have room; returns how many.
  size_t EncodeTo(MutableByteSpan out) const;
};

// A checked view of encoded bytes that it does not own; it allocates nothing.
class EnvelopeView {
 public:
  // Checks magic, version, sizes, shape, and the envelope's own checksum. DataLoss says what is
  // wrong. `bytes` may be longer than the envelope and must outlive the view.
  static absl::StatusOr<EnvelopeView> Parse(ByteSpan bytes);

  BlockKey key() const;
  uint64_t generation() const { return Field<uint64_t>(64); }
  uint64_t layout_id() const { return Field<uint64_t>(72); }
  BlockShape shape() const { return {Field<uint32_t>(80), Field<uint32_t>(84)}; }
  Codec codec() const { return Field<Codec>(12); }
  uint32_t depth() const { return Field<uint32_t>(60); }
  uint32_t checksum(uint32_t segment) const {
    return Field<uint32_t>(kEnvelopeFixedBytes + 4 * size_t{segment});
  }
  BlockMetadata metadata() const;
  Envelope ToValue() const;
  ByteSpan bytes() const { return bytes_; }

 private:
  explicit EnvelopeView(ByteSpan bytes) : bytes_(bytes) {}
  template <typename T>
  T Field(size_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  ByteSpan bytes_;
};

// The generation alone, which no valid envelope has as 0. With these two a reader in another
// process can tell that a place has not changed hands while he read it: he reads, then asks whether
// the generation is still the one that he was promised. Encoded bytes at a multiple of 8.
uint64_t LoadGeneration(ByteSpan envelope);
void Invalidate(MutableByteSpan envelope);

// Writes a new generation into an encoded, valid envelope and renews its checksum.
void SetGeneration(MutableByteSpan envelope, uint64_t generation);

}  // namespace terrace
