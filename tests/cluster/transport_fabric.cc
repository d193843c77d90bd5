#include "tests/cluster/transport_fabric.h"

#include <cstdlib>

#include "cluster/tcp_transport.h"
#include "fmt/format.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

std::unique_ptr<Transport> Made(absl::StatusOr<std::unique_ptr<Transport>> transport) {
  if (transport.ok()) return *std::move(transport);
  ADD_FAILURE() << transport.status();
  std::abort();
}

std::unique_ptr<UcxContext> context;

UcxContext* SharedContext() {
  if (context != nullptr) return context.get();
  // Naming the transports is how an operator gets rendezvous without an RDMA device.
  setenv("UCX_TLS", "tcp", /*overwrite=*/0);
  auto made = UcxContext::Create();
  if (!made.ok()) {
    ADD_FAILURE() << made.status();
    std::abort();
  }
  context = *std::move(made);
  return context.get();
}

class DestroyContext : public testing::Environment {
 public:
  void TearDown() override { context.reset(); }
};
[[maybe_unused]] const auto* const kDestroyContext =
    testing::AddGlobalTestEnvironment(new DestroyContext);

}  // namespace

std::string ToString(FabricKind kind) {
  switch (kind) {
    case FabricKind::kLoopback:
      return "Loopback";
    case FabricKind::kTcp:
      return "Tcp";
    case FabricKind::kUcx:
      return "Ucx";
  }
  return "";
}

TransportFabric::TransportFabric(FabricKind kind) : kind_(kind) {
  if (kind == FabricKind::kLoopback) network_ = LoopbackNetwork::Create();
}

std::unique_ptr<Transport> TransportFabric::Make(TransportHandler* handler,
                                                 uint32_t max_queued_messages,
                                                 uint32_t max_connections) {
  if (kind_ == FabricKind::kLoopback) {
    return CreateLoopbackTransport(network_.get(), {.max_queued_messages = max_queued_messages},
                                   handler);
  }
  if (kind_ == FabricKind::kTcp) {
    return Made(CreateTcpTransport(
        {.max_queued_messages = max_queued_messages, .max_connections = max_connections}, handler));
  }
  return Made(CreateUcxTransport(
      SharedContext(),
      {.max_queued_messages = max_queued_messages, .max_connections = max_connections}, handler));
}

}  // namespace terrace
