#include "cluster/message_header.h"

#include <algorithm>
#include <cstring>

#include "cluster/transport.h"
#include "fmt/format.h"

namespace terrace {
namespace {

constexpr uint32_t kMagic = 0x43525254;  // "TRRC"
// Of this layout and of the greeting. Both sides of a connection speak the same one.
constexpr uint16_t kVersion = 1;

absl::Status Broken(std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("transport header: {}", what));
}

}  // namespace

void EncodeMessageHeader(const MessageHeader& header,
                         std::span<std::byte, kMessageHeaderBytes> out) {
  std::byte* at = out.data();
  const auto put = [&at](auto value) {
    std::memcpy(at, &value, sizeof(value));
    at += sizeof(value);
  };
  put(kMagic);
  put(kVersion);
  put(static_cast<uint16_t>(header.kind));
  put(header.frame_bytes);
  put(uint32_t{0});
  put(header.payload_bytes);
}

absl::StatusOr<std::optional<MessageHeader>> DecodeMessageHeader(ByteSpan bytes) {
  const auto magic = std::as_bytes(std::span(&kMagic, 1));
  if (!std::ranges::equal(bytes.first(std::min(bytes.size(), magic.size())),
                          magic.first(std::min(bytes.size(), magic.size())))) {
    return Broken("not Terrace's");
  }
  if (bytes.size() < kMessageHeaderBytes) return std::nullopt;
  ByteReader reader(bytes.first(kMessageHeaderBytes));
  reader.Read<uint32_t>();
  if (const auto version = reader.Read<uint16_t>(); version != kVersion) {
    return absl::FailedPreconditionError(
        fmt::format("the peer's transport speaks version {}, this side's version {}: run the same "
                    "release of Terrace on both",
                    version, kVersion));
  }
  const auto kind = reader.Read<uint16_t>();
  if (kind < 1 || kind > 4) return Broken("kind");
  MessageHeader header{.kind = static_cast<MessageKind>(kind)};
  header.frame_bytes = reader.Read<uint32_t>();
  if (reader.Read<uint32_t>() != 0) return Broken("reserved field");
  header.payload_bytes = reader.Read<uint64_t>();
  if (header.frame_bytes > kMaxFrameBytes) return Broken("frame too large");
  if (header.payload_bytes > kMaxPayloadBytes) return Broken("payload too large");
  if (header.kind != MessageKind::kData && (header.frame_bytes > 0 || header.payload_bytes > 0)) {
    return Broken("greeting with content");
  }
  return header;
}

}  // namespace terrace
