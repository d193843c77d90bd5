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
constexpr absl::Duration kTimeout = Pump::kTimeout;

absl::Status StatusOf(const Operation& operation) {
  const BlockResult& result = operation.results()[0];
  if (result.outcome == Outcome::kOk) return absl::OkStatus();
  return absl::UnknownError(
      fmt::format("operation ended as {} {}", ToString(result.outcome), result.message));
}

absl::StatusOr<ChildProcess> StartNode(const std::string& bin_folder, uint64_t host_bytes) {
  const StartingFar far;
  return ChildProcess::Start({bin_folder + "/terraced", "--listen", "127.0.0.1:0", "--http-listen",
                              "127.0.0.1:0", "--transport", "tcp", "--host-bytes",
                              std::to_string(host_bytes)});
}

}  // namespace

TerraceContender::TerraceContender(ChildProcess node, std::unique_ptr<Client> client)
    : node_(std::move(node)), client_(std::move(client)), arena_(kArenaBytes) {}

absl::StatusOr<std::unique_ptr<TerraceContender>> TerraceContender::Start(
    const std::string& bin_folder, uint64_t host_bytes) {
  TERRACE_ASSIGN_OR_RETURN(ChildProcess node, StartNode(bin_folder, host_bytes));
  TERRACE_ASSIGN_OR_RETURN(std::string ready,
                           node.WaitForLine("terraced ready", absl::Seconds(120)));
  TERRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<Client> client,
      Client::Connect(
          {.address = Field(ready, "control"), .name = "terrace-bench", .transport = "tcp"}));
  std::unique_ptr<TerraceContender> contender(
      new TerraceContender(std::move(node), std::move(client)));
  TERRACE_RETURN_IF_ERROR(contender->client_->RegisterMemory(contender->arena_.all()));
  return contender;
}

BlockKey TerraceContender::KeyOf(uint64_t number) const {
  BlockKey key{ns_.id, {}, 0};
  std::memcpy(key.digest.bytes.data(), &number, sizeof(number));
  // The index expects digests to be spread evenly.
  key.digest = Sha256(std::as_bytes(std::span(key.digest.bytes)));
  return key;
}

absl::Status TerraceContender::Fill(uint32_t block_bytes, size_t blocks) {
  NamespaceDefinition definition{.name = fmt::format("bench-{}", block_bytes)};
  definition.layout = {.model = "bench",
                       .block_tokens = 16,
                       .layers = 1,
                       .kv_heads = 1,
                       .head_dim = 1,
                       .block_bytes = block_bytes};
  TERRACE_ASSIGN_OR_RETURN(ns_, client_->OpenNamespace(definition));
  next_get_ = 0;
  next_put_ = 0;
  filled_ = blocks;
  TERRACE_RETURN_IF_ERROR(Run(blocks * block_bytes, 8, true).status());
  next_put_ = kFirstNewBlock + block_bytes;
  return absl::OkStatus();
}

absl::StatusOr<Measurement> TerraceContender::Get(size_t bytes, int depth) {
  return Run(bytes, depth, false);
}

absl::StatusOr<Measurement> TerraceContender::Put(size_t bytes, int depth) {
  return Run(bytes, depth, true);
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
      key = KeyOf(put ? next_put_++ : next_get_++ % filled_);
    }
    if (put) {
      client_->Put(ns_, {{.key = key, .source = {memory}, .metadata = {}}}, std::move(options));
    } else {
      client_->Get(ns_, {{.key = key, .destination = {memory}}}, std::move(options));
    }
  });
  const absl::Duration cpu_before = OwnCpuTime() + node_.CpuTime();
  const absl::Duration start = Clock::Real()->Now();
  TERRACE_RETURN_IF_ERROR(pump.Run(depth));
  const double seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
  const double gigabytes = static_cast<double>(count * block_bytes) / 1e9;
  const absl::Duration cpu = OwnCpuTime() + node_.CpuTime() - cpu_before;
  return Measurement{gigabytes / seconds, absl::ToDoubleSeconds(cpu) / gigabytes};
}

absl::StatusOr<Measurement> TerraceContender::Match128(int calls) {
  std::vector<Digest> engine_digests(128);
  std::vector<ByteSpan> digests;
  for (size_t i = 0; i < engine_digests.size(); ++i) {
    engine_digests[i] = Sha256(std::as_bytes(std::span(&i, 1)));
    digests.push_back(std::as_bytes(std::span(engine_digests[i].bytes)));
  }
  TERRACE_ASSIGN_OR_RETURN(const Chain chain, Chain::FromDigests(ns_, digests));
  TERRACE_ASSIGN_OR_RETURN(MatchResult there, client_->Match(chain, {.timeout = kTimeout}));
  if (there.blocks != chain.blocks()) {
    std::vector<PutRequest> puts;
    for (size_t i = 0; i < chain.blocks(); ++i) {
      puts.push_back(
          {.key = chain.key(i), .source = {arena_.Next(ns_.shape.length)}, .metadata = {}});
    }
    Operation put = client_->Put(ns_, std::move(puts), {.timeout = kTimeout});
    put.Wait();
    if (put.succeeded() != chain.blocks()) return absl::UnknownError("match: blocks not stored");
  }
  std::vector<double> microseconds;
  for (int i = 0; i < calls; ++i) {
    const absl::Duration start = Clock::Real()->Now();
    TERRACE_ASSIGN_OR_RETURN(MatchResult match, client_->Match(chain, {.timeout = kTimeout}));
    microseconds.push_back(absl::ToDoubleMicroseconds(Clock::Real()->Now() - start));
    if (match.blocks != chain.blocks()) return absl::UnknownError("match: fewer than 128 blocks");
  }
  std::nth_element(microseconds.begin(), microseconds.begin() + calls / 2, microseconds.end());
  return Measurement{microseconds[static_cast<size_t>(calls) / 2], 0};
}

}  // namespace terrace::bench
