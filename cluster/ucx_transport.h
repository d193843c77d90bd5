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

// One UCX context per process, shared by its transports. Thread-safe; outlives them.
class UcxContext {
 public:
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
  // How long the loop spins for completions while operations are in flight before it sleeps.
  absl::Duration spin = absl::ZeroDuration();
};

// `handler` outlives the transport. The loop's thread runs from here to Shutdown.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(UcxContext* context,
                                                              UcxTransportOptions options,
                                                              TransportHandler* handler);

}  // namespace terrace
