// How a process's bytes travel: over the kernel's TCP sockets, or by UCX where there is RDMA.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cluster/transport.h"

namespace terrace {

struct NetworkTransportOptions {
  std::string thread_name;
  uint32_t max_connections = 1024;
};

// Thread-safe; outlives the transports it makes. UCX is only started where it carries something.
class Network {
 public:
  // `transport` is "tcp", "rdma", or "auto": rdma where a device is there and UCX can use it, else
  // tcp. InvalidArgument: none of them. Unavailable, in UCX's words: rdma is not to be had.
  static absl::StatusOr<std::unique_ptr<Network>> Create(const std::string& transport);
  virtual ~Network() = default;

  // "tcp" or "rdma". They do not understand each other: both sides of a connection need the same.
  virtual std::string name() const = 0;
  // Why this one, for people: "asked for", or what `auto` has found.
  virtual std::string reason() const = 0;
  // Whether there is a device that `auto` could not use.
  virtual bool fell_back() const = 0;
  virtual std::string ucx_version() const = 0;  // "" where UCX is not used
  // See CreateTcpTransport and CreateUcxTransport.
  virtual absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(NetworkTransportOptions options,
                                                                   TransportHandler* handler) = 0;
};

}  // namespace terrace
