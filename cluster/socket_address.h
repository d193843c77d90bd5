// "host:port" and "[v6]:port" as the system's socket addresses, and back.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"

namespace terrace {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Numeric addresses never block. A host name is resolved on the caller's thread and may wait for
// the resolver. InvalidArgument: not host:port, or a name where `numeric_only`; Unavailable: the
// name cannot be resolved now.
absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& text, bool numeric_only);

// The address alone, without its port, in network order; "" for none and for other families.
std::string HostOf(const sockaddr* address);

// The network interface that has `address`, "lo" for example; "" when none has (a wildcard, or
// another machine's address).
std::string InterfaceOf(const SocketAddress& address);
bool IsLoopback(const SocketAddress& address);

// Numeric, in the form that ParseSocketAddress reads.
std::string FormatSocketAddress(const sockaddr_storage& address);

}  // namespace terrace
