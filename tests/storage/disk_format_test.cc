#include "storage/disk_format.h"

#include <array>

#include "gtest/gtest.h"
#include "storage/folder_identity.h"
#include "tests/storage/cold_support.h"

namespace terrace::testing {
namespace {

using PageBytes = std::array<std::byte, kPageBytes>;

TEST(DiskFormat, HeaderPageRoundTrip) {
  TestBlock block(KeyOf(1), 64 << 10);
  const SlotRecord record{123, 45, 67, 89, 1.5f};
  PageBytes page;
  EncodeHeaderPage(block.envelope, record, page);
  const auto parsed = ParseHeaderPage(page);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->record, record);
  EXPECT_EQ(parsed->envelope.key(), block.key);
  EXPECT_EQ(VerifyValue(parsed->envelope, block.value.span()), absl::OkStatus());
  block.value.span()[40'000] ^= std::byte{4};
  EXPECT_TRUE(absl::IsDataLoss(VerifyValue(parsed->envelope, block.value.span())));
  EXPECT_TRUE(absl::IsDataLoss(VerifyValue(parsed->envelope, block.value.span().first(100))));
}

// Whatever bit is wrong, the page is refused.
TEST(DiskFormat, EveryFlippedBitOfAPageIsFound) {
  TestBlock block(KeyOf(1), 64 << 10);
  PageBytes slot, extent;
  EncodeHeaderPage(block.envelope, {123, 45, 67, 89, 1.5f}, slot);
  EncodeExtentHeader({1, 2, 3, 4}, extent);
  for (size_t bit = 0; bit < 8 * kPageBytes; ++bit) {
    const std::byte mask = std::byte{1} << bit % 8;
    slot[bit / 8] ^= mask;
    extent[bit / 8] ^= mask;
    ASSERT_TRUE(absl::IsDataLoss(ParseHeaderPage(slot).status())) << bit;
    ASSERT_TRUE(absl::IsDataLoss(ParseExtentHeader(extent).status())) << bit;
    slot[bit / 8] ^= mask;
    extent[bit / 8] ^= mask;
  }
}

TEST(DiskFormat, ExtentHeaderRoundTrip) {
  const ExtentHeader header{0x1122334455667788, 9, 17, 0xdeadbeef};
  PageBytes page;
  EncodeExtentHeader(header, page);
  const auto parsed = ParseExtentHeader(page);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, header);
  EXPECT_FALSE(ParseExtentHeader(PageBytes{}).ok());
  EXPECT_FALSE(ParseHeaderPage(PageBytes{}).ok());
}

TEST(FolderIdentity, RoundTripAndRefusals) {
  const FolderIdentity identity{"c1", "n1", 0xabc, 512 << 20};
  const std::string text = FormatIdentity(identity);
  const auto parsed = ParseIdentity(text);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, identity);
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_TRUE(absl::IsDataLoss(ParseIdentity(text.substr(0, length)).status())) << length;
  }
  EXPECT_TRUE(absl::IsDataLoss(ParseIdentity(text + "more\n").status()));
  for (const char* const bytes : {"0", "1", "4096", "134217729", "8589934592"}) {
    const std::string damaged = text.substr(0, text.rfind(' ') + 1) + bytes + "\n";
    EXPECT_TRUE(absl::IsDataLoss(ParseIdentity(damaged).status())) << bytes;
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseIdentity("format 12\n").status()));
}

}  // namespace
}  // namespace terrace::testing
