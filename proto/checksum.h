// CRC32C (Castagnoli, iSCSI, RFC 3720 appendix B.4): the checksum of segments and headers.
// Initial value and final xor are all ones, so Crc32c("123456789") is 0xe3069283.
#pragma once

#include <cstdint>

#include "proto/bytes.h"

namespace terrace {

// The checksum of `data`, or of `data` appended to bytes whose checksum is `crc`.
uint32_t Crc32c(ByteSpan data, uint32_t crc = 0);

// Checksums the segments of one block while its bytes arrive in order, in pieces of any size.
class SegmentChecksummer {
 public:
  // `segment_bytes` > 0; `checksums` receives one value per finished segment and must outlive
  // this object.
  SegmentChecksummer(uint32_t segment_bytes, std::span<uint32_t> checksums)
      : segment_bytes_(segment_bytes), checksums_(checksums) {}

  // Bytes beyond the last segment are ignored.
  void Update(ByteSpan data);
  // Segments whose checksum is final.
  uint32_t finished() const { return finished_; }

 private:
  uint32_t segment_bytes_;
  std::span<uint32_t> checksums_;
  uint32_t finished_ = 0;
  uint32_t filled_ = 0;   // bytes of the current segment seen so far
  uint32_t running_ = 0;  // their checksum
};

}  // namespace terrace
