#include "tests/sim/replay.h"

#include <unistd.h>

#include <fstream>
#include <iostream>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr BlockShape kShape{4 << 10, 1};

std::string TemporaryFile(const std::string& name) {
  return testing::TempDir() + "/" + std::to_string(getpid()) + name;
}

uint64_t UniqueBlocks(const Trace& trace) {
  std::set<uint64_t> ids;
  for (const TraceRequest& request : trace) {
    ids.insert(request.blocks.begin(), request.blocks.end());
  }
  return ids.size();
}

TEST(Trace, IsWrittenAndReadBack) {
  const Trace trace = GenerateTrace({.seed = 3, .conversations = 20});
  const std::string path = TemporaryFile("trace.jsonl");
  ASSERT_TRUE(WriteTrace(trace, path).ok());
  const auto read = ReadTrace(path);
  unlink(path.c_str());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), trace.size());
  for (size_t i = 0; i < trace.size(); ++i) {
    EXPECT_EQ((*read)[i].timestamp_ms, trace[i].timestamp_ms);
    EXPECT_EQ((*read)[i].blocks, trace[i].blocks);
  }
}

TEST(Trace, WhatIsNoTraceIsRefused) {
  EXPECT_EQ(ReadTrace(TemporaryFile("absent")).status().code(), absl::StatusCode::kNotFound);
  const std::string path = TemporaryFile("bad.jsonl");
  for (const char* line : {"not json", "{}", R"({"timestamp": 1, "hash_ids": ["a"]})"}) {
    std::ofstream(path) << R"({"timestamp": 0, "hash_ids": [1, 2]})" << '\n' << line << '\n';
    const absl::Status status = ReadTrace(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("request 2"));
  }
  unlink(path.c_str());
}

TEST(Trace, TheGeneratorIsDeterministic) {
  const Trace a = GenerateTrace({.seed = 5}), b = GenerateTrace({.seed = 5});
  const Trace other = GenerateTrace({.seed = 6});
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i].blocks, b[i].blocks);
  EXPECT_NE(a.size(), other.size());
}

TEST(ReplayLru, EvictsLeavesFirst) {
  const Trace trace = {{0, {1, 2, 3}}, {1, {1, 4}}, {2, {1, 2, 3}}};
  EXPECT_EQ(ReplayLru(trace, 4).hits, 1 + 3);
  EXPECT_EQ(ReplayLru(trace, 3).hits, 1 + 2);  // 3 went for 4
  EXPECT_EQ(ReplayLru(trace, 3).references, 8);
}

TEST(Replay, AllAgreeWhenEverythingFits) {
  const Trace trace = GenerateTrace({.conversations = 200});
  const uint64_t unique = UniqueBlocks(trace);
  const uint64_t ceiling = ReplayLru(trace, unique).hits;
  EXPECT_GT(ceiling, 0);
  EXPECT_EQ(ReplayPolicy(trace, unique).hits, ceiling);
  TieredStoreOptions options;
  options.host_bytes = 2 * unique * kShape.length;
  const auto store = TieredStore::Create(options).value();
  EXPECT_EQ(ReplayStore(trace, kShape, store.get()).hits, ceiling);
  EXPECT_EQ(store->Stats().hits, ceiling);
  EXPECT_EQ(store->Stats().blocks, unique);
}

struct Traffic {
  const char* name;
  uint64_t single_shots;
  double at_worst;  // below LRU
};

// Where nothing but age tells blocks apart LRU is near the optimum: what frequency costs there is
// bounded. In all cases the real store does what the policy says.
TEST(Replay, AgedFrequencyAgainstLru) {
  for (const auto& [name, single_shots, at_worst] :
       {Traffic{"mixed", 300, .01}, Traffic{"conversations", 0, .02}}) {
    const Trace trace = GenerateTrace({.seed = 2, .single_shots = single_shots});
    const uint64_t unique = UniqueBlocks(trace);
    for (const uint64_t share : {20, 8, 4, 2}) {
      TieredStoreOptions options;
      options.host_bytes = unique / share * (kShape.length + 256);
      const auto store = TieredStore::Create(options).value();
      const double real = ReplayStore(trace, kShape, store.get()).hit_rate();
      const uint64_t capacity = store->Stats().blocks;
      const double lru = ReplayLru(trace, capacity).hit_rate();
      const double policy = ReplayPolicy(trace, capacity).hit_rate();
      std::cout << name << ", 1/" << share << " of " << unique << " blocks: lru " << lru
                << ", policy " << policy << ", store " << real << '\n';
      EXPECT_GE(policy, lru - at_worst);
      EXPECT_GE(real, lru - at_worst);
      EXPECT_NEAR(real, policy, .003);
    }
  }
}

// Where single shots mix with conversations, as they do in real traces, frequency pays.
TEST(Replay, SingleShotsDoNotWashOutWhatComesBack) {
  for (const uint64_t seed : {2, 3, 4}) {
    const Trace trace = GenerateTrace({.seed = seed, .single_shots = 600});
    const uint64_t capacity = UniqueBlocks(trace) / 8;
    const double lru = ReplayLru(trace, capacity).hit_rate();
    EXPECT_GT(ReplayPolicy(trace, capacity).hit_rate(), lru + .01);
  }
}

}  // namespace
}  // namespace terrace
