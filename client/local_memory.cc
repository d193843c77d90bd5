#include "client/local_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "cluster/local_socket.h"
#include "proto/local_memory.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Null unless it is sealed memory of that size: a file that could become shorter would kill who
// touches what is cut off.
void* Map(const Descriptor& fd, uint64_t bytes, int protection) {
  struct stat file {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &file) != 0 || bytes == 0 ||
      static_cast<uint64_t>(file.st_size) < bytes) {
    return nullptr;
  }
  void* const at = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  return at == MAP_FAILED ? nullptr : at;
}

absl::Status Unsafe() {
  return absl::DataLossError(
      "what the node shares is no sealed memory of the size it tells, or "
      "cannot be mapped");
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LocalMemory>> LocalMemory::Open(const std::string& address,
                                                                     const SessionToken& token,
                                                                     absl::Duration timeout) {
  TERRACE_ASSIGN_OR_RETURN(const Descriptor socket, ConnectLocal(address));
  TERRACE_RETURN_IF_ERROR(SendPacket(socket, Encode(LocalHello{token})));
  TERRACE_ASSIGN_OR_RETURN(const LocalPacket packet,
                           ReceivePacket(socket, kMaxLocalPacketBytes, timeout));
  TERRACE_ASSIGN_OR_RETURN(const LocalWelcome welcome, DecodeLocalWelcome(packet.bytes));
  if (welcome.status != WireStatus::kOk || packet.descriptors.empty()) {
    return absl::UnavailableError("the node does not share its memory with this process");
  }
  void* const at = Map(packet.descriptors[0], welcome.bytes, PROT_READ);
  if (at == nullptr) return Unsafe();
  madvise(at, welcome.bytes, MADV_DONTDUMP);
  const ByteSpan bytes(static_cast<const std::byte*>(at), welcome.bytes);
  MutableByteSpan landing;
  if (welcome.landing_bytes > 0 && packet.descriptors.size() > 1) {
    void* const to = Map(packet.descriptors[1], welcome.landing_bytes, PROT_READ | PROT_WRITE);
    if (to != nullptr) landing = {static_cast<std::byte*>(to), welcome.landing_bytes};
  }
  return std::make_shared<const LocalMemory>(bytes, landing);
}

LocalMemory::~LocalMemory() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (!landing_.empty()) munmap(landing_.data(), landing_.size());
}

}  // namespace terrace
