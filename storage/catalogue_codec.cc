#include <bit>

#include "fmt/format.h"
#include "storage/catalogue.h"

namespace terrace {
namespace {

constexpr uint8_t kRecordVersion = 1;
constexpr size_t kRecordBytes = 36;
constexpr size_t kKeyBytes = 42;

template <typename T>
T BigEndian(T value) {
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
}

std::string Take(ByteWriter writer) { return std::string(AsText(std::move(writer).Take())); }

}  // namespace

std::string EncodeBlockRecord(const BlockRecord& record) {
  ByteWriter writer(kRecordBytes);
  writer.Write(kRecordVersion);
  writer.Write(static_cast<uint8_t>(record.place.inlined));
  writer.Write(static_cast<uint8_t>(record.traffic_class));
  writer.Write(uint8_t{0});
  writer.Write(record.place.number);
  writer.Write(record.length);
  writer.Write(record.envelope_bytes);
  writer.Write(uint16_t{0});
  writer.Write(record.depth);
  writer.Write(record.expires_at);
  writer.Write(std::bit_cast<uint32_t>(record.score));
  writer.Write(record.generation);
  return Take(std::move(writer));
}

absl::StatusOr<BlockRecord> DecodeBlockRecord(std::string_view bytes) {
  ByteReader reader(AsBytes(bytes));
  const auto version = reader.Read<uint8_t>();
  const auto kind = reader.Read<uint8_t>();
  BlockRecord record;
  record.traffic_class = reader.Read<TrafficClass>();
  const auto zero_byte = reader.Read<uint8_t>();
  record.place = {kind == 1, reader.Read<uint32_t>()};
  record.length = reader.Read<uint32_t>();
  record.envelope_bytes = reader.Read<uint16_t>();
  const auto zero_half = reader.Read<uint16_t>();
  record.depth = reader.Read<uint32_t>();
  record.expires_at = reader.Read<uint32_t>();
  record.score = std::bit_cast<float>(reader.Read<uint32_t>());
  record.generation = reader.Read<uint64_t>();
  if (!reader.ok() || reader.remaining() != 0 || version != kRecordVersion || kind > 1 ||
      record.traffic_class > TrafficClass::kReasoning || zero_byte != 0 || zero_half != 0 ||
      record.length < kMinBlockBytes || record.length > kMaxBlockBytes ||
      record.envelope_bytes < kEnvelopeFixedBytes || record.envelope_bytes > kMaxEnvelopeBytes) {
    return absl::DataLossError(fmt::format(
        "catalogue: a record of {} bytes, version {}, is not understood", bytes.size(), version));
  }
  return record;
}

std::string EncodeCatalogueKey(const BlockKey& key) {
  ByteWriter writer(kKeyBytes);
  writer.Write(BigEndian(key.ns.value));
  writer.WriteArray(key.digest.bytes);
  writer.Write(BigEndian(key.shard));
  return Take(std::move(writer));
}

absl::StatusOr<BlockKey> DecodeCatalogueKey(std::string_view bytes) {
  ByteReader reader(AsBytes(bytes));
  BlockKey key;
  key.ns.value = BigEndian(reader.Read<uint64_t>());
  reader.ReadInto(&key.digest.bytes);
  key.shard = BigEndian(reader.Read<uint16_t>());
  if (!reader.ok() || reader.remaining() != 0) {
    return absl::DataLossError(fmt::format("catalogue: a key has {} bytes", bytes.size()));
  }
  return key;
}

std::string EncodeColdPlace(const ColdPlace& place) {
  ByteWriter writer(5);
  writer.Write(static_cast<uint8_t>(place.inlined));
  writer.Write(BigEndian(place.number));
  return Take(std::move(writer));
}

absl::StatusOr<ColdPlace> DecodeColdPlace(std::string_view bytes) {
  ByteReader reader(AsBytes(bytes));
  const auto kind = reader.Read<uint8_t>();
  const ColdPlace place{kind == 1, BigEndian(reader.Read<uint32_t>())};
  if (!reader.ok() || reader.remaining() != 0 || kind > 1) {
    return absl::DataLossError("catalogue: a place is not understood");
  }
  return place;
}

}  // namespace terrace
