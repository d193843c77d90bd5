// The sending half of one TCP connection: its queue, and how far the kernel has taken it. Lives on
// the transport's thread.
//
// Bytes go from where they are to the kernel, in batches of about kBatchBytes: small messages share
// one, a large one takes several, and what `sending` computes runs over each part just before the
// kernel copies it, so that it is read from memory once.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <deque>

#include "cluster/message_header.h"
#include "cluster/transport.h"
#include "cluster/transport_counters.h"

namespace terrace {

class TcpSender {
 public:
  enum class State {
    kIdle,     // nothing is left
    kMore,     // its turn is over
    kBlocked,  // the kernel has no room: Write again when the socket is writable
  };

  // `ready` is called when Write has something to do.
  TcpSender(uint32_t max_queued_messages, TransportCounters* counters,
            absl::AnyInvocable<void()> ready);

  // Goes out before any message.
  void Greet(MessageKind kind);
  // The peer has greeted; messages may go.
  void Open();
  // ResourceExhausted or InvalidArgument go to `sent` at once.
  void Enqueue(OutgoingMessage message);

  // Unavailable when the connection is lost.
  absl::StatusOr<State> Write(int fd);

  // The kernel has a part of a message only: nobody can use it.
  bool torn() const { return !queue_.empty() && queue_.front().left < queue_.front().wire_bytes; }
  // Tells every message that is left.
  void FailAll(const absl::Status& why);

 private:
  struct Outbound {
    uint64_t payload_bytes() const {
      return wire_bytes - kMessageHeaderBytes - message.frame.size();
    }

    OutgoingMessage message;
    std::array<std::byte, kMessageHeaderBytes> header;
    uint64_t wire_bytes = 0;
    uint64_t left = 0;  // bytes that the kernel has not taken
    bool greeting = false;
    bool begun = false;  // its header has gone into a batch
  };

  static Outbound Make(MessageKind kind, OutgoingMessage message, uint64_t payload_bytes);
  bool MayFill() const;
  void FillBatch();
  uint64_t AddPayload(Outbound* outbound, uint64_t room);
  void AddSpan(ByteSpan bytes);
  void Taken(uint64_t bytes);
  void Retire(uint64_t bytes);

  static constexpr size_t kMaxSpans = 64;

  const uint32_t max_queued_messages_;
  TransportCounters* const counters_;
  absl::AnyInvocable<void()> ready_;

  bool open_ = false;
  std::deque<Outbound> queue_;  // in order; leaves from the front when the kernel has it
  // What goes into the next batch: the message, and where in its payload.
  size_t next_ = 0;
  size_t next_part_ = 0;
  size_t next_skip_ = 0;
  // The batch: what the kernel is offered and has not taken.
  std::array<iovec, kMaxSpans> batch_;
  size_t batch_begin_ = 0, batch_end_ = 0;
};

}  // namespace terrace
