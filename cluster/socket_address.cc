#include "cluster/socket_address.h"

#include <netdb.h>

#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "fmt/format.h"

namespace terrace {
namespace {

struct HostPort {
  std::string host, port;
};

// Splits at the last colon; brackets around the host are required where it holds colons.
absl::StatusOr<HostPort> Split(const std::string& text) {
  const absl::Status broken = absl::InvalidArgumentError(
      fmt::format("address '{}' is not host:port or [v6 host]:port", text));
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return broken;
  HostPort parts{text.substr(0, colon), text.substr(colon + 1)};
  if (parts.host.front() == '[') {
    if (parts.host.size() < 3 || parts.host.back() != ']') return broken;
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (parts.host.find(':') != std::string::npos) {
    return broken;
  }
  unsigned port = 0;
  if (!absl::SimpleAtoi(parts.port, &port) || port > 65535) return broken;
  return parts;
}

}  // namespace

absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& text, bool numeric_only) {
  auto parts = Split(text);
  if (!parts.ok()) return parts.status();
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int error = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found);
  if (error != 0 && !numeric_only) {
    hints.ai_flags = AI_NUMERICSERV;
    error = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found);
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(error == 0 ? found : nullptr,
                                                                 &freeaddrinfo);
  if (error != 0) {
    const std::string message = fmt::format("address '{}': {}", text, gai_strerror(error));
    return numeric_only ? absl::InvalidArgumentError(message) : absl::UnavailableError(message);
  }
  SocketAddress address;
  std::memcpy(&address.storage, owned->ai_addr, owned->ai_addrlen);
  address.length = owned->ai_addrlen;
  return address;
}

std::string FormatSocketAddress(const sockaddr_storage& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const socklen_t length =
      address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return address.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                       : fmt::format("{}:{}", host, port);
}

}  // namespace terrace
