// The receiving half of one TCP connection. Lives on the transport's thread.
//
// The kernel puts a payload's bytes straight where they land. Headers and frames come through a
// buffer that the loop's connections share, many of them at once where they are small; of a payload
// only what comes along with its header is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/landing_writer.h"
#include "cluster/message_header.h"
#include "cluster/transport.h"
#include "cluster/transport_counters.h"

namespace terrace {

// Holds the longest header and frame, and is worth a system call.
constexpr size_t kReceiveBufferBytes = 64 << 10;

class TcpReceiver {
 public:
  // `greeted` judges each greeting that arrives.
  TcpReceiver(ConnectionId connection, TransportHandler* handler, TransportCounters* counters,
              absl::AnyInvocable<absl::Status(MessageKind)> greeted);

  // The peer has greeted; messages are welcome.
  void Open() { open_ = true; }

  // Takes what has arrived, up to a turn's worth; `buffer` is only used meanwhile. InvalidArgument
  // when the peer does not speak the protocol, FailedPrecondition when it speaks another version of
  // it, Unavailable when it is gone.
  absl::Status Read(int fd, MutableByteSpan buffer);

  // Fails the landing in progress. The kernel writes within Read only, so that the memory is
  // nobody's from then on.
  void Fail(const absl::Status& why);

 private:
  absl::StatusOr<size_t> ReadPayload(int fd, MutableByteSpan buffer, size_t* asked);
  absl::StatusOr<size_t> ReadMessages(int fd, MutableByteSpan buffer, size_t* asked);
  absl::Status TakeMessages(ByteSpan bytes);
  absl::Status TakeRest(ByteSpan* bytes);
  absl::StatusOr<bool> TakeHeader(ByteSpan* bytes);
  void TakePayload(ByteSpan* bytes);
  void PayloadArrived(uint64_t bytes);
  size_t BufferBytes() const;

  const ConnectionId connection_;
  TransportHandler* const handler_;
  TransportCounters* const counters_;
  absl::AnyInvocable<absl::Status(MessageKind)> greeted_;

  bool open_ = false;
  std::vector<std::byte> begun_;     // a header and frame that are not complete yet
  LandingWriter writer_;             // of the payload that arrives
  uint64_t payload_left_ = 0;        // of it
  uint64_t last_payload_bytes_ = 0;  // what is expected to come again
};

}  // namespace terrace
