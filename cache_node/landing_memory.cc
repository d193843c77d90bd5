#include "cache_node/landing_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fmt/format.h"

namespace terrace {
namespace {

absl::Status Exhausted() {
  return absl::ResourceExhaustedError(fmt::format("landing memory: {}", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LandingMemory>> LandingMemories::Create() {
  if (total_->fetch_add(kBytes) + kBytes > most_) {
    total_->fetch_sub(kBytes);
    return absl::ResourceExhaustedError("landing memory: as much as there may be is in use");
  }
  // Counted from here on, and until this object goes.
  std::shared_ptr<LandingMemory> memory(new LandingMemory(total_));
  Descriptor fd(memfd_create("terrace-landing", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), kBytes) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Exhausted();
  }
  void* const at = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return Exhausted();
  memory->bytes_ = ByteSpan(static_cast<const std::byte*>(at), kBytes);
  memory->fd_ = std::move(fd);
  return memory;
}

absl::StatusOr<Descriptor> LandingMemory::Open() const {
  Descriptor copy(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return Exhausted();
  return copy;
}

LandingMemory::~LandingMemory() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  total_->fetch_sub(LandingMemories::kBytes);
}

}  // namespace terrace
