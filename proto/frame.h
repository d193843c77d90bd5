// Data-plane frames, version 1. Little-endian. Every frame begins with
//
//   u16 magic 0x4654 ("TF")   u8 version   u8 type   u32 reserved (0)   u64 request id
//
// and its body follows. Decode() checks everything against the bounds below before any memory is
// taken; it refuses trailing bytes. Counts are bounded by kMaxKeysPerFrame, so a frame never
// exceeds kMaxFrameBytes of the transport.
//
// A conversation on one connection:
//
//   client                         node
//   Hello(token)               ->
//                              <-  HelloReply           (otherwise the connection is closed)
//   Match(keys)                ->
//                              <-  MatchReply(leading run, tiers, lease)
//   Get(items)                 ->
//                              <-  Block(index, status, envelope) + bytes, one per item
//   Reserve(items)             ->
//                              <-  ReserveReply(outcome per item, reservation ids)
//   Value(reservation) + bytes and envelope, one per reservation granted
//                              ->
//                              <-  PutReply(index, status), one per Value
//   Put(item) + bytes and envelope: Reserve and Value in one
//                              ->
//                              <-  PutReply(0, status)
//   Persist(keys)              ->
//                              <-  PutReply(index, status), one per key
//   Touch(keys), Release(lease), Cancel(request)   no reply
//
// A client on the node's machine that has mapped its memory (proto/local_memory.h) may ask for
// places instead of bytes:
//
//   Lend(keys)                 ->
//                              <-  Lent(lease, place per key), until every key is answered
//   Release(lease)             ->
//
// and put blocks that it has written into landing memory:
//
//   Landed(item, envelope, where)
//                              ->
//                              <-  PutReply(index, status)
//
// Request ids are the client's, never 0 (Hello, Touch and Release use 0).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/block.h"
#include "proto/bytes.h"

