#include "cluster/local_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr int kBacklog = 64;
// Taken from a packet, to be closed past the bound; more than these the kernel closes.
constexpr size_t kMostDescriptors = 2 * kMaxPacketDescriptors;

struct LocalAddress {
  sockaddr_un socket{};
  socklen_t bytes = 0;
};

absl::StatusOr<LocalAddress> Parse(const std::string& address) {
  LocalAddress parsed;
  parsed.socket.sun_family = AF_UNIX;
  const bool abstract = address.starts_with('@');
  if ((!abstract && !address.starts_with('/')) || address.size() < 2 ||
      address.size() >= sizeof(parsed.socket.sun_path) || address.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        fmt::format("'{}': expected an absolute path or @name, of at most {} bytes", address,
                    sizeof(parsed.socket.sun_path) - 1));
  }
  std::ranges::copy(address, parsed.socket.sun_path);
  if (abstract) parsed.socket.sun_path[0] = '\0';
  parsed.bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size() + (abstract ? 0 : 1));
  return parsed;
}

absl::Status Failed(const std::string& address, int error) {
  const auto code = error == EADDRINUSE                 ? absl::StatusCode::kAlreadyExists
                    : error == EACCES || error == EPERM ? absl::StatusCode::kPermissionDenied
                                                        : absl::StatusCode::kUnavailable;
  return absl::Status(code, fmt::format("{}: {}", address, std::strerror(error)));
}

Descriptor NewSocket() {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

const sockaddr* Generic(const LocalAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.socket);
}

// Whatever came with the message is ours, wanted or not.
std::vector<Descriptor> TakeDescriptors(msghdr* message) {
  std::vector<Descriptor> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

std::string MachineId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

absl::Status CheckLocalAddress(const std::string& address) { return Parse(address).status(); }

absl::StatusOr<Descriptor> ListenLocal(const std::string& address) {
  TERRACE_ASSIGN_OR_RETURN(const LocalAddress parsed, Parse(address));
  Descriptor listener = NewSocket();
  if (!listener) return Failed(address, errno);
  int bound = bind(listener.get(), Generic(parsed), parsed.bytes);
  if (bound != 0 && errno == EADDRINUSE && address.starts_with('/')) {
    struct stat file {};
    const bool stale =
        lstat(address.c_str(), &file) == 0 && S_ISSOCK(file.st_mode) && !ConnectLocal(address).ok();
    if (stale && unlink(address.c_str()) == 0) {
      bound = bind(listener.get(), Generic(parsed), parsed.bytes);
    } else {
      errno = EADDRINUSE;
    }
  }
  if (bound != 0 || listen(listener.get(), kBacklog) != 0) return Failed(address, errno);
  // Who may have what is decided by the session's token, not by the file.
  if (address.starts_with('/')) chmod(address.c_str(), 0666);
  return listener;
}

absl::StatusOr<Descriptor> AcceptLocal(const Descriptor& listener) {
  Descriptor accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted) return Failed("accept", errno);
  return accepted;
}

absl::StatusOr<Descriptor> ConnectLocal(const std::string& address) {
  TERRACE_ASSIGN_OR_RETURN(const LocalAddress parsed, Parse(address));
  Descriptor socket = NewSocket();
  if (!socket || connect(socket.get(), Generic(parsed), parsed.bytes) != 0) {
    return Failed(address, errno);
  }
  return socket;
}

absl::StatusOr<std::pair<Descriptor, Descriptor>> LocalPair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Failed("socketpair", errno);
  }
  std::pair<Descriptor, Descriptor> pair(ends[0], ends[1]);
  const timeval second{1, 0};
  for (const int end : ends) setsockopt(end, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
  return pair;
}

absl::Status SendPacket(const Descriptor& socket, ByteSpan bytes,
                        std::span<const Descriptor> descriptors) {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t count = std::min(descriptors.size(), kMaxPacketDescriptors);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(count * sizeof(int));
    for (size_t i = 0; i < count; ++i) {
      const int fd = descriptors[i].get();
      std::memcpy(CMSG_DATA(part) + i * sizeof(fd), &fd, sizeof(fd));
    }
  }
  if (sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0) return Failed("send", errno);
  return absl::OkStatus();
}

absl::StatusOr<LocalPacket> ReceivePacket(const Descriptor& socket, size_t most,
                                          absl::Duration timeout) {
  pollfd readable{socket.get(), POLLIN, 0};
  const int ready = poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  if (ready == 0) return absl::DeadlineExceededError("no packet in time");
  LocalPacket packet;
  packet.bytes.resize(most);
  iovec piece{packet.bytes.data(), most};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (received < 0) return Failed("receive", errno);
  packet.descriptors = TakeDescriptors(&message);
  if (received == 0) return absl::UnavailableError("the peer closed the connection");
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(fmt::format("a packet of more than {} bytes", most));
  }
  packet.bytes.resize(static_cast<size_t>(received));
  if (packet.descriptors.size() > kMaxPacketDescriptors) {
    packet.descriptors.resize(kMaxPacketDescriptors);
  }
  return packet;
}

absl::StatusOr<uid_t> PeerUser(const Descriptor& socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return Failed("peer", errno);
  }
  return peer.uid;
}

}  // namespace terrace
