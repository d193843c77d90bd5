#include "tests/bench/demotion_row.h"

#include <algorithm>
#include <thread>

#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/status.h"
#include "tests/bench/fio_contender.h"
#include "tests/bench/pump.h"

namespace terrace::bench {
namespace {

constexpr uint32_t kReadBlock = 64 << 10, kFreshBlock = 1 << 20;
constexpr size_t kReadBlocks = 2048;  // 128 MiB
constexpr absl::Duration kRound = absl::Milliseconds(500);
constexpr size_t kMemoryBytes = size_t{256} << 20;
constexpr uint64_t kHostBytes = uint64_t{2} << 30, kSsdBytes = uint64_t{4} << 30;
constexpr double kShareOfDevice = 0.2;
constexpr int kFioRounds = 5, kFioDepth = 16;
constexpr size_t kFioBytes = size_t{256} << 20;
// Of fresh blocks per round, what the pace can use up in so many seconds.
constexpr double kFreshSeconds = 2;
constexpr size_t kBatch = 4;
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
      BenchNode::StartProcess(bin_folder,
                              {"--host-bytes", std::to_string(kHostBytes), "--ssd",
                               fmt::format("{}/terrace:{}", folder.path(), kSsdBytes)}));
  TERRACE_ASSIGN_OR_RETURN(BenchNode node, BenchNode::Connect(std::move(process)));
  std::unique_ptr<DemotionRow> row(
      new DemotionRow(std::move(folder), std::move(node), bin_folder, device));
  TERRACE_RETURN_IF_ERROR(row->PutReadBlocks());
  return row;
}

absl::Status DemotionRow::PutReadBlocks() {
  Client* const client = node_.client.get();
  TERRACE_ASSIGN_OR_RETURN(read_, OpenBenchNamespace(client, kReadBlock));
  std::vector<PutRequest> puts;
  for (uint64_t i = 0; i < kReadBlocks; ++i) {
    puts.push_back(
        {.key = BenchKey(read_, i), .source = {memory_.Next(kReadBlock)}, .metadata = {}});
  }
  Operation put = client->Put(read_, std::move(puts), {.timeout = kTimeout});
  put.Wait();
  return StatusOf(put);
}

absl::StatusOr<std::vector<BlockKey>> DemotionRow::PutFresh() {
  TERRACE_ASSIGN_OR_RETURN(fresh_, OpenBenchNamespace(node_.client.get(), kFreshBlock));
  const auto blocks = static_cast<size_t>(kFreshSeconds * demoted_bytes_per_s_ / kFreshBlock) + 1;
  std::vector<BlockKey> keys;
  std::vector<PutRequest> puts;
  for (size_t i = 0; i < blocks; ++i) {
    keys.push_back(BenchKey(fresh_, next_fresh_++));
    puts.push_back({.key = keys.back(), .source = {memory_.Next(kFreshBlock)}, .metadata = {}});
  }
  Operation put = node_.client->Put(fresh_, std::move(puts), {.timeout = kTimeout});
  put.Wait();
  TERRACE_RETURN_IF_ERROR(StatusOf(put));
  return keys;
}

absl::Status DemotionRow::Demote(const std::vector<BlockKey>& keys, testing::Stop* stop,
                                 std::atomic<bool>* began) {
  const absl::Duration start = Clock::Real()->Now();
  const absl::Duration step = absl::Seconds(kBatch * kFreshBlock / demoted_bytes_per_s_);
  std::vector<Operation> under_way;
  bool lasted = false;
  for (size_t at = 0; at < keys.size() && !lasted; at += kBatch) {
    const size_t end = std::min(at + kBatch, keys.size());
    under_way.push_back(node_.client->Persist(
        fresh_,
        {keys.begin() + static_cast<ptrdiff_t>(at), keys.begin() + static_cast<ptrdiff_t>(end)},
        {.timeout = kTimeout}));
    began->store(true);
    began->notify_all();
    const absl::Duration next = start + step * static_cast<double>(under_way.size());
    lasted = !stop->Wait(std::max(next - Clock::Real()->Now(), absl::ZeroDuration()));
  }
  for (Operation& operation : under_way) {
    operation.Wait();
    TERRACE_RETURN_IF_ERROR(StatusOf(operation));
  }
  if (!lasted) return absl::UnknownError("the fresh blocks did not last for the round");
  return absl::OkStatus();
}

absl::Status DemotionRow::ForgetFresh() {
  TERRACE_ASSIGN_OR_RETURN(
      ChildProcess admin,
      ChildProcess::Start({bin_folder_ + "/terracectl", "--address", node_.address, "namespace",
                           "delete", BenchNamespaceName(kFreshBlock)}));
  if (admin.Wait() == 0) return absl::OkStatus();
  return absl::UnknownError("terracectl namespace delete: " + admin.errors());
}

absl::StatusOr<Measurement> DemotionRow::Demoting() {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, PutFresh());
  testing::Stop stop;
  std::atomic<bool> began = false;
  absl::Status demoted;
  std::thread demotes([&] { demoted = Demote(keys, &stop, &began); });
  began.wait(false);
  const absl::StatusOr<Measurement> slowest = SlowestHundredth();
  stop.Now();
  demotes.join();
  TERRACE_RETURN_IF_ERROR(demoted);
  TERRACE_RETURN_IF_ERROR(ForgetFresh());
  return slowest;
}

absl::StatusOr<Measurement> DemotionRow::SlowestHundredth() {
  std::vector<double> microseconds;
  const absl::Duration end = Clock::Real()->Now() + kRound;
  while (Clock::Real()->Now() < end) {
    const BlockKey key = BenchKey(read_, next_get_++ % kReadBlocks);
    const absl::Duration start = Clock::Real()->Now();
    Operation get = node_.client->Get(
        read_, {{.key = key, .destination = {memory_.Next(kReadBlock)}}}, {.timeout = kTimeout});
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
