#include "cluster/socket_address.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

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

std::string HostOf(const sockaddr* address) {
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    const in_addr& host = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return {reinterpret_cast<const char*>(&host), sizeof(host)};
  }
  if (address->sa_family == AF_INET6) {
    const in6_addr& host = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return {reinterpret_cast<const char*>(&host), sizeof(host)};
  }
  return "";
}

std::string InterfaceOf(const SocketAddress& address) {
  // All of 127/8 is lo's, though it lists 127.0.0.1 alone.
  SocketAddress wanted = address;
  if (IsLoopback(address) && address.storage.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&wanted.storage)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(all, &freeifaddrs);
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (HostOf(at->ifa_addr) != HostOf(wanted.get())) continue;
    const std::string name = at->ifa_name;
    return name.substr(0, name.find(':'));  // an address may have a label: "eth0:1"
  }
  return "";
}

bool IsLoopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
}

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
