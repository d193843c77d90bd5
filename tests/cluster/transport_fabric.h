// The transports under test, one way to make each.
#pragma once

#include <memory>
#include <string>

#include "cluster/loopback_transport.h"
#include "cluster/transport.h"
#include "cluster/ucx_transport.h"

namespace terrace {

enum class FabricKind { kLoopback, kTcp, kUcxTcp, kUcxRendezvous };
std::string ToString(FabricKind kind);

// The process's UCX context of a profile; rendezvous runs over tcp lanes where there is no RDMA
// device. Made on first use, destroyed when the tests have ended.
UcxContext* SharedUcxContext(UcxProfile profile);

class TransportFabric {
 public:
  explicit TransportFabric(FabricKind kind);

  FabricKind kind() const { return kind_; }
  LoopbackNetwork* network() const { return network_.get(); }  // null unless loopback
  std::unique_ptr<Transport> Make(TransportHandler* handler, uint32_t max_queued_messages = 4096,
                                  uint32_t max_connections = 1024);

 private:
  const FabricKind kind_;
  std::unique_ptr<LoopbackNetwork> network_;
};

}  // namespace terrace
