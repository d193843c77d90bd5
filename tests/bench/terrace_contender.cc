#include "tests/bench/terrace_contender.h"

#include <algorithm>
#include <cstring>

#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/mutex.h"
#include "proto/status.h"
#include "tests/bench/bench_loop.h"
#include "tests/bench/pump.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kFirstNewBlock = uint64_t{1} << 40;
constexpr int kLocalWarmUps = 4;
constexpr absl::Duration kTimeout = Pump::kTimeout;

}  // namespace

TerraceContender::TerraceContender(BenchNode node, bool local)
    : node_(std::move(node)), local_(local), arena_(local ? kLocalArenaBytes : kArenaBytes) {}

absl::StatusOr<std::unique_ptr<TerraceContender>> TerraceContender::Start(
    const std::string& bin_folder, uint64_t host_bytes, bool local) {
  absl::StatusOr<ChildProcess> process = absl::UnknownError("");
  {
    const StartingFar far;  // the client stays near
    process = BenchNode::StartProcess(bin_folder, {"--host-bytes", std::to_string(host_bytes)});
  }
  TERRACE_RETURN_IF_ERROR(process.status());
  TERRACE_ASSIGN_OR_RETURN(BenchNode node, BenchNode::Connect(*std::move(process), local));
  std::unique_ptr<TerraceContender> contender(new TerraceContender(std::move(node), local));
  TERRACE_RETURN_IF_ERROR(contender->node_.client->RegisterMemory(contender->arena_.all()));
  return contender;
}

