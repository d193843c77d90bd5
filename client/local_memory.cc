#include "client/local_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "cluster/local_socket.h"
#include "fmt/format.h"
#include "proto/local_memory.h"
#include "proto/status.h"

namespace terrace {

absl::StatusOr<std::shared_ptr<const LocalMemory>> LocalMemory::Open(const std::string& address,
                                                                     const SessionToken& token,
                                                                     absl::Duration timeout) {
  TERRACE_ASSIGN_OR_RETURN(const Descriptor socket, ConnectLocal(address));
  TERRACE_RETURN_IF_ERROR(SendPacket(socket, Encode(LocalHello{token}), nullptr));
  TERRACE_ASSIGN_OR_RETURN(const LocalPacket packet,
                           ReceivePacket(socket, kMaxLocalPacketBytes, timeout));
  TERRACE_ASSIGN_OR_RETURN(const LocalWelcome welcome, DecodeLocalWelcome(packet.bytes));
  if (welcome.status != WireStatus::kOk || packet.descriptors.empty()) {
    return absl::UnavailableError("the node does not share its memory with this process");
  }
  // A file that could become shorter would kill who reads what is cut off.
  const int fd = packet.descriptors.front().get();
  struct stat file {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &file) != 0 || welcome.bytes == 0 ||
      static_cast<uint64_t>(file.st_size) < welcome.bytes) {
    return absl::DataLossError("what the node shares is no sealed memory of the size it tells");
  }
  void* const at = mmap(nullptr, welcome.bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) {
    return absl::UnavailableError(
        fmt::format("mapping {} bytes: {}", welcome.bytes, std::strerror(errno)));
  }
  madvise(at, welcome.bytes, MADV_DONTDUMP);
  return std::make_shared<const LocalMemory>(
      ByteSpan(static_cast<const std::byte*>(at), welcome.bytes));
}

LocalMemory::~LocalMemory() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace terrace
