#include "proto/envelope.h"

#include <algorithm>
#include <atomic>

#include "fmt/format.h"
#include "proto/checksum.h"

namespace terrace {
namespace {

constexpr size_t kChecksumOffset = 8;
constexpr size_t kGenerationOffset = 64;
constexpr size_t kParentOffset = 88;
constexpr size_t kReservedOffset = 120;
constexpr uint16_t kFlagParent = 1;

template <typename T>
void Store(MutableByteSpan out, size_t offset, T value) {
  std::memcpy(out.data() + offset, &value, sizeof(T));
}

uint32_t HeaderChecksum(ByteSpan envelope) {
  constexpr std::array<std::byte, 4> kZero{};
  uint32_t crc = Crc32c(envelope.first(kChecksumOffset));
  crc = Crc32c(kZero, crc);
  return Crc32c(envelope.subspan(kChecksumOffset + 4), crc);
}

absl::Status Broken(std::string_view what) {
  return absl::DataLossError(fmt::format("envelope: {}", what));
}

}  // namespace

size_t Envelope::EncodeTo(MutableByteSpan out) const {
  const size_t size = EnvelopeBytes(shape.segments, metadata.opaque.size());
  MutableByteSpan e = out.first(size);
  std::fill_n(e.begin(), kEnvelopeFixedBytes, std::byte{0});
  Store(e, 0, kEnvelopeMagic);
  Store(e, 4, kEnvelopeVersion);
  Store(e, 6, static_cast<uint16_t>(size));
  Store(e, 12, codec);
  Store(e, 13, metadata.traffic_class);
  Store(e, 14, metadata.parent ? kFlagParent : uint16_t{0});
  Store(e, 16, key.ns.value);
  Store(e, 24, key.digest.bytes);
  Store(e, 56, key.shard);
  Store(e, 58, static_cast<uint16_t>(metadata.opaque.size()));
  Store(e, 60, metadata.depth);
  Store(e, kGenerationOffset, generation);
  Store(e, 72, layout_id);
  Store(e, 80, shape.length);
  Store(e, 84, shape.segments);
  if (metadata.parent) Store(e, kParentOffset, metadata.parent->bytes);
  for (uint32_t i = 0; i < shape.segments; ++i) {
    Store(e, kEnvelopeFixedBytes + 4 * size_t{i}, checksums[i]);
  }
  std::memcpy(e.data() + kEnvelopeFixedBytes + 4 * size_t{shape.segments}, metadata.opaque.data(),
              metadata.opaque.size());
  Store(e, kChecksumOffset, HeaderChecksum(e));
  return size;
}

absl::StatusOr<EnvelopeView> EnvelopeView::Parse(ByteSpan bytes) {
  if (bytes.size() < kEnvelopeFixedBytes) return Broken("shorter than its fixed part");
  const EnvelopeView fixed(bytes);
  if (fixed.Field<uint32_t>(0) != kEnvelopeMagic) return Broken("wrong magic");
  if (const auto version = fixed.Field<uint16_t>(4); version != kEnvelopeVersion) {
    return Broken(fmt::format("format version {} is not known here", version));
  }
  const size_t size = fixed.Field<uint16_t>(6);
  const size_t opaque = fixed.Field<uint16_t>(58);
  const BlockShape shape = fixed.shape();
  if (absl::Status valid = Validate(shape); !valid.ok()) return Broken(valid.ToString());
  if (opaque > kMaxOpaqueBytes || size != EnvelopeBytes(shape.segments, opaque) ||
      size > bytes.size()) {
    return Broken("sizes disagree");
  }
  EnvelopeView view(bytes.first(size));
  if (view.Field<uint32_t>(kChecksumOffset) != HeaderChecksum(view.bytes_)) {
    return Broken("checksum mismatch");
  }
  // What carries no meaning is zero, so that one envelope has one encoding.
  const bool has_parent = (view.Field<uint16_t>(14) & kFlagParent) != 0;
  const size_t zero_from = has_parent ? kReservedOffset : kParentOffset;
  ByteSpan zero = view.bytes_.subspan(zero_from, kEnvelopeFixedBytes - zero_from);
  if (std::ranges::any_of(zero, [](std::byte b) { return b != std::byte{0}; }) ||
      (view.Field<uint16_t>(14) & ~kFlagParent) != 0 || view.codec() != Codec::kRaw ||
      view.Field<TrafficClass>(13) > TrafficClass::kReasoning) {
    return Broken("a field holds a value that format 1 does not define");
  }
  return view;
}

BlockKey EnvelopeView::key() const {
  BlockKey key;
  key.ns.value = Field<uint64_t>(16);
  key.digest.bytes = Field<std::array<uint8_t, 32>>(24);
  key.shard = Field<uint16_t>(56);
  return key;
}

BlockMetadata EnvelopeView::metadata() const {
  BlockMetadata metadata;
  if (Field<uint16_t>(14) & kFlagParent) {
    metadata.parent = Digest{Field<std::array<uint8_t, 32>>(kParentOffset)};
  }
  metadata.depth = depth();
  metadata.traffic_class = Field<TrafficClass>(13);
  const size_t opaque = Field<uint16_t>(58);
  metadata.opaque = AsText(bytes_.last(opaque));
  return metadata;
}

Envelope EnvelopeView::ToValue() const {
  Envelope value{key(), generation(), layout_id(), shape(), codec(), metadata(), {}};
  value.checksums.resize(value.shape.segments);
  for (uint32_t i = 0; i < value.shape.segments; ++i) value.checksums[i] = checksum(i);
  return value;
}

uint64_t LoadGeneration(ByteSpan envelope) {
  // What was read before this was read before the generation is.
  std::atomic_thread_fence(std::memory_order_acquire);
  auto* word = reinterpret_cast<const uint64_t*>(envelope.data() + kGenerationOffset);
  return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_relaxed);
}

void Invalidate(MutableByteSpan envelope) {
  auto* word = reinterpret_cast<uint64_t*>(envelope.data() + kGenerationOffset);
  std::atomic_ref(*word).store(0, std::memory_order_relaxed);
  // What is written after this is seen by nobody who still sees the old generation afterwards.
  std::atomic_thread_fence(std::memory_order_release);
}

void SetGeneration(MutableByteSpan envelope, uint64_t generation) {
  Store(envelope, kGenerationOffset, generation);
  uint16_t size;
  std::memcpy(&size, envelope.data() + 6, sizeof(size));
  Store(envelope, kChecksumOffset, HeaderChecksum(envelope.first(size)));
}

}  // namespace terrace
