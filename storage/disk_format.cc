#include "storage/disk_format.h"

#include <algorithm>

#include "fmt/format.h"
#include "proto/checksum.h"

namespace terrace {
namespace {

constexpr uint32_t kSlotMagic = 0x53435254;    // "TRCS"
constexpr uint32_t kExtentMagic = 0x58435254;  // "TRCX"
constexpr uint16_t kFormat = 1;
constexpr size_t kRecordOffset = 4032;
constexpr size_t kRecordEnd = 4064;
constexpr size_t kExtentHeaderEnd = 28;
constexpr size_t kChecksumOffset = kPageBytes - 4;

static_assert(kMaxEnvelopeBytes <= kRecordOffset);

template <typename T>
void Store(MutableByteSpan page, size_t offset, T value) {
  std::memcpy(page.data() + offset, &value, sizeof(T));
}

template <typename T>
T Load(ByteSpan page, size_t offset) {
  T value;
  std::memcpy(&value, page.data() + offset, sizeof(T));
  return value;
}

bool AllZero(ByteSpan bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

void Seal(MutableByteSpan page) {
  Store(page, kChecksumOffset, Crc32c(page.first(kChecksumOffset)));
}

// Magic and version at `offset`, and the checksum of the page.
absl::Status CheckPage(ByteSpan page, std::string_view what, size_t offset, uint32_t magic) {
  if (Load<uint32_t>(page, offset) != magic) {
    return absl::DataLossError(fmt::format("{}: wrong magic", what));
  }
  if (const auto version = Load<uint16_t>(page, offset + 4); version != kFormat) {
    return absl::DataLossError(fmt::format("{}: format version {} is unknown", what, version));
  }
  if (Load<uint32_t>(page, kChecksumOffset) != Crc32c(page.first(kChecksumOffset))) {
    return absl::DataLossError(fmt::format("{}: checksum mismatch", what));
  }
  return absl::OkStatus();
}

}  // namespace

void EncodeHeaderPage(ByteSpan envelope, const SlotRecord& record, MutableByteSpan page) {
  std::ranges::copy(envelope, page.begin());
  std::ranges::fill(page.subspan(envelope.size()), std::byte{0});
  Store(page, kRecordOffset, kSlotMagic);
  Store(page, kRecordOffset + 4, kFormat);
  Store(page, kRecordOffset + 8, record.folder_id);
  Store(page, kRecordOffset + 16, record.page);
  Store(page, kRecordOffset + 20, record.cut);
  Store(page, kRecordOffset + 24, record.expires_at);
  Store(page, kRecordOffset + 28, record.score);
  Seal(page);
}

void EncodeExtentHeader(const ExtentHeader& header, MutableByteSpan page) {
  std::ranges::fill(page, std::byte{0});
  Store(page, 0, kExtentMagic);
  Store(page, 4, kFormat);
  Store(page, 8, header.folder_id);
  Store(page, 16, header.extent);
  Store(page, 20, header.slot_pages);
  Store(page, 24, header.cut);
  Seal(page);
}

absl::StatusOr<HeaderPage> ParseHeaderPage(ByteSpan page) {
  if (absl::Status valid = CheckPage(page, "header page", kRecordOffset, kSlotMagic); !valid.ok()) {
    return valid;
  }
  absl::StatusOr<EnvelopeView> envelope = EnvelopeView::Parse(page.first(kRecordOffset));
  if (!envelope.ok()) return envelope.status();
  const size_t size = envelope->bytes().size();
  if (!AllZero(page.subspan(size, kRecordOffset - size)) || Load<uint16_t>(page, 4038) != 0 ||
      !AllZero(page.subspan(kRecordEnd, kChecksumOffset - kRecordEnd))) {
    return absl::DataLossError("header page: a reserved byte is not zero");
  }
  SlotRecord record;
  record.folder_id = Load<uint64_t>(page, kRecordOffset + 8);
  record.page = Load<uint32_t>(page, kRecordOffset + 16);
  record.cut = Load<uint32_t>(page, kRecordOffset + 20);
  record.expires_at = Load<uint32_t>(page, kRecordOffset + 24);
  record.score = Load<float>(page, kRecordOffset + 28);
  return HeaderPage{record, *envelope};
}

absl::StatusOr<ExtentHeader> ParseExtentHeader(ByteSpan page) {
  if (absl::Status valid = CheckPage(page, "extent header", 0, kExtentMagic); !valid.ok()) {
    return valid;
  }
  if (Load<uint16_t>(page, 6) != 0 ||
      !AllZero(page.subspan(kExtentHeaderEnd, kChecksumOffset - kExtentHeaderEnd))) {
    return absl::DataLossError("extent header: a reserved byte is not zero");
  }
  return ExtentHeader{Load<uint64_t>(page, 8), Load<uint32_t>(page, 16), Load<uint32_t>(page, 20),
                      Load<uint32_t>(page, 24)};
}

absl::Status VerifyValue(const EnvelopeView& envelope, ByteSpan value) {
  const BlockShape shape = envelope.shape();
  if (value.size() != shape.length) {
    return absl::DataLossError(
        fmt::format("value: {} bytes where its envelope says {}", value.size(), shape.length));
  }
  for (uint32_t i = 0; i < shape.segments; ++i) {
    const uint64_t begin = uint64_t{i} * shape.segment_bytes();
    if (Crc32c(value.subspan(begin, shape.segment_bytes())) != envelope.checksum(i)) {
      return absl::DataLossError(fmt::format("value: segment {} fails its checksum", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
