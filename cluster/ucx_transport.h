// The transport between processes, on UCX (openucx.org, 1.13 or newer).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cluster/transport.h"

namespace terrace {

enum class UcxProfile {
  kAuto,  // rdma where an RDMA device is there, else tcp
  kTcp,   // eager, buffered copies: the only way in which killed peers never abort the process
  kRdma,  // rendezvous, zero copy
};

// One UCX context per process, shared by its transports. Thread-safe; outlives them. An
// environment that has UCX_TLS chooses the transports itself: kRdma is then taken at its word,
// kAuto means kTcp. Both sides of a connection need the same profile and settings.
class UcxContext {
 public:
  // A process that listens takes its port back at once after a crash, instead of when its old
  // connections have left TIME_WAIT. Changes the environment: call it before there are threads.
  static void LetListenersReusePorts();
  // Unavailable with UCX's own words when the profile's transports are not there.
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create(UcxProfile profile);
  virtual ~UcxContext() = default;
  virtual UcxProfile profile() const = 0;  // never kAuto
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
// speaks IPv4 or IPv6 (UCX carries one family per context, and none on ::1), and over tcp it keeps
// to one interface where it listens on an address of one or connects to a loopback address, so that
// UCX opens no port elsewhere. It chooses by its first address, and anew when it has no connection
// and does not listen; an address that the choice does not serve is a FailedPrecondition.
// FailedPrecondition in a forked child; ResourceExhausted without descriptors or threads.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(UcxContext* context,
                                                              UcxTransportOptions options,
                                                              TransportHandler* handler);

}  // namespace terrace
