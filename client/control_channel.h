// The session with a node: opened over the control plane, watched by its heartbeats, opened
// again when it breaks. Knows no data connection.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/session.h"

namespace terrace {

// A session's life, told on the channel's own thread, in turns: opened, lost, opened, lost, …
// An attempt that fails is told as lost, too.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  // An error says that the session is of no use: it is ended, and another is tried after a pause
  // that grows.
  virtual absl::Status OnSessionOpened(const SessionInfo& session) = 0;
  // The node is about to stop: nothing new may be sent, what is in flight will be answered.
  virtual void OnSessionEnding() = 0;
  // Broken, or silent for longer than kLongestSilence. The next attempt follows by itself.
  virtual void OnSessionLost(const absl::Status& why) = 0;
};

// Nodes send a heartbeat every second.
constexpr absl::Duration kLongestSilence = absl::Milliseconds(2500);

class ControlChannel {
 public:
  virtual ~ControlChannel() = default;  // after Stop

  // Opens the first session, from a thread of its own. `listener` outlives Stop().
  virtual void Start(SessionListener* listener) = 0;

  // Blocks, at most `timeout`. May be called from the listener. Status as in client.h.
  virtual absl::StatusOr<Namespace> OpenNamespace(const NamespaceDefinition& definition,
                                                  absl::Duration timeout) = 0;

  // Gives the present session up and opens another, as if it had broken. Does not block.
  virtual void Renew() = 0;

  // No event follows its return. Not from the listener. Idempotent.
  virtual void Stop() = 0;
};

// Over gRPC. InvalidArgument: a file cannot be read, an option misses its partner.
absl::StatusOr<std::unique_ptr<ControlChannel>> CreateControlChannel(const ClientOptions& options);

}  // namespace terrace
