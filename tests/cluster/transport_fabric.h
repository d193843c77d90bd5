// The transports under test, one way to make each.
#pragma once

#include <memory>
#include <string>

#include "cluster/loopback_transport.h"
#include "cluster/transport.h"
#include "cluster/ucx_transport.h"

namespace terrace {

enum class FabricKind { kLoopback, kTcp, kUcx };
std::string ToString(FabricKind kind);

// UCX runs over tcp lanes where there is no RDMA device. Its context is made on first use, and
// destroyed when the tests have ended.
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
