// The transport between processes that have RDMA, on UCX (openucx.org, 1.13 or newer).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cluster/transport.h"

namespace terrace {

// One UCX context per process, shared by its transports. Thread-safe; outlives them. An environment
// that has UCX_TLS chooses UCX's transports itself, and is taken at its word. Both sides of a
// connection need the same settings.
class UcxContext {
 public:
  // A process that listens takes its port back at once after a crash, instead of when its old
  // connections have left TIME_WAIT. Changes the environment: call it before there are threads.
  static void LetListenersReusePorts();
  // Unavailable with UCX's own words when there is no RDMA device, or none that UCX can use.
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create();
  virtual ~UcxContext() = default;
  virtual std::string version() const = 0;
};

struct UcxTransportOptions {
  std::string thread_name = "terrace-io";
  // Payload bytes of one connection handed to UCX and not yet completed; at least one message.
  uint64_t max_in_flight_bytes = 8 << 20;
  uint32_t max_queued_messages = 4096;
  uint32_t max_connections = 1024;
  // How long the loop spins after something has happened before it sleeps: a little more than what
  // a wake-up takes. An idle transport uses no CPU whatever this is.
  absl::Duration spin = absl::Microseconds(50);
};

// `handler` outlives the transport. The loop's thread runs from here to Shutdown. A transport
// speaks IPv4 or IPv6 (UCX carries one family per context, and none on ::1). It chooses by its
// first address, and anew when it has no connection and does not listen; an address of the other
// family is a FailedPrecondition. UCX's ports trust whoever reaches them: garbage aborts the
// process.
// FailedPrecondition in a forked child; ResourceExhausted without descriptors or threads.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(UcxContext* context,
                                                              UcxTransportOptions options,
                                                              TransportHandler* handler);

}  // namespace terrace
