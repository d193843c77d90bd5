#include "cluster/piece.h"

#include <cstring>
#include <string_view>

#include "absl/status/status.h"
#include "cluster/transport.h"
#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

// "TRN" and the version of this layout. Both sides of a connection speak the same one.
constexpr uint32_t kMagic = 0x004e5254;
constexpr uint32_t kVersion = 2;
constexpr uint32_t kVersionShift = 24;

absl::Status Broken(std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("transport header: {}", what));
}

absl::Status CheckMagicAndVersion(uint32_t word) {
  const uint32_t version = word >> kVersionShift;
  if ((word ^ kMagic) << (32 - kVersionShift) != 0) return Broken("not Terrace's");
  if (version == kVersion) return absl::OkStatus();
  return Broken(fmt::format(
      "the peer speaks version {}, this side version {}: run the same release of Terrace on both",
      version, kVersion));
}

absl::Status Check(const PieceHeader& header) {
  if (header.frame_bytes > kMaxFrameBytes) return Broken("frame too large");
  if (header.payload_bytes > kMaxPayloadBytes) return Broken("payload too large");
  if (header.frame_part > header.frame_bytes ||
      header.frame_offset > header.frame_bytes - header.frame_part) {
    return Broken("frame part out of bounds");
  }
  const bool empty_message = header.frame_bytes == 0 && header.payload_bytes == 0;
  if (header.kind != PieceKind::kData && !empty_message) return Broken("greeting with content");
  if (header.frame_part == 0 && header.frame_bytes > 0) return Broken("empty piece");
  return absl::OkStatus();
}

}  // namespace

void EncodePieceHeader(const PieceHeader& header, std::span<std::byte, kPieceHeaderBytes> out) {
  std::byte* at = out.data();
  const auto put = [&at](auto value) {
    std::memcpy(at, &value, sizeof(value));
    at += sizeof(value);
  };
  put(kMagic | kVersion << kVersionShift);
  put(static_cast<uint32_t>(header.kind));
  put(header.frame_bytes);
  put(header.frame_offset);
  put(header.frame_part);
  put(uint32_t{0});
  put(header.sequence);
  put(header.payload_bytes);
}

absl::StatusOr<PieceHeader> DecodePieceHeader(ByteSpan bytes, uint64_t data_bytes) {
  if (bytes.size() < kPieceHeaderBytes) return Broken("too short");
  ByteReader reader(bytes);
  TERRACE_RETURN_IF_ERROR(CheckMagicAndVersion(reader.Read<uint32_t>()));
  const auto kind = reader.Read<uint32_t>();
  if (kind < 1 || kind > 3) return Broken("kind");
  PieceHeader header{.kind = static_cast<PieceKind>(kind)};
  header.frame_bytes = reader.Read<uint32_t>();
  header.frame_offset = reader.Read<uint32_t>();
  header.frame_part = reader.Read<uint32_t>();
  if (reader.Read<uint32_t>() != 0) return Broken("reserved field");
  header.sequence = reader.Read<uint64_t>();
  header.payload_bytes = reader.Read<uint64_t>();
  TERRACE_RETURN_IF_ERROR(Check(header));
  if (header.frame_part != bytes.size() - kPieceHeaderBytes) return Broken("frame part length");
  if (header.data_bytes() != data_bytes) return Broken("payload length");
  return header;
}

}  // namespace terrace
