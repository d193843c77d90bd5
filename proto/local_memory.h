// How a client on the node's machine gets the node's memory: one packet each way over a unix
// socket (SOCK_SEQPACKET), after which the node closes it. Little-endian.
//
//   client                                node
//   u32 "TLM1"  32 bytes session token ->
//                                      <-  u32 "TLM1"  u8 WireStatus  u64 bytes
//                                          u64 landing bytes
//                                          and, when kOk, descriptors (SCM_RIGHTS)
//
// The first descriptor is that of a sealed memfd of `bytes` bytes, for reading only: the blocks of
// the session's tenant lie in it where LentFrame says; all else in it is zeros or rubbish. The
// second, where there is landing memory (not 0 bytes), is a memfd for writing: the session's puts
// are read from it (LandedFrame).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/bytes.h"
#include "proto/frame.h"

namespace terrace {

struct LocalHello {
  SessionToken token{};
};
struct LocalWelcome {
  WireStatus status = WireStatus::kOk;
  uint64_t bytes = 0;
  uint64_t landing_bytes = 0;
};
constexpr size_t kMaxLocalPacketBytes = 64;

std::vector<std::byte> Encode(const LocalHello& hello);
std::vector<std::byte> Encode(const LocalWelcome& welcome);
// InvalidArgument for anything else, whatever the bytes.
absl::StatusOr<LocalHello> DecodeLocalHello(ByteSpan bytes);
absl::StatusOr<LocalWelcome> DecodeLocalWelcome(ByteSpan bytes);

}  // namespace terrace