namespace terrace {

constexpr uint8_t kFrameVersion = 1;
constexpr size_t kMaxKeysPerFrame = 512;
constexpr size_t kSessionTokenBytes = 32;
using SessionToken = std::array<uint8_t, kSessionTokenBytes>;

// The outcome of one key or of one request, as it travels.
enum class WireStatus : uint8_t {
  kOk = 0,
  kMiss = 1,               // Get: not here
  kAskAgain = 2,           // not known yet: the ssd tier is still loading
  kExists = 3,             // Reserve, Put, Value: the block is there already: a success
  kPending = 4,            // Reserve, Put: another writer is at it
  kNoSpace = 5,            // Reserve, Put: nothing can be evicted now
  kNeverFits = 6,          // Reserve, Put: larger than the tier
  kBadRequest = 7,         // Validate() of shape or range failed, unknown reservation
  kUnknownNamespace = 8,   // not opened by this tenant, or deleted
  kForeignLayout = 9,      // the envelope's layout id is not the namespace's
  kChecksumMismatch = 10,  // Put, Value: bytes and checksums disagree; nothing was published
  kOverloaded = 11,        // a bound of the session is reached
  kUnauthenticated = 12,   // Hello: token unknown or no longer live
  kStopping = 13,          // the node is shutting down
  kNotDurable = 14,        // Persist: the block is here, and would not survive a power cut
};
constexpr WireStatus kLastWireStatus = WireStatus::kNotDurable;
const char* ToString(WireStatus status);

// A key without its namespace, which the frame names once.
struct WireKey {
  Digest digest;
  uint16_t shard = 0;
  auto operator<=>(const WireKey&) const = default;
};

struct HelloFrame {
  SessionToken token{};
};
struct HelloReplyFrame {
  WireStatus status = WireStatus::kOk;
};
struct MatchFrame {
  NamespaceId ns;
  bool count_use = false;
  uint32_t lease_ms = 0;  // 0: no lease
  std::vector<WireKey> keys;
};
struct MatchReplyFrame {
  WireStatus status = WireStatus::kOk;  // kAskAgain: the run may be longer in a moment
  uint64_t lease = 0;                   // 0: none granted
  std::vector<Tier> tiers;              // one per key of the leading run
};
struct GetItem {
  WireKey key;
  uint16_t first_segment = 0;
  uint16_t segment_count = 0;  // 0: the whole block
};
struct GetFrame {
  NamespaceId ns;
  uint32_t deadline_ms = 0;  // after which nobody waits for a reply any more
  std::vector<GetItem> items;
};
struct BlockFrame {  // payload: the segments asked for, when kOk
  uint16_t index = 0;
  WireStatus status = WireStatus::kOk;
  std::vector<std::byte> envelope;  // encoded; empty unless kOk
};
struct ReserveItem {
  WireKey key;
  BlockShape shape;
  uint32_t depth = 0;
  uint16_t opaque_bytes = 0;
};
struct ReserveFrame {
  NamespaceId ns;
  uint32_t deadline_ms = 0;  // after which the node may give the places back
  std::vector<ReserveItem> items;
};
struct ReserveReplyFrame {
  struct Item {
    WireStatus status = WireStatus::kOk;
    uint64_t reservation = 0;  // non-zero when kOk
  };
  std::vector<Item> items;
};
// Payload: the block's bytes. The envelope, whose generation is the node's to set, is in the frame,
// or (then the frame's is empty) behind the bytes, where it costs a streaming writer no time.
struct ValueFrame {
  uint16_t index = 0;
  uint64_t reservation = 0;
  std::vector<std::byte> envelope;
};
// The node looks for a place as the frame arrives, and throws the bytes away where it finds none or
// has the block: one round trip less, for a block that is probably new. Payload as in Value.
struct PutFrame {
  NamespaceId ns;
  uint32_t deadline_ms = 0;
  ReserveItem item;
  std::vector<std::byte> envelope;
};
struct PutReplyFrame {
  uint16_t index = 0;
  WireStatus status = WireStatus::kOk;
};
struct TouchFrame {
  NamespaceId ns;
  std::vector<WireKey> keys;
};
struct ReleaseFrame {
  uint64_t lease = 0;
};
struct CancelFrame {};  // the header's request id says which
// Answered when the blocks survive a kill and a power cut (kOk), or when it is known that they do
// not: kMiss, kNotDurable, kAskAgain (a block is on its way between tiers).
struct PersistFrame {
  NamespaceId ns;
  std::vector<WireKey> keys;
};

// Places of blocks, to be read while the lease lasts. Answered as the blocks are found, several in
// one frame; blocks on ssd come later than the others.
struct LendFrame {
  NamespaceId ns;
  uint32_t deadline_ms = 0;        // as in Get
  uint32_t lease_ms = 0;           // the longest that any place is wanted for
  std::vector<uint64_t> released;  // leases that end before this begins
  std::vector<WireKey> keys;
};
struct LentFrame {
  struct Item {
    uint16_t index = 0;
    WireStatus status = WireStatus::kOk;  // kOverloaded: nothing more is lent now, Get may do
    uint64_t value = 0, envelope = 0;     // offsets in the node's memory, when kOk
    uint64_t generation = 0;              // of the envelope
  };
  uint64_t lease = 0;  // 0: of no item
  std::vector<Item> items;
};

// Put or Value whose bytes lie in the session's landing memory, where they stay as they are until
// the reply.
struct LandedFrame {
  NamespaceId ns;
  uint32_t deadline_ms = 0;
  uint16_t index = 0;        // as in Value
  uint64_t reservation = 0;  // 0: as in Put
  ReserveItem item;
  uint64_t offset = 0;  // in the landing memory
  std::vector<std::byte> envelope;
};

using FrameBody = std::variant<HelloFrame, HelloReplyFrame, MatchFrame, MatchReplyFrame, GetFrame,
                               BlockFrame, ReserveFrame, ReserveReplyFrame, ValueFrame,
                               PutReplyFrame, TouchFrame, ReleaseFrame, CancelFrame, PutFrame,
                               PersistFrame, LendFrame, LentFrame, LandedFrame>;

struct Frame {
  uint64_t request_id = 0;
  FrameBody body;
};

// Lists within bounds (checked by assertion): the caller splits batches.
std::vector<std::byte> Encode(uint64_t request_id, const FrameBody& body);

// InvalidArgument says what is wrong. Never aborts, whatever the bytes.
absl::StatusOr<Frame> Decode(ByteSpan bytes);

}  // namespace terrace
