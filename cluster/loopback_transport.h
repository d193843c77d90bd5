// The in-process twin of the transports: same contract, same threads, no sockets. Tests use it to
// lose connections at chosen moments.
#pragma once

#include <memory>

#include "cluster/transport.h"

namespace terrace {

// The wires between loopback transports; outlives them. Addresses look like "loopback:7".
class LoopbackNetwork {
 public:
  static std::unique_ptr<LoopbackNetwork> Create();
  virtual ~LoopbackNetwork() = default;

  // Faults. A frozen address neither receives nor answers, and keeps its connections open.
  virtual void Freeze(const std::string& address, bool frozen) = 0;
  // Payloads towards `address` are cut after `bytes` more bytes and the connection is lost.
  virtual void CutAfter(const std::string& address, uint64_t bytes) = 0;
};

struct LoopbackTransportOptions {
  uint32_t max_queued_messages = 4096;
  // Payloads arrive in pieces of this size.
  uint32_t piece_bytes = 64 << 10;
  bool streams = true;  // what streams() says; nothing else depends on it here
};

std::unique_ptr<Transport> CreateLoopbackTransport(LoopbackNetwork* network,
                                                   LoopbackTransportOptions options,
                                                   TransportHandler* handler);

}  // namespace terrace
