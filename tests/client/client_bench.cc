// How fast a client is against terraced on this machine, beside what the machine can do at most.
// Usage: client_bench (starts a node of its own).
#include <algorithm>
#include <thread>

#include "client/client.h"
#include "client/load/payload.h"
#include "fmt/format.h"
#include "proto/checksum.h"
#include "proto/clock.h"
#include "tests/client/node_process.h"

namespace terrace {
namespace {

constexpr uint64_t kBytes = 256 << 20;  // moved per measurement

double Seconds(absl::Duration since) { return absl::ToDoubleSeconds(Clock::Real()->Now() - since); }

Namespace Open(Client* client, uint32_t block_bytes) {
  NamespaceDefinition definition;
  definition.name = fmt::format("bench-{}", block_bytes);
  definition.layout.model = "bench";
  definition.layout.block_tokens = 1;
  definition.layout.block_bytes = block_bytes;
  definition.layout.segments = 16;
  return *client->OpenNamespace(definition);
}

Chain ChainOf(const Namespace& ns, size_t blocks, uint32_t salt) {
  std::vector<uint32_t> tokens(blocks, salt);
  return *Chain::FromTokens(ns, tokens);
}

void BenchMatch(Client* client) {
  const Namespace ns = Open(client, 4096);
  const Chain chain = ChainOf(ns, 128, 7);
  std::vector<std::byte> block(4096);
  std::vector<PutRequest> puts;
  for (size_t i = 0; i < chain.blocks(); ++i) puts.push_back({chain.key(i), {ByteSpan(block)}, {}});
  client->Put(ns, std::move(puts), {.timeout = absl::Seconds(10)}).Wait();
  std::vector<double> times;
  for (int i = 0; i < 2000; ++i) {
    const absl::Duration begin = Clock::Real()->Now();
    if (client->Match(chain)->blocks == 128) times.push_back(Seconds(begin) * 1e6);
  }
  std::ranges::sort(times);
  fmt::print("match of 128 keys: p50 {:.0f} us, p99 {:.0f} us ({} answers; goal: p50 150 us)\n",
             times[times.size() / 2], times[times.size() * 99 / 100], times.size());
}

void BenchTransfer(Client* client, uint32_t block_bytes) {
  const Namespace ns = Open(client, block_bytes);
  const size_t blocks = kBytes / block_bytes;
  std::vector<std::byte> memory(kBytes);
  const auto slot = [&](size_t i) {
    return MutableByteSpan(memory).subspan(i * block_bytes, block_bytes);
  };
  double put_s = 1e9, get_s = 1e9;
  size_t stored = 0, got = 0;
  for (uint32_t round = 0; round < 3; ++round) {
    const Chain chain = ChainOf(ns, blocks, round);
    std::vector<PutRequest> puts(blocks);
    std::vector<GetRequest> gets(blocks);
    for (size_t i = 0; i < blocks; ++i) {
      Payload(chain.key(i)).Fill(slot(i));
      puts[i] = {chain.key(i), {slot(i)}, {}};
      gets[i] = {chain.key(i), {slot(i)}};
    }
    absl::Duration begin = Clock::Real()->Now();
    Operation put = client->Put(ns, std::move(puts), {.timeout = absl::Seconds(60)});
    put.Wait();
    put_s = std::min(put_s, Seconds(begin));
    stored += put.succeeded();
    begin = Clock::Real()->Now();
    Operation get = client->Get(ns, std::move(gets), {.timeout = absl::Seconds(60)});
    get.Wait();
    get_s = std::min(get_s, Seconds(begin));
    got += get.succeeded();
  }
  fmt::print("{:>8} bytes: put {:.2f} GB/s, get {:.2f} GB/s (best of 3; {} of {} put, {} got)\n",
             block_bytes, kBytes / put_s / 1e9, kBytes / get_s / 1e9, stored, 3 * blocks, got);
}

void Limits() {
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes);
  absl::Duration begin = Clock::Real()->Now();
  std::copy(from.begin(), from.end(), to.begin());
  const double copy = kBytes / Seconds(begin) / 1e9;
  begin = Clock::Real()->Now();
  const uint32_t crc = Crc32c(to);
  const double sum = kBytes / Seconds(begin) / 1e9;
  begin = Clock::Real()->Now();
  Payload(BlockKey{}).Fill(to);
  fmt::print(
      "limits of one core: copy {:.1f} GB/s, CRC32C {:.1f} GB/s ({:08x}), payload {:.1f} GB/s; "
      "plain TCP over loopback: about 3 GB/s\n",
      copy, sum, crc, kBytes / Seconds(begin) / 1e9);
}

int Main() {
  Limits();
  NodeProcess node({"--host-bytes=2GiB"});
  auto client = Client::Connect({.address = node.address(), .transport = "tcp"});
  if (!client.ok()) {
    fmt::print(stderr, "{}\n", client.status().ToString());
    return 1;
  }
  BenchMatch(client->get());
  for (uint32_t bytes : {64u << 10, 256u << 10, 1u << 20, 4u << 20}) {
    BenchTransfer(client->get(), bytes);
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main() { return terrace::Main(); }
