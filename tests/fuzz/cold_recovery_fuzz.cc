// Slots as a catalogue may name them after anything, taken back in any order: those accepted never
// overlap each other, an extent's own page, or a slot handed out afterwards.
#include <cstdlib>
#include <cstring>
#include <set>

#include "storage/extents.h"
#include "storage/faulty_file_io.h"

namespace {

constexpr uint32_t kExtents = 4;
constexpr uint64_t kExtentBytes = 256 << 10;
constexpr uint32_t kPages = kExtentBytes / terrace::kPageBytes;

class Disk {
 public:
  Disk() {
    for (uint32_t i = 0; i < kExtents; ++i) {
      extents_.Add(io_.Open("extent" + std::to_string(i), kExtentBytes).value(), std::nullopt);
    }
  }
  void Restore(terrace::Slot slot) {
    if (extents_.Restore(slot)) Take(slot);
  }
  void AllocateAll(uint32_t length) {
    while (const auto slot = extents_.Allocate(length)) Take(*slot);
  }

 private:
  void Take(terrace::Slot slot) {
    if (slot.page / kPages != (slot.page + slot.pages - 1) / kPages) std::abort();
    for (uint32_t page = slot.page; page < slot.page + slot.pages; ++page) {
      if (page >= kExtents * kPages || page % kPages == 0) std::abort();
      if (!taken_.insert(page).second) std::abort();
    }
  }

  terrace::FaultyFileIo io_;
  terrace::Extents extents_{&io_, 1, kExtentBytes};
  std::set<uint32_t> taken_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Disk disk;
  for (; size >= sizeof(terrace::Slot);
       data += sizeof(terrace::Slot), size -= sizeof(terrace::Slot)) {
    terrace::Slot slot;
    std::memcpy(&slot, data, sizeof(slot));
    disk.Restore(slot);
    slot.page %= kExtents * kPages;
    slot.pages %= kPages + 1;
    disk.Restore(slot);
  }
  for (const uint32_t length : {200'000u, 60'000u, 8'192u, 4'096u}) disk.AllocateAll(length);
  return 0;
}
