// What the ssd tier writes into its value files, so that they explain themselves without the
// catalogue. Pages are 4 KiB; numbers are little-endian.
//
// An extent is one file. Its page 0 is the extent header, then come slots of one size, each one
// *header page* and the pages of a value:
//
//   | extent header | header page, value ... | header page, value ... | tail |
//
// A header page holds the block's envelope (proto/envelope.h) at 0, zeros, and at its end:
//
//   offset size  field
//     4032    4  magic "TRCS"      4036  2 format version (1)   4038 2 zero
//     4040    8  folder id         4048  4 page number of the slot within the folder
//     4052    4  cut: of the extent's header when it was written
//     4056    4  expiry, Unix seconds, 0: never                 4060 4 score, IEEE single
//     4064   28  zero              4092  4 CRC32C of bytes 0 to 4091
//
// An extent header:
//
//        0    4  magic "TRCX"         4  2 format version (1)      6 2 zero
//        8    8  folder id           16  4 extent number          20 4 pages per slot
//       24    4  cut                 28  4064 bytes zero        4092 4 CRC32C of bytes 0 to 4091
//
// The page number tells a slot that was written elsewhere, the cut one from before the extent was
// cut into slots of another size.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/bytes.h"
#include "proto/envelope.h"

namespace terrace {

constexpr uint32_t kPageBytes = 4096;

// Pages of a slot for a value of `length` bytes.
constexpr uint32_t SlotPages(uint32_t length) { return 1 + (length + kPageBytes - 1) / kPageBytes; }

// `folder_id` is drawn when the folder is made.
struct SlotRecord {
  uint64_t folder_id = 0;
  uint32_t page = 0;
  uint32_t cut = 0;
  uint32_t expires_at = 0;
  float score = 0;
  auto operator<=>(const SlotRecord&) const = default;
};

struct HeaderPage {
  SlotRecord record;
  EnvelopeView envelope;  // of the page that was parsed
};

struct ExtentHeader {
  uint64_t folder_id = 0;
  uint32_t extent = 0;
  uint32_t slot_pages = 0;
  uint32_t cut = 0;
  auto operator<=>(const ExtentHeader&) const = default;
};

// `page` has kPageBytes and is written whole; `envelope` is a valid one.
void EncodeHeaderPage(ByteSpan envelope, const SlotRecord& record, MutableByteSpan page);
void EncodeExtentHeader(const ExtentHeader& header, MutableByteSpan page);

// DataLoss says what is wrong with the page, which has kPageBytes.
absl::StatusOr<HeaderPage> ParseHeaderPage(ByteSpan page);
absl::StatusOr<ExtentHeader> ParseExtentHeader(ByteSpan page);

// OK when `value` is the block that `envelope` describes and has the checksums in it. DataLoss
// otherwise.
absl::Status VerifyValue(const EnvelopeView& envelope, ByteSpan value);

}  // namespace terrace
