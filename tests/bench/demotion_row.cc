#include "tests/bench/demotion_row.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "proto/clock.h"
#include "proto/status.h"
#include "storage/tier_policy.h"
#include "tests/bench/fio_contender.h"
#include "tests/bench/pump.h"

namespace terrace::bench {
namespace {

constexpr uint32_t kReadBlock = 64 << 10, kFreshBlock = 1 << 20;
constexpr size_t kReadBlocks = 2048;  // 128 MiB
constexpr absl::Duration kRound = absl::Milliseconds(500);
constexpr size_t kMemoryBytes = size_t{256} << 20;
constexpr uint64_t kHostBytes = uint64_t{6} << 30, kSsdBytes = uint64_t{4} << 30;
constexpr double kShareOfDevice = 0.2;
constexpr int kFioRounds = 5, kFioDepth = 16;
constexpr size_t kFioBytes = size_t{256} << 20;
// What is over the mark when a round begins lasts so long at the row's pace.
constexpr double kLastsFor = 0.75;
// Of what was due in a round, what the mover must have written.
constexpr double kLeastDemoted = 0.8;
constexpr size_t kPutsAtOnce = 64;
// Of what is free below the mark: blocks take a little more than their bytes.
constexpr double kFirstFill = 0.95;
constexpr absl::Duration kTimeout = Pump::kTimeout;

absl::StatusOr<double> DeviceBytesPerSecond(const std::string& folder) {
  TERRACE_ASSIGN_OR_RETURN(const auto fio, FioContender::Start(folder, kFioBytes));
  std::vector<double> speeds;
  for (int i = 0; i < kFioRounds; ++i) {
    TERRACE_ASSIGN_OR_RETURN(const Measurement one, fio->Write(kFreshBlock, kFioBytes, kFioDepth));
    speeds.push_back(one.value * 1e9);
  }
  return MedianInterval(speeds).median;
}

uint64_t Mark() { return static_cast<uint64_t>(HostMarksOverSsd(kHostBytes).high * kHostBytes); }

}  // namespace

DemotionRow::DemotionRow(SsdFolder folder, BenchNode node, std::string bin_folder,
                         double device_bytes_per_s)
    : folder_(std::move(folder)),
      node_(std::move(node)),
      bin_folder_(std::move(bin_folder)),
      demoted_bytes_per_s_(kShareOfDevice * device_bytes_per_s),
      memory_(kMemoryBytes) {}

absl::StatusOr<std::unique_ptr<DemotionRow>> DemotionRow::Start(const std::string& bin_folder,
                                                                SsdFolder folder) {
  TERRACE_ASSIGN_OR_RETURN(const double device, DeviceBytesPerSecond(folder.path()));
  TERRACE_ASSIGN_OR_RETURN(
      ChildProcess process,
      BenchNode::StartProcess(
          bin_folder, {"--host-bytes", std::to_string(kHostBytes), "--ssd",
                       fmt::format("{}/terrace:{}", folder.path(), kSsdBytes), "--ssd-write-rate",
                       std::to_string(static_cast<uint64_t>(kShareOfDevice * device))}));
  TERRACE_ASSIGN_OR_RETURN(BenchNode node, BenchNode::Connect(std::move(process), /*local=*/false));
  std::unique_ptr<DemotionRow> row(
      new DemotionRow(std::move(folder), std::move(node), bin_folder, device));
  TERRACE_ASSIGN_OR_RETURN(row->fresh_, OpenBenchNamespace(row->node_.client.get(), kFreshBlock));
  TERRACE_RETURN_IF_ERROR(row->PutReadBlocks());
  TERRACE_ASSIGN_OR_RETURN(const State state, row->Look());
  const auto below =
      static_cast<uint64_t>(kFirstFill * static_cast<double>(Mark() - state.occupied));
  TERRACE_RETURN_IF_ERROR(row->PutFresh(below));
  return row;
}

absl::Status DemotionRow::PutReadBlocks() {
  Client* const client = node_.client.get();
  TERRACE_ASSIGN_OR_RETURN(const Namespace ns, OpenBenchNamespace(client, kReadBlock));
  std::vector<Digest> digests(kReadBlocks);
  std::vector<ByteSpan> spans;
  for (uint64_t i = 0; i < kReadBlocks; ++i) {
    std::memcpy(digests[i].bytes.data(), &i, sizeof(i));
    spans.push_back(std::as_bytes(std::span(digests[i].bytes)));
  }
  TERRACE_ASSIGN_OR_RETURN(read_, Chain::FromDigests(ns, spans));
  std::vector<PutRequest> puts;
  for (uint64_t i = 0; i < kReadBlocks; ++i) {
    puts.push_back({.key = read_->key(i), .source = {memory_.Next(kReadBlock)}, .metadata = {}});
  }
  Operation put = client->Put(ns, std::move(puts), {.timeout = kTimeout});
  put.Wait();
  return StatusOf(put);
}

absl::Status DemotionRow::PutFresh(uint64_t bytes) {
  for (uint64_t left = bytes / kFreshBlock + 1; left > 0;) {
    std::vector<PutRequest> puts;
    for (; left > 0 && puts.size() < kPutsAtOnce; --left) {
      puts.push_back({.key = BenchKey(fresh_, next_fresh_++),
                      .source = {memory_.Next(kFreshBlock)},
                      .metadata = {}});
    }
    Operation put = node_.client->Put(fresh_, std::move(puts), {.timeout = kTimeout});
    put.Wait();
    TERRACE_RETURN_IF_ERROR(StatusOf(put));
  }
  return absl::OkStatus();
}

absl::StatusOr<DemotionRow::State> DemotionRow::Look() const {
  TERRACE_ASSIGN_OR_RETURN(ChildProcess admin,
                           ChildProcess::Start({bin_folder_ + "/terracectl", "--address",
                                                node_.address, "tiers", "--json"}));
  if (admin.Wait() != 0) return absl::UnknownError("terracectl tiers: " + admin.errors());
  const auto parsed = nlohmann::json::parse(admin.output(), nullptr, false);
  if (parsed.is_discarded()) return absl::UnknownError("terracectl tiers: " + admin.output());
  const auto& tiers = parsed["tiers"];
  return State{tiers[0]["occupied_bytes"], tiers[0]["referenced_blocks"],
               tiers[1]["puts"].get<uint64_t>() * kFreshBlock};
}

absl::StatusOr<DemotionRow::State> DemotionRow::Settle() {
  const absl::Duration end = Clock::Real()->Now() + kTimeout;
  TERRACE_ASSIGN_OR_RETURN(State state, Look());
  while (state.leaving > 0 || state.occupied > Mark()) {
    if (Clock::Real()->Now() > end) return absl::DeadlineExceededError("demotion does not end");
    TERRACE_ASSIGN_OR_RETURN(state, Look());
  }
  TERRACE_ASSIGN_OR_RETURN(const MatchResult match, node_.client->Match(*read_));
  const auto in_host = std::ranges::count(match.tiers, Tier::kHost);
  if (in_host != kReadBlocks) {
    return absl::UnknownError(
        fmt::format("of {} blocks that are read, {} are found, {} in host memory", kReadBlocks,
                    match.blocks, in_host));
  }
  return state;
}

absl::StatusOr<Measurement> DemotionRow::Quiet() {
  TERRACE_RETURN_IF_ERROR(Settle().status());
  return SlowestHundredth();
}

absl::StatusOr<Measurement> DemotionRow::Demoting() {
  TERRACE_ASSIGN_OR_RETURN(const State before, Settle());
  TERRACE_RETURN_IF_ERROR(
      PutFresh(Mark() - before.occupied + static_cast<uint64_t>(kLastsFor * demoted_bytes_per_s_)));
  const absl::StatusOr<Measurement> slowest = SlowestHundredth();
  TERRACE_ASSIGN_OR_RETURN(const State after, Look());
  const double due = demoted_bytes_per_s_ * absl::ToDoubleSeconds(kRound);
  const auto demoted = static_cast<double>(after.demoted - before.demoted);
  if (demoted < kLeastDemoted * due) {
    return absl::UnknownError(
        fmt::format("{:.0f} bytes were demoted in a round, {:.0f} were due", demoted, due));
  }
  return slowest;
}

absl::StatusOr<Measurement> DemotionRow::SlowestHundredth() {
  std::vector<double> microseconds;
  const absl::Duration end = Clock::Real()->Now() + kRound;
  while (Clock::Real()->Now() < end) {
    const BlockKey key = read_->key(next_get_++ % kReadBlocks);
    const absl::Duration start = Clock::Real()->Now();
    Operation get =
        node_.client->Get(read_->ns(), {{.key = key, .destination = {memory_.Next(kReadBlock)}}},
                          {.timeout = kTimeout});
    get.Wait();
    microseconds.push_back(absl::ToDoubleMicroseconds(Clock::Real()->Now() - start));
    TERRACE_RETURN_IF_ERROR(StatusOf(get));
  }
  const auto p99 = microseconds.begin() + static_cast<ptrdiff_t>(microseconds.size() * 99 / 100);
  std::ranges::nth_element(microseconds, p99);
  return Measurement{*p99, 0};
}

absl::StatusOr<RowResult> DemotionRow::Run(int rounds, const std::atomic<bool>* stop) {
  Row row{.name = kName, .unit = "us"};
  row.terrace = {"terrace", [this] { return Demoting(); }};
  row.limit = {"quiet", [this] { return Quiet(); }};
  row.bar = 1 / 1.5;
  return RunRow(row, rounds, stop);
}

}  // namespace terrace::bench
