// Unix sockets between processes of one machine: packets, descriptors that travel with them, and
// who the peer is. No call blocks longer than it is told to.
//
// Addresses: "/a/path" or "@name", which is abstract: it needs no folder and leaves nothing behind,
// but is seen in its network namespace only.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/bytes.h"
#include "proto/descriptor.h"

namespace terrace {

// Equal on two processes means the same machine, since the same start of it. "" where the kernel
// does not tell.
std::string MachineId();

// InvalidArgument: not an address, or longer than 107 bytes. Nothing else is checked.
absl::Status CheckLocalAddress(const std::string& address);

// Listens; a socket that nobody listens at any more is replaced. AlreadyExists: somebody does;
// PermissionDenied and Unavailable name the path and the reason.
absl::StatusOr<Descriptor> ListenLocal(const std::string& address);
// The next connection; Unavailable when there is none now. Never blocks.
absl::StatusOr<Descriptor> AcceptLocal(const Descriptor& listener);
// Unavailable: nobody listens there, or does not take more connections.
absl::StatusOr<Descriptor> ConnectLocal(const std::string& address);

// Two ends of one connection, for a process and its child. Sending blocks, for a second at most.
absl::StatusOr<std::pair<Descriptor, Descriptor>> LocalPair();

struct LocalPacket {
  std::vector<std::byte> bytes;
  std::vector<Descriptor> descriptors;
};

constexpr size_t kMaxPacketDescriptors = 2;

// Unavailable: the peer is gone, or does not read.
absl::Status SendPacket(const Descriptor& socket, ByteSpan bytes,
                        std::span<const Descriptor> descriptors = {});
// A packet of at most `most` bytes; descriptors past the bound are closed. DeadlineExceeded
// after `timeout` without one; Unavailable: the peer is gone; InvalidArgument: a longer packet.
absl::StatusOr<LocalPacket> ReceivePacket(const Descriptor& socket, size_t most,
                                          absl::Duration timeout);

// The user that the peer ran as when it connected.
absl::StatusOr<uid_t> PeerUser(const Descriptor& socket);

}  // namespace terrace
