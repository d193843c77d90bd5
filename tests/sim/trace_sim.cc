// trace_sim TRACE BLOCK_BYTES CAPACITY...
//
// Prints the prefix-contiguous hit rate of an exact LRU, of the policy objects and of the real
// store at each capacity. A capacity is a number of blocks; the store gets as much memory as
// that many values take, and fits places, envelopes and its watermarks into it.

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "fmt/format.h"
#include "tests/sim/replay.h"
#include "tests/sim/trace.h"

namespace terrace {
namespace {

int Run(const std::string& path, uint32_t block_bytes, std::span<char* const> capacities) {
  const auto trace = ReadTrace(path);
  if (!trace.ok()) {
    std::cerr << trace.status() << '\n';
    return 1;
  }
  std::cout << fmt::format("{:>9} {:>8} {:>8} {:>8} {:>10} {:>9} {:>12}\n", "capacity", "lru",
                           "policy", "store", "store-lru", "blocks", "us/reference");
  for (const char* argument : capacities) {
    const uint64_t capacity = std::strtoull(argument, nullptr, 10);
    TieredStoreOptions options;
    options.host_bytes = capacity * block_bytes;
    const auto store = TieredStore::Create(options);
    if (!store.ok()) {
      std::cerr << store.status() << '\n';
      return 1;
    }
    const double lru = ReplayLru(*trace, capacity).hit_rate();
    const double policy = ReplayPolicy(*trace, capacity).hit_rate();
    const auto start = std::chrono::steady_clock::now();
    const ReplayResult real = ReplayStore(*trace, {block_bytes, 1}, store->get());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    std::cout << fmt::format("{:>9} {:>8.4f} {:>8.4f} {:>8.4f} {:>+10.4f} {:>9} {:>12.2f}\n",
                             capacity, lru, policy, real.hit_rate(), real.hit_rate() - lru,
                             (*store)->Stats().blocks,
                             took.count() / static_cast<double>(real.references));
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: trace_sim TRACE BLOCK_BYTES CAPACITY...\n";
    return 2;
  }
  const auto block_bytes = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  return terrace::Run(argv[1], block_bytes,
                      std::span<char* const>(argv + 3, static_cast<size_t>(argc - 3)));
}
