#include "tests/cluster/transport_fabric.h"

#include <cstdlib>
#include <map>

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

std::map<UcxProfile, std::unique_ptr<UcxContext>>& Contexts() {
  static std::map<UcxProfile, std::unique_ptr<UcxContext>> contexts;
  return contexts;
}

class DestroyContexts : public testing::Environment {
 public:
  void TearDown() override { Contexts().clear(); }
};
[[maybe_unused]] const auto* const kDestroyContexts =
    testing::AddGlobalTestEnvironment(new DestroyContexts);

}  // namespace

std::string ToString(FabricKind kind) {
  switch (kind) {
    case FabricKind::kLoopback:
      return "Loopback";
    case FabricKind::kTcp:
      return "Tcp";
    case FabricKind::kUcxTcp:
      return "UcxTcp";
    case FabricKind::kUcxRendezvous:
      return "UcxRendezvous";
  }
  return "";
}

UcxContext* SharedUcxContext(UcxProfile profile) {
  auto& context = Contexts()[profile];
  if (context != nullptr) return context.get();
  // Naming the transports is how an operator gets rendezvous without an RDMA device.
  setenv("UCX_TLS", "tcp", /*overwrite=*/0);
  auto made = UcxContext::Create(profile);
  if (!made.ok()) {
    ADD_FAILURE() << made.status();
    std::abort();
  }
  context = *std::move(made);
  return context.get();
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
  UcxContext* const context =
      SharedUcxContext(kind_ == FabricKind::kUcxTcp ? UcxProfile::kTcp : UcxProfile::kRdma);
  return Made(CreateUcxTransport(
      context, {.max_queued_messages = max_queued_messages, .max_connections = max_connections},
      handler));
}

}  // namespace terrace
