// What the ssd tier decodes from disk: catalogue records, header pages, extent headers, the
// folder's identity. What is accepted must encode to the very same bytes. A fuzzer cannot guess a
// page's checksum, so pages are also tried sealed with the right one.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "proto/checksum.h"
#include "storage/catalogue.h"
#include "storage/disk_format.h"
#include "storage/folder_identity.h"

namespace {

using Page = std::array<std::byte, terrace::kPageBytes>;

void Require(bool holds) {
  if (!holds) std::abort();
}

void JudgePage(const Page& page) {
  Page again{};
  if (const auto header = terrace::ParseHeaderPage(page); header.ok()) {
    terrace::EncodeHeaderPage(header->envelope.bytes(), header->record, again);
    Require(again == page);
  }
  if (const auto header = terrace::ParseExtentHeader(page); header.ok()) {
    terrace::EncodeExtentHeader(*header, again);
    Require(again == page);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto record = terrace::DecodeBlockRecord(text); record.ok()) {
    Require(terrace::EncodeBlockRecord(*record) == text);
  }
  if (const auto key = terrace::DecodeCatalogueKey(text); key.ok()) {
    Require(terrace::EncodeCatalogueKey(*key) == text);
  }
  if (const auto place = terrace::DecodeColdPlace(text); place.ok()) {
    Require(terrace::EncodeColdPlace(*place) == text);
  }
  if (const auto identity = terrace::ParseIdentity(text); identity.ok()) {
    const auto again = terrace::ParseIdentity(terrace::FormatIdentity(*identity));
    Require(again.ok() && *again == *identity);
  }
  Page page{};
  std::memcpy(page.data(), data, std::min(size, page.size()));
  JudgePage(page);
  const uint32_t seal = terrace::Crc32c(terrace::ByteSpan(page).first(terrace::kPageBytes - 4));
  std::memcpy(page.data() + terrace::kPageBytes - 4, &seal, sizeof(seal));
  JudgePage(page);
  return 0;
}
