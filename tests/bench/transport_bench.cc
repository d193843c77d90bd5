// The transport against the bare UCX loop: rounds interleaved, medians and best rounds, each beside
// its limit. On a shared machine the best rounds tell more than the medians.
// usage: transport_bench [ROUNDS [BYTES_PER_ROUND [CASE]]], where CASE is like get:1024:8
// (direction, KiB per block, blocks in flight).
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "tests/bench/transport_loop.h"
#include "tests/bench/ucx_loop.h"

namespace terrace {
namespace {

constexpr size_t kLoops = 3;
constexpr std::array<const char*, kLoops> kNames = {"bare loop", "transport", "with checksum"};

struct Samples {
  std::vector<double> gb_per_s, near_cpu, far_cpu, ratio;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

int Measure(std::array<std::unique_ptr<BenchLoop>, kLoops>& loops, uint64_t block_bytes,
            int in_flight, BenchDirection direction, int rounds, uint64_t bytes,
            const std::string& name) {
  for (auto& loop : loops) {
    const absl::Status ready = loop->Setup(block_bytes, in_flight, direction);
    if (ready.ok()) continue;
    fmt::print(stderr, "{}\n", ready.ToString());
    return 1;
  }
  std::array<Samples, kLoops> samples;
  for (int round = 0; round < rounds; ++round) {
    double limit = 0;
    for (size_t i = 0; i < kLoops; ++i) {
      const auto took = loops[i]->Run(bytes);
      if (!took.ok()) {
        fmt::print(stderr, "{}\n", took.status().ToString());
        return 1;
      }
      const double gb = static_cast<double>(bytes) * 1e-9;
      const double speed = gb / took->seconds;
      if (i == 0) limit = speed;
      samples[i].gb_per_s.push_back(speed);
      samples[i].near_cpu.push_back(took->near_cpu_seconds / gb);
      samples[i].far_cpu.push_back(took->far_cpu_seconds / gb);
      samples[i].ratio.push_back(speed / limit);
    }
  }
  const auto best = [&samples](size_t i) {
    return *std::max_element(samples[i].gb_per_s.begin(), samples[i].gb_per_s.end());
  };
  for (size_t i = 0; i < kLoops; ++i) {
    fmt::print(
        "{:11} {:13}  {:5.2f} GB/s = {:.2f} of limit, best {:5.2f} = {:.2f}, "
        "cpu-s/GB near {:.2f} far {:.2f}\n",
        name, kNames[i], Median(samples[i].gb_per_s), Median(samples[i].ratio), best(i),
        best(i) / best(0), Median(samples[i].near_cpu), Median(samples[i].far_cpu));
  }
  std::fflush(stdout);
  return 0;
}

int Main(int rounds, uint64_t bytes, const std::string& only) {
  std::array<std::unique_ptr<BenchLoop>, kLoops> loops;
  for (size_t i = 0; i < kLoops; ++i) {
    auto loop = i == 0 ? CreateUcxLoop() : CreateTransportLoop({.checksum = i == 2});
    if (!loop.ok()) {
      fmt::print(stderr, "{}: {}\n", kNames[i], loop.status().ToString());
      return 1;
    }
    loops[i] = *std::move(loop);
  }
  for (const BenchDirection direction : {BenchDirection::kGet, BenchDirection::kPut}) {
    for (const uint64_t block_bytes : {64 << 10, 256 << 10, 1 << 20, 4 << 20}) {
      for (const int in_flight : {1, 8}) {
        const std::string name =
            fmt::format("{}:{}:{}", direction == BenchDirection::kGet ? "get" : "put",
                        block_bytes >> 10, in_flight);
        if (!only.empty() && name != only) continue;
        if (Measure(loops, block_bytes, in_flight, direction, rounds, bytes, name) != 0) return 1;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  terrace::StayNear();
  const int rounds = argc > 1 ? static_cast<int>(std::strtol(argv[1], nullptr, 10)) : 7;
  const uint64_t bytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 512 << 20;
  return terrace::Main(std::max(1, rounds), std::max<uint64_t>(1 << 20, bytes),
                       argc > 3 ? argv[3] : "");
}