absl::Status TerraceContender::Fill(uint32_t block_bytes, size_t blocks) {
  TERRACE_ASSIGN_OR_RETURN(ns_, OpenBenchNamespace(node_.client.get(), block_bytes));
  next_get_ = 0;
  next_put_ = 0;
  filled_ = blocks;
  TERRACE_RETURN_IF_ERROR(Run(blocks * block_bytes, 8, true).status());
  next_put_ = kFirstNewBlock + block_bytes;
  // The first look at a page of shared memory is the kernel's work, once in a client's life; and a
  // virtual machine's memory has its full speed only after some passes.
  for (int i = 0; i < kLocalWarmUps && local_; ++i) {
    TERRACE_RETURN_IF_ERROR(Run(blocks * block_bytes, 8, false).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<Measurement> TerraceContender::Get(size_t bytes, int depth) {
  return Run(bytes, depth, false);
}

absl::StatusOr<Measurement> TerraceContender::Put(size_t bytes, int depth) {
  return Run(bytes, depth, true);
}

absl::StatusOr<Measurement> TerraceContender::View(size_t bytes, int depth) {
  const size_t block_bytes = ns_.shape.length;
  const size_t count = std::max<size_t>(bytes / block_bytes, static_cast<size_t>(depth));
  const absl::Duration cpu_before = OwnCpuTime() + node_.process.CpuTime();
  const absl::Duration start = Clock::Real()->Now();
  std::vector<BlockView> views;  // those before go when the next are there
  for (size_t seen = 0; seen < count; seen += static_cast<size_t>(depth)) {
    std::vector<BlockKey> keys;
    for (int i = 0; i < depth; ++i) keys.push_back(BenchKey(ns_, next_get_++ % filled_));
    views = node_.client->View(ns_, keys, {.timeout = kTimeout});
    for (const BlockView& view : views) {
      if (!view.in_place()) return absl::UnknownError("view: a block is not there, or is a copy");
    }
  }
  const double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
  const double gigabytes = static_cast<double>(count * block_bytes) / 1e9;
  const absl::Duration cpu = OwnCpuTime() + node_.process.CpuTime() - cpu_before;
  return Measurement{gigabytes / seconds, absl::ToDoubleSeconds(cpu) / gigabytes};
}

absl::StatusOr<Measurement> TerraceContender::Run(size_t bytes, int depth, bool put) {
  const size_t block_bytes = ns_.shape.length;
  const size_t count = std::max<size_t>(bytes / block_bytes, static_cast<size_t>(depth));
  Mutex mutex;  // callbacks and the starting thread both start operations
  Pump pump(count, [&](size_t, Pump::Done done) {
    OperationOptions options{.timeout = kTimeout, .callback = [done](const Operation& operation) {
                               done(StatusOf(operation));
                             }};
    MutableByteSpan memory;
    BlockKey key;
    {
      MutexLock lock(&mutex);
      memory = arena_.Next(block_bytes);
      key = BenchKey(ns_, put ? next_put_++ : next_get_++ % filled_);
    }
    if (put) {
      node_.client->Put(ns_, {{.key = key, .source = {memory}, .metadata = {}}},
                        std::move(options));
    } else {
      node_.client->Get(ns_, {{.key = key, .destination = {memory}}}, std::move(options));
    }
  });
  const absl::Duration cpu_before = OwnCpuTime() + node_.process.CpuTime();
  const absl::Duration start = Clock::Real()->Now();
  TERRACE_RETURN_IF_ERROR(pump.Run(depth));
  const double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
  const double gigabytes = static_cast<double>(count * block_bytes) / 1e9;
  const absl::Duration cpu = OwnCpuTime() + node_.process.CpuTime() - cpu_before;
  return Measurement{gigabytes / seconds, absl::ToDoubleSeconds(cpu) / gigabytes};
}

absl::StatusOr<Chain> TerraceContender::Stored128() {
  std::vector<Digest> engine_digests(128);
  std::vector<ByteSpan> digests;
  for (size_t i = 0; i < engine_digests.size(); ++i) {
    engine_digests[i] = Sha256(std::as_bytes(std::span(&i, 1)));
    digests.push_back(std::as_bytes(std::span(engine_digests[i].bytes)));
  }
  TERRACE_ASSIGN_OR_RETURN(const Chain chain, Chain::FromDigests(ns_, digests));
  TERRACE_ASSIGN_OR_RETURN(MatchResult there, node_.client->Match(chain, {.timeout = kTimeout}));
  if (there.blocks != chain.blocks()) {
    std::vector<PutRequest> puts;
    for (size_t i = 0; i < chain.blocks(); ++i) {
      puts.push_back(
          {.key = chain.key(i), .source = {arena_.Next(ns_.shape.length)}, .metadata = {}});
    }
    Operation put = node_.client->Put(ns_, std::move(puts), {.timeout = kTimeout});
    put.Wait();
    if (put.succeeded() != chain.blocks()) return absl::UnknownError("match: blocks not stored");
  }
  return chain;
}

absl::StatusOr<Measurement> TerraceContender::Match128(int calls) {
  TERRACE_ASSIGN_OR_RETURN(const Chain chain, Stored128());
  std::vector<double> microseconds;
  for (int i = 0; i < calls; ++i) {
    const absl::Duration start = Clock::Real()->Now();
    TERRACE_ASSIGN_OR_RETURN(MatchResult match, node_.client->Match(chain, {.timeout = kTimeout}));
    microseconds.push_back(absl::ToDoubleMicroseconds(Clock::Real()->Now() - start));
    if (match.blocks != chain.blocks()) return absl::UnknownError("match: fewer than 128 blocks");
  }
  std::nth_element(microseconds.begin(), microseconds.begin() + calls / 2, microseconds.end());
  return Measurement{microseconds[static_cast<size_t>(calls) / 2], 0};
}

absl::StatusOr<Measurement> TerraceContender::Lease128(int calls) {
  TERRACE_ASSIGN_OR_RETURN(const Chain chain, Stored128());
  const absl::Duration start = Clock::Real()->Now();
  for (int i = 0; i < calls; ++i) {
    TERRACE_ASSIGN_OR_RETURN(
        const MatchResult match,
        node_.client->Match(chain, {.timeout = kTimeout, .lease = absl::Seconds(10)}));
    if (match.blocks != chain.blocks() || !match.lease) {
      return absl::UnknownError("lease: fewer than 128 blocks");
    }
  }
  const absl::Duration took = Clock::Real()->Now() - start;
  return Measurement{absl::ToDoubleMicroseconds(took) / calls, 0};
}

}  // namespace terrace::bench
