#include "proto/checksum.h"

#include <algorithm>

#include "isa-l/crc.h"

namespace terrace {

uint32_t Crc32c(ByteSpan data, uint32_t crc) {
  // ISA-L takes an int length and a mutable pointer that it only reads.
  constexpr size_t kPiece = 1 << 30;
  uint32_t state = ~crc;
  while (!data.empty()) {
    const size_t n = std::min(data.size(), kPiece);
    auto* begin = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(data.data()));
    state = crc32_iscsi(begin, static_cast<int>(n), state);
    data = data.subspan(n);
  }
  return ~state;
}

void SegmentChecksummer::Update(ByteSpan data) {
  while (!data.empty() && finished_ < checksums_.size()) {
    const size_t n = std::min<size_t>(data.size(), segment_bytes_ - filled_);
    running_ = Crc32c(data.first(n), running_);
    filled_ += static_cast<uint32_t>(n);
    data = data.subspan(n);
    if (filled_ == segment_bytes_) {
      checksums_[finished_++] = running_;
      filled_ = running_ = 0;
    }
  }
}

}  // namespace terrace
