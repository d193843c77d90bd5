#include "cluster/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr int kBacklog = 1024;
// A peer whose machine is gone is noticed within ten seconds, also by who only waits for it.
constexpr int kKeepAliveIdleSeconds = 2;
constexpr int kKeepAliveIntervalSeconds = 1;
constexpr int kKeepAliveProbes = 8;

void Set(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

absl::StatusOr<SocketAddress> AddressOf(int fd, NameOf name) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (name(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return FromErrno(errno, "socket address");
  }
  return address;
}

// Whether both ends are this machine.
bool StaysHere(int fd) {
  const auto local = AddressOf(fd, &getsockname);
  const auto peer = AddressOf(fd, &getpeername);
  if (!local.ok() || !peer.ok()) return false;
  return IsLoopback(*peer) || HostOf(local->get()) == HostOf(peer->get());
}

}  // namespace

absl::Status FromErrno(int error, std::string_view what) {
  return absl::UnavailableError(fmt::format("{}: {}", what, std::strerror(error)));
}

absl::StatusOr<TcpSocket> TcpSocket::Listen(const SocketAddress& address, const std::string& text) {
  TcpSocket listener(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.open()) return FromErrno(errno, fmt::format("listen on {}", text));
  Set(listener.fd_, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(listener.fd_, address.get(), address.length) != 0 ||
      listen(listener.fd_, kBacklog) != 0) {
    return FromErrno(errno, fmt::format("listen on {}", text));
  }
  return listener;
}

absl::StatusOr<TcpSocket> TcpSocket::Connect(const SocketAddress& address) {
  TcpSocket connecting(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!connecting.open()) {
    return absl::ResourceExhaustedError(fmt::format("connect: {}", std::strerror(errno)));
  }
  if (connect(connecting.fd_, address.get(), address.length) != 0 && errno != EINPROGRESS) {
    return FromErrno(errno, "connect");
  }
  return connecting;
}

TcpSocket TcpSocket::Accept(const TcpSocket& listener) {
  return TcpSocket(accept4(listener.fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

void TcpSocket::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void TcpSocket::Abort() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  Close();
}

int TcpSocket::ConnectError() const {
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

void TcpSocket::Tune() const {
  Set(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd_, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd_, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  Set(fd_, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  Set(fd_, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  if (!StaysHere(fd_)) return;
  // Machines that talk across a WAN often have bbr, which paces to a bandwidth that it estimates.
  // Within a machine there is no link to estimate: pacing only adds timers between the bytes.
  for (const std::string_view control : {"cubic", "reno"}) {
    if (setsockopt(fd_, IPPROTO_TCP, TCP_CONGESTION, control.data(), control.size()) == 0) return;
  }
}

absl::StatusOr<SocketAddress> TcpSocket::LocalAddress() const {
  return AddressOf(fd_, &getsockname);
}

}  // namespace terrace
