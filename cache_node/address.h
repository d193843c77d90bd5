// Listening addresses: "127.0.0.1:7470", "[::1]:7470", "localhost:0". Only numbers and
// "localhost", so that what is bound never depends on a name service.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/descriptor.h"

namespace terrace {

struct HostPort {
  std::string host;   // numeric, without brackets
  uint16_t port = 0;  // 0: any free one
};

// InvalidArgument says what was expected.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

// With brackets where the host is IPv6. `host` may also be a name (an advertised one).
std::string JoinHostPort(std::string_view host, uint16_t port);

bool IsLoopback(std::string_view host);
bool IsWildcard(std::string_view host);  // 0.0.0.0 or ::

// Binds the port (0: chooses one) without listening at it: who listens there, however often he dies
// and comes again, finds it free, while the system gives it to nobody who asks for any port.
// Unavailable has the system's reason.
absl::StatusOr<Descriptor> HoldPort(HostPort* address);

}  // namespace terrace
