#include "proto/local_memory.h"

namespace terrace {
namespace {

constexpr uint32_t kMagic = 0x314d4c54;  // "TLM1"

absl::Status Foreign() {
  return absl::InvalidArgumentError("local memory: not a packet of this protocol");
}

}  // namespace

std::vector<std::byte> Encode(const LocalHello& hello) {
  ByteWriter out(kMaxLocalPacketBytes);
  out.Write(kMagic);
  out.WriteArray(hello.token);
  return std::move(out).Take();
}

std::vector<std::byte> Encode(const LocalWelcome& welcome) {
  ByteWriter out(kMaxLocalPacketBytes);
  out.Write(kMagic);
  out.Write(welcome.status);
  out.Write(welcome.bytes);
  out.Write(welcome.landing_bytes);
  return std::move(out).Take();
}

absl::StatusOr<LocalHello> DecodeLocalHello(ByteSpan bytes) {
  ByteReader in(bytes);
  const auto magic = in.Read<uint32_t>();
  LocalHello hello;
  in.ReadInto(&hello.token);
  if (!in.ok() || in.remaining() != 0 || magic != kMagic) return Foreign();
  return hello;
}

absl::StatusOr<LocalWelcome> DecodeLocalWelcome(ByteSpan bytes) {
  ByteReader in(bytes);
  const auto magic = in.Read<uint32_t>();
  LocalWelcome welcome;
  welcome.status = in.Read<WireStatus>();
  welcome.bytes = in.Read<uint64_t>();
  welcome.landing_bytes = in.Read<uint64_t>();
  if (!in.ok() || in.remaining() != 0 || magic != kMagic || welcome.status > kLastWireStatus) {
    return Foreign();
  }
  return welcome;
}

}  // namespace terrace
