// Messages between processes: a small frame, and optionally one block's bytes.
//
// A Transport is one event loop on one thread. It sleeps when nothing is in flight (an
// idle one uses no CPU). A process has one per data thread; they are never shared by threads.
//
// Send carries `frame` (at most kMaxFrameBytes) and a payload of up to kMaxPayloadBytes, gathered
// from several pieces. On the other side the handler sees the frame first and answers where the
// payload lands; bytes go straight there. Messages of one connection arrive in the order in
// which they were sent, each exactly once or (when the connection is lost) not at all; a lost
// connection tears at most the message in the middle, and that one is reported as failed.
//
// | call                | thread             | blocks |
// |---------------------|--------------------|--------|
// | Send, Close, Post…  | any                | no     |
// | Connect, Listen     | any                | Listen: briefly; Connect: no |
// | Shutdown            | any but the loop's | until quiet, at most its deadline plus 100 ms |
// | handler and callbacks | the loop's own; they must not block |
//
// Implementations: the kernel's sockets (tcp_transport.h), UCX (ucx_transport.h) and an in-process
// twin (loopback_transport.h); one contract test runs against all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/bytes.h"
#include "proto/envelope.h"

namespace terrace {

constexpr size_t kMaxFrameBytes = 32 << 10;
// A block and the envelope behind it.
constexpr uint64_t kMaxPayloadBytes = kMaxBlockBytes + kMaxEnvelopeBytes;

// One connection of one transport; never reused within a process. 0 is none.
using ConnectionId = uint64_t;

// Where a payload lands. The pieces' sizes add up to the payload's, or there are none and the
// bytes are thrown away as they arrive. The memory stays valid until `landed` was called.
struct Landing {
  absl::InlinedVector<MutableByteSpan, 1> pieces;
  // Called as bytes have come to rest, in order and without gaps: `bytes` is the part of a piece
  // just written, still warm in the cache. For checksums. May be empty.
  absl::AnyInvocable<void(ByteSpan bytes)> progress;
  // Called exactly once, last: OK when every byte is in place; otherwise nobody writes to the
  // pieces any more and their content is undefined. May be empty.
  absl::AnyInvocable<void(absl::Status)> landed;
};

// What a transport tells its owner; on the transport's thread.
class TransportHandler {
 public:
  virtual ~TransportHandler() = default;

  // A connection that this side asked for is up, or a peer's has been accepted.
  virtual void OnOpen(ConnectionId connection, bool accepted) = 0;
  // `frame` is valid during the call. `payload_bytes` is 0 where there is no payload; then the
  // returned landing is ignored. The frame comes from outside: it may hold anything.
  virtual Landing OnMessage(ConnectionId connection, ByteSpan frame, uint64_t payload_bytes) = 0;
  // Last call for a connection (also for one that never opened): every send has completed and
  // every landing has been told. `why` is OK when this side closed it without a reason.
  virtual void OnClose(ConnectionId connection, const absl::Status& why) = 0;
};

struct OutgoingMessage {
  std::vector<std::byte> frame;
  // Memory stays readable and, apart from what `sending` does, unchanged until `sent` was called.
  absl::InlinedVector<ByteSpan, 1> payload;
  // Called on the transport's thread with each part of the payload, in order and without gaps,
  // before the transport reads it. It may still write to parts of the payload that come later: a
  // checksum of the bytes can travel behind them. May be empty.
  absl::AnyInvocable<void(ByteSpan part)> sending;
  // Called exactly once, on the transport's thread: OK when the transport no longer reads the
  // memory and has handed everything to the wire (not when the peer has it).
  absl::AnyInvocable<void(absl::Status)> sent;
};

struct TransportStats {
  std::string profile;       // "tcp", "rdma" or "loopback", with the lanes in use
  uint64_t connections = 0;  // open now
  uint64_t bytes_sent = 0;   // payload and frames
  uint64_t bytes_received = 0;
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t malformed = 0;          // broken transport headers, each closed its connection
  uint64_t payload_in_flight = 0;  // bytes handed to the wire and not yet completed
};

class Transport {
 public:
  virtual ~Transport() = default;  // after Shutdown

  // Accepts connections on `address` ("127.0.0.1:0", "[::1]:0"); returns the address bound.
  // Once per transport. InvalidArgument: not an address; Unavailable: in use, with its name.
  virtual absl::StatusOr<std::string> Listen(const std::string& address) = 0;

  // Starts a connection to a numeric address; OnOpen or OnClose follows within `timeout`.
  // InvalidArgument: not an address (resolve a name first, on a thread that may wait).
  virtual absl::StatusOr<ConnectionId> Connect(const std::string& address,
                                               absl::Duration timeout) = 0;

  // Queues a message, once the transport's thread has taken it: callers on other threads bound what
  // they have under way. On a closed or unknown connection `sent` gets Unavailable. The queue is
  // bounded (Options::max_queued_messages per connection): past it `sent` gets ResourceExhausted.
  virtual void Send(ConnectionId connection, OutgoingMessage message) = 0;

  // Gives up a connection: sends and landings in progress fail, OnClose(why) comes last, within
  // 100 ms. Closing twice is harmless.
  virtual void Close(ConnectionId connection, absl::Status why) = 0;

  // Runs `work` on the transport's thread, in order. After Shutdown it is destroyed unrun.
  virtual void Post(absl::AnyInvocable<void()> work) = 0;
  // The same, not before `delay` has passed.
  virtual void PostAfter(absl::Duration delay, absl::AnyInvocable<void()> work) = 0;

  // Makes memory known for zero-copy transfers, from now to Unregister or the end. Optional for
  // correctness. Memory must outlive its registration.
  virtual absl::Status Register(MutableByteSpan memory) = 0;
  virtual void Unregister(MutableByteSpan memory) = 0;

  // Whether payloads leave piece by piece, so that `sending` overlaps the wire. Otherwise they
  // leave in one transfer that is fastest into a landing of one piece.
  virtual bool streams() const = 0;

  virtual TransportStats Stats() const = 0;  // thread-safe

  // Closes every connection (OnClose for each), stops the thread. Idempotent.
  virtual void Shutdown(absl::Duration deadline) = 0;
};

}  // namespace terrace
