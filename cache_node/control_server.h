// The control plane: gRPC service for workers' sessions and for operators (proto/control.proto),
// and gRPC's standard health service. No gRPC type appears here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_node/mover.h"
#include "cache_node/namespace_table.h"
#include "cache_node/options.h"
#include "cache_node/scrubber.h"
#include "cache_node/security.h"
#include "cache_node/session_table.h"
#include "cache_node/tiered_store.h"
#include "proto/control.pb.h"
#include "proto/metrics.h"

namespace terrace {

// What the services work on. Everything outlives the server.
struct ControlPlane {
  const Security* security = nullptr;
  SessionTable* sessions = nullptr;
  NamespaceTable* namespaces = nullptr;
  TieredStore* store = nullptr;
  Mover* mover = nullptr;
  Scrubber* scrubber = nullptr;
  MetricRegistry* registry = nullptr;
  // What every session is told; its id, token and tenant are filled in.
  control::v1::SessionOpened welcome;
  std::function<control::v1::NodeStatus()> status;
  std::function<std::vector<control::v1::FolderInfo>()> folders;  // of the ssd tier
  // A session's stream is over: ends the session and closes its data connections.
  std::function<void(uint64_t session_id)> end_session;
};

// Thread-safe. Replies are computed on gRPC's threads; no session has a thread of its own.
class ControlServer {
 public:
  // Unavailable names `address` when it cannot be bound; InvalidArgument when certificate and key
  // do not fit.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& address,
                                                              ControlPlane plane);
  virtual ~ControlServer() = default;  // after Shutdown

  virtual uint16_t port() const = 0;
  // Sends each session a heartbeat, unless its previous event is still on the way.
  virtual void Beat() = 0;
  // Health says NOT_SERVING, sessions hear Goaway, new ones are refused.
  virtual void Goaway(const std::string& reason) = 0;
  // Ends every stream and call within `timeout`.
  virtual void Shutdown(absl::Duration timeout) = 0;
};

}  // namespace terrace
