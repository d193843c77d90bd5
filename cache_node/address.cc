#include "cache_node/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "fmt/format.h"

namespace terrace {
namespace {

bool ParseIpv4(std::string_view host, in_addr* out) {
  return inet_pton(AF_INET, std::string(host).c_str(), out) == 1;
}

bool ParseIpv6(std::string_view host, in6_addr* out) {
  return inet_pton(AF_INET6, std::string(host).c_str(), out) == 1;
}

socklen_t ToSockaddr(const HostPort& address, sockaddr_storage* out) {
  *out = {};
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(out); ParseIpv4(address.host, &v4->sin_addr)) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    return sizeof(sockaddr_in);
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(out);
  ParseIpv6(address.host, &v6->sin6_addr);
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(address.port);
  return sizeof(sockaddr_in6);
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const auto malformed = [&] {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not an address: expected IP:PORT, for example 127.0.0.1:7470 or [::1]:7470",
        text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return malformed();
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  HostPort address;
  auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size()) return malformed();

  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  in_addr v4;
  in6_addr v6;
  if (bracketed ? !ParseIpv6(host, &v6) : !ParseIpv4(host, &v4)) return malformed();
  address.host = host;
  return address;
}

std::string JoinHostPort(std::string_view host, uint16_t port) {
  const bool brackets = host.find(':') != std::string_view::npos;
  return brackets ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

bool IsLoopback(std::string_view host) {
  in_addr v4;
  if (ParseIpv4(host, &v4)) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return ParseIpv6(host, &v6) && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsWildcard(std::string_view host) {
  in_addr v4;
  if (ParseIpv4(host, &v4)) return v4.s_addr == htonl(INADDR_ANY);
  in6_addr v6;
  return ParseIpv6(host, &v6) && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

absl::StatusOr<Descriptor> HoldPort(HostPort* address) {
  sockaddr_storage storage;
  socklen_t length = ToSockaddr(*address, &storage);
  Descriptor held(socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!held) return absl::UnavailableError(std::strerror(errno));
  // Connections of an earlier run in TIME_WAIT are no obstacle; a listener is.
  const int yes = 1;
  setsockopt(held.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  auto* const generic = reinterpret_cast<sockaddr*>(&storage);
  if (bind(held.get(), generic, length) != 0 || getsockname(held.get(), generic, &length) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  address->port = ntohs(storage.ss_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                            : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  return held;
}

}  // namespace terrace
