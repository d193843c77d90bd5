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
};

// Client::Connect with these parts.
absl::StatusOr<std::unique_ptr<Client>> ConnectWith(const ClientOptions& options,
                                                    ClientParts parts);

}  // namespace terrace
