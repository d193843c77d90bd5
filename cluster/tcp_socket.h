// The kernel's TCP sockets as the TCP transport uses them: non-blocking, never inherited, closed by
// their owner.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "cluster/socket_address.h"

namespace terrace {

class TcpSocket {
 public:
  TcpSocket() = default;
  explicit TcpSocket(int fd) : fd_(fd) {}
  ~TcpSocket() { Close(); }
  TcpSocket(TcpSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }

  // Listens on `address`, also where the port's old connections linger in TIME_WAIT. Unavailable,
  // with the address in the caller's words (`text`), when it is in use or not ours.
  static absl::StatusOr<TcpSocket> Listen(const SocketAddress& address, const std::string& text);
  // Starts to connect; the socket becomes writable when that has ended, see ConnectError.
  static absl::StatusOr<TcpSocket> Connect(const SocketAddress& address);
  // The next peer that waits, or a socket that is not open and why in errno.
  static TcpSocket Accept(const TcpSocket& listener);

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void Close();
  // Like Close, and what the kernel still holds of ours is thrown away.
  void Abort();

  // Why connecting has failed, an errno; 0 when it has not.
  int ConnectError() const;
  // Settings for a connection to `peer`: no delays, death noticed, this machine's own traffic not
  // paced. Best effort: a kernel that refuses one serves all the same.
  void Tune() const;
  absl::StatusOr<SocketAddress> LocalAddress() const;

 private:
  int fd_ = -1;
};

// Unavailable, in the kernel's words for `error`.
absl::Status FromErrno(int error, std::string_view what);

}  // namespace terrace
