// What terrace-load and terracectl are made of.
#include <fstream>
#include <map>

#include "client/load/histogram.h"
#include "client/load/payload.h"
#include "client/load/traffic.h"
#include "client/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

BlockKey KeyOf(const std::string& text) {
  BlockKey key;
  key.ns.value = 1;
  key.digest = Sha256(AsBytes(text));
  return key;
}

TEST(Payload, IsRightForItsKeyAlone) {
  std::vector<std::byte> bytes(64 << 10);
  const BlockKey key = KeyOf("a");
  Payload(key).Fill(bytes);
  EXPECT_EQ(Payload(key).CountWrong(bytes), 0u);
  std::vector<BlockKey> others(3, key);
  others[0].ns.value = 2;
  others[1].shard = 1;
  others[2].digest.bytes[31] ^= 1;
  for (const BlockKey& other : others) {
    // A stranger's byte agrees by chance once in 256 times.
    EXPECT_GT(Payload(other).CountWrong(bytes), bytes.size() * 99 / 100);
  }
}

TEST(Payload, CountsWrongBytes) {
  std::vector<std::byte> bytes(16 << 10);
  const BlockKey key = KeyOf("a");
  Payload(key).Fill(bytes);
  bytes.front() ^= std::byte{1};
  bytes[5000] ^= std::byte{0x80};
  bytes[5001] ^= std::byte{0xff};
  bytes.back() ^= std::byte{2};
  EXPECT_EQ(Payload(key).CountWrong(bytes), 4u);
}

TEST(LatencyHistogram, QuantilesAreWithinABucket) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  for (int i = 1; i <= 1000; ++i) histogram.Add(absl::Microseconds(i));
  EXPECT_NEAR(histogram.Quantile(0.5), 500, 500 / 16.0);
  EXPECT_NEAR(histogram.Quantile(0.99), 990, 990 / 16.0);
  LatencyHistogram other;
  for (int i = 0; i < 9000; ++i) other.Add(absl::Nanoseconds(7));
  other.Add(absl::Hours(100));
  histogram.Merge(other);
  EXPECT_NEAR(histogram.Quantile(0.5), 0.007, 0.001);
  EXPECT_EQ(histogram.count(), 10001u);
}

class TraceTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<TrafficRequest>> ReadAll(const std::string& text, uint64_t limit = 0) {
    const std::string path = testing::TempDir() + "trace.jsonl";
    std::ofstream(path) << text;
    std::unique_ptr<Traffic> trace = *OpenTrace(path, limit);
    std::vector<TrafficRequest> requests;
    while (true) {
      TrafficRequest request;
      absl::StatusOr<bool> more = trace->Next(&request);
      if (!more.ok()) return more.status();
      if (!*more) return requests;
      requests.push_back(std::move(request));
    }
  }
};

TEST_F(TraceTest, GivesRequestsInOrder) {
  const std::string text =
      "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [7, 8]}\n\n"
      "{\"timestamp\": 9, \"hash_ids\": []}\n{\"hash_ids\": [7, 9]}\n";
  auto requests = ReadAll(text);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_THAT((*requests)[0].hash_ids, ElementsAre(7, 8));
  EXPECT_THAT((*requests)[2].hash_ids, ElementsAre(7, 9));
  EXPECT_EQ(ReadAll(text, 1)->size(), 1u);
}

TEST_F(TraceTest, NamesTheLineThatIsWrong) {
  for (const char* line :
       {"nonsense", "[1]", "{}", "{\"hash_ids\": 1}", "{\"hash_ids\": [\"x\"]}"}) {
    auto requests = ReadAll(std::string("{\"hash_ids\": [1]}\n") + line + "\n");
    EXPECT_THAT(requests.status().ToString(), HasSubstr("trace.jsonl:2: not a request")) << line;
  }
  EXPECT_THAT(OpenTrace("/nonexistent", 0).status().ToString(), HasSubstr("/nonexistent"));
}

TEST(Conversations, AreTheSameForTheSameSeedAndGrow) {
  auto one = MakeConversations(5), same = MakeConversations(5), other = MakeConversations(6);
  bool differs = false;
  size_t shared = 0;
  for (int i = 0; i < 200; ++i) {
    TrafficRequest a, b, c;
    ASSERT_TRUE(*one->Next(&a) && *same->Next(&b) && *other->Next(&c));
    EXPECT_EQ(a.hash_ids, b.hash_ids);
    differs |= a.hash_ids != c.hash_ids;
    EXPECT_GT(a.hash_ids.size(), 8u);
    shared += a.hash_ids[0] < 64;  // begins with a system prompt
  }
  EXPECT_TRUE(differs);
  EXPECT_EQ(shared, 200u);
}

TEST(Conversations, ComeBackAfterManyOthers) {
  auto traffic = MakeConversations(5);
  std::map<uint64_t, int> last_seen;  // the first block of one's own → when
  int after_many = 0;
  for (int i = 0; i < 20'000; ++i) {
    TrafficRequest request;
    ASSERT_TRUE(*traffic->Next(&request));
    EXPECT_LE(request.hash_ids.size(), 128u + 12 * 6);
    const auto [it, fresh] = last_seen.try_emplace(request.hash_ids[8], i);
    if (!fresh && i - it->second > 2000) ++after_many;
    it->second = i;
  }
  EXPECT_GT(after_many, 100);
}

TEST(Table, AlignsColumns) {
  Table table({"NAME", "SIZE", "NOTE"});
  table.SetAlign(1, Table::Align::kRight);
  table.AddRow({"a", "1.0 KiB", ""});
  table.AddRow({"größer", "12 B", "x"});
  EXPECT_EQ(table.Format(),
            "NAME       SIZE  NOTE\n"
            "a       1.0 KiB\n"
            "größer     12 B  x\n");
}

}  // namespace
}  // namespace terrace
