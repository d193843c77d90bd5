// An operation's life on the I/O thread: it asks for room, sends frames, judges replies, and
// ends. Implementations: get_task, put_task, match_task.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "cluster/transport.h"
#include "proto/frame.h"

namespace terrace {

class DataChannel;

// What became of a turn to send.
enum class Turn {
  kSent,     // one frame; give me another turn
  kNoRoom,   // nothing yet: the node's bounds or the wire are full; keep my place
  kNothing,  // nothing to send until a reply comes
};

// What an answer of the node means to the caller.
Outcome ToOutcome(WireStatus status);
// Until `deadline` of Clock::Real(), as frames carry it; at least 1.
uint32_t MillisecondsUntil(absl::Duration deadline);

class Task {
 public:
  Task(uint64_t id, absl::Duration deadline) : id_(id), deadline_(deadline) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  uint64_t id() const { return id_; }
  absl::Duration deadline() const { return deadline_; }  // of Clock::Real()

  // Whether its requests move blocks. Those that do not are served first, and never wait.
  virtual bool needs_room() const { return true; }
  // Turns that were asked for with DataChannel::WantTurn and WantSend: one request, one value.
  virtual Turn SendRequest(DataChannel& channel) = 0;
  virtual Turn SendValue(DataChannel&) { return Turn::kNothing; }

  // A reply to `request`, which this task opened. Its payload goes to `landing`; left as it is,
  // the bytes are thrown away. An error means that the node does not speak the protocol; the
  // connection is closed. The channel calls Settle afterwards.
  virtual absl::Status OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                               uint64_t payload_bytes, Landing* landing) = 0;

  // Ends with `why` all that is not final. What the transport still holds memory of ends when
  // it lets go. Harmless when repeated.
  virtual void Abandon(DataChannel& channel, Outcome why) = 0;

  // Every outcome is final and the transport holds no memory of this task.
  virtual bool finished() const = 0;
  // Tells whoever waits. Called once; the task is destroyed afterwards.
  virtual void Complete(DataChannel& channel) = 0;

 private:
  const uint64_t id_;
  const absl::Duration deadline_;
};

}  // namespace terrace
