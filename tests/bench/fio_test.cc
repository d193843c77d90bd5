// The limit is only as good as the reading of what fio says.
#include "tests/bench/fio_contender.h"

#include "gtest/gtest.h"

namespace terrace::bench {
namespace {

// What fio 3.33 prints, cut down.
constexpr char kOutput[] = R"(note: both iodepth >= 1 and synchronous I/O engine are selected
{
  "fio version" : "fio-3.33",
  "jobs" : [{
    "jobname" : "limit", "error" : 0,
    "read" : {"io_bytes" : 0, "bw_bytes" : 0, "bw" : 0, "runtime" : 0},
    "write" : {"io_bytes" : 536870912, "bw_bytes" : 1529546757, "bw" : 1493698, "runtime" : 351}
  }]
})";

std::string With(std::string_view from, std::string_view to) {
  std::string text = kOutput;
  return text.replace(text.find(from), from.size(), to);
}

TEST(ParseFio, TakesTheDirectionAskedFor) {
  const auto write = ParseFioBandwidth(kOutput, FioDirection::kWrite);
  ASSERT_TRUE(write.ok()) << write.status();
  EXPECT_EQ(*write, 1529546757);
  EXPECT_FALSE(ParseFioBandwidth(kOutput, FioDirection::kRead).ok());
}

TEST(ParseFio, AFailedJobIsAnError) {
  const std::string failed = With(R"("error" : 0)", R"("error" : 28)");
  const auto bandwidth = ParseFioBandwidth(failed, FioDirection::kWrite);
  EXPECT_NE(bandwidth.status().message().find("error 28"), std::string::npos);
}

TEST(ParseFio, OtherTextIsAnError) {
  for (const std::string& text :
       {std::string(), std::string("fio: cannot"), std::string("{}"), std::string("{ \"jobs\""),
        std::string(R"({"jobs": []})"), std::string(R"({"jobs": [7]})"), std::string("[1]"),
        With(R"("bw_bytes" : 1529546757)", R"("bw_bytes" : "fast")")}) {
    EXPECT_FALSE(ParseFioBandwidth(text, FioDirection::kWrite).ok()) << text;
  }
}

}  // namespace
}  // namespace terrace::bench
