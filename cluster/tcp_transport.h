// The transport between processes on the kernel's TCP sockets.
//
// A payload's bytes go from the kernel straight into its landing, and from the block straight to
// the kernel, which never touches memory of ours outside a call: the moment a connection is closed
// its landings and sources are quiet. IPv4 and IPv6, any interface, in any mixture. Whatever a peer
// sends costs it its own connection at most. Nothing is encrypted.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cluster/transport.h"

namespace terrace {

struct TcpTransportOptions {
  std::string thread_name = "terrace-io";
  uint32_t max_queued_messages = 4096;
  // Of both kinds. A peer past them is told so.
  uint32_t max_connections = 1024;
  // How long the loop spins after something has happened before it sleeps: a little more than what
  // a wake-up takes. An idle transport uses no CPU whatever this is.
  absl::Duration spin = absl::Microseconds(50);
};

// `handler` outlives the transport. The loop's thread runs from here to Shutdown.
// ResourceExhausted without descriptors or threads.
absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(TcpTransportOptions options,
                                                              TransportHandler* handler);

}  // namespace terrace
