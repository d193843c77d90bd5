// A client put together from given parts, so that tests can replace the wire and the node.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/control_channel.h"
#include "cluster/transport.h"

namespace terrace {

struct ClientParts {
  std::unique_ptr<ControlChannel> control;
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(TransportHandler*)> make_transport;
  // What these speak, as Network::name says it. Empty: whatever the node does.
  std::string transport;
  // A node's data address in the form that the transport connects to. Called on the control
  // channel's thread, and may wait there for the system's resolver. Empty: taken as it is.
  std::function<absl::StatusOr<std::string>(const std::string&)> resolve;
};

// Client::Connect with these parts.
absl::StatusOr<std::unique_ptr<Client>> ConnectWith(const ClientOptions& options,
                                                    ClientParts parts);

}  // namespace terrace
