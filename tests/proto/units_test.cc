#include "proto/units.h"

#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(ParseBytes, ReadsBinaryUnits) {
  EXPECT_EQ(*ParseBytes("0"), 0u);
  EXPECT_EQ(*ParseBytes("4096"), 4096u);
  EXPECT_EQ(*ParseBytes("64KiB"), 65536u);
  EXPECT_EQ(*ParseBytes("1.5 gib"), 3ull << 29);
  EXPECT_EQ(*ParseBytes("2TiB"), 2ull << 40);
}

TEST(ParseBytes, RefusesTheRest) {
  for (const char* text :
       {"", "GiB", "-1", "1GB", "1 K", "1.0001KiB", "nan", "inf", "9e30", "1x"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(ParseBytes, TellsWhatIsTooLargeFromWhatIsNoSize) {
  EXPECT_EQ(*ParseBytes("8388607TiB"), 8388607ull << 40);
  for (const char* text : {"8388608TiB", "99999999TiB", "9e30", "1e999", "1e999GiB"}) {
    const absl::Status status = ParseBytes(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find("too large"), absl::string_view::npos) << status;
  }
  for (const char* text : {"99999999TB", "9e30 parsecs", "-1e999", "inf", "1e999x"}) {
    const absl::Status status = ParseBytes(text).status();
    EXPECT_NE(status.message().find("is not a size"), absl::string_view::npos) << status;
  }
}

TEST(ParseDuration, ReadsUnitsAndRefusesTheRest) {
  EXPECT_EQ(*ParseDuration("1.5s"), absl::Milliseconds(1500));
  for (const char* text : {"", "5", "-1s", "soon"}) EXPECT_FALSE(ParseDuration(text).ok()) << text;
}

TEST(Format, IsForPeople) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(65536), "64.0 KiB");
  EXPECT_EQ(FormatBytes(3ull << 29), "1.50 GiB");
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
}

}  // namespace
}  // namespace terrace
