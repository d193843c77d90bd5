// ./dev bench: Terrace beside its physical limit and its peers. See rounds.h for how it judges.
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <tuple>

#include "fmt/format.h"
#include "proto/flags.h"
#include "proto/status.h"
#include "tests/bench/bench_loop.h"
#include "tests/bench/demotion_row.h"
#include "tests/bench/memory_contender.h"
#include "tests/bench/redis_contender.h"
#include "tests/bench/report.h"
#include "tests/bench/rounds.h"
#include "tests/bench/ssd_rows.h"
#include "tests/bench/terrace_contender.h"
#include "tests/bench/ucx_loop.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kHostBytes = uint64_t{2} << 30, kLocalHostBytes = uint64_t{1} << 30;
constexpr size_t kWorkingSetBytes = size_t{1} << 30;
constexpr size_t kRoundBytesDeep = size_t{192} << 20;  // with several blocks in flight
constexpr size_t kRoundBytesOne = size_t{64} << 20;    // with one
// A row with a bar gets more, so that its interval is narrow enough to decide.
constexpr int kFullRounds = 31, kBarRounds = 101, kQuickRounds = 7;
// A Match of 128 keys is this much on the wire, answered by a small frame.
constexpr uint64_t kMatchRequestBytes = 128 * 34 + 32;
constexpr int kMatchCalls = 400;
constexpr int kDeep = 8;     // blocks in flight
constexpr int kViewed = 32;  // blocks of one View
constexpr int kExitMissed = 1, kExitBroken = 2, kExitInterrupted = 130;

// The row that runs ends as with an error, so that processes and files go as they always do. A
// second interruption ends the program at once.
std::atomic<bool> interrupted{false};
void OnInterrupt(int) { interrupted.store(true); }

struct Options {
  bool quick = false;
  std::string json;
  std::string only;
  std::string ssd_folder;
};

// The bare loop chooses its fastest form when it is set up, which takes a while: once per row.
class Limit {
 public:
  explicit Limit(std::unique_ptr<BenchLoop> loop) : loop_(std::move(loop)) {}

  absl::StatusOr<BenchRound> Run(uint64_t block_bytes, int depth, BenchDirection direction,
                                 uint64_t bytes) {
    const Setup wanted{block_bytes, depth, direction};
    if (setup_ != wanted) {
      TERRACE_RETURN_IF_ERROR(loop_->Setup(block_bytes, depth, direction));
      setup_ = wanted;
    }
    return loop_->Run(bytes);
  }

 private:
  using Setup = std::tuple<uint64_t, int, BenchDirection>;

  const std::unique_ptr<BenchLoop> loop_;
  std::optional<Setup> setup_;
};

struct Contenders {
  std::unique_ptr<TerraceContender> terrace;
  std::unique_ptr<Limit> ucx;
  std::unique_ptr<RedisContender> redis;
  std::unique_ptr<MemoryContender> memory;
};

absl::StatusOr<Measurement> RunLimit(Limit* limit, uint64_t block_bytes, int depth,
                                     BenchDirection direction, uint64_t bytes) {
  TERRACE_ASSIGN_OR_RETURN(const BenchRound round,
                           limit->Run(block_bytes, depth, direction, bytes));
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  return Measurement{gigabytes / round.seconds,
                     (round.near_cpu_seconds + round.far_cpu_seconds) / gigabytes};
}

Row TransferRow(Contenders* all, const std::string& size, uint32_t block_bytes, int depth,
                bool put) {
  const size_t bytes = depth == 1 ? kRoundBytesOne : kRoundBytesDeep;
  const BenchDirection direction = put ? BenchDirection::kPut : BenchDirection::kGet;
  Row row{.name = fmt::format("{}_{}_tcp_qd{}", put ? "put" : "get", size, depth), .unit = "GB/s"};
  row.terrace = {"terrace", [=] {
                   return put ? all->terrace->Put(bytes, depth) : all->terrace->Get(bytes, depth);
                 }};
  row.limit = {"bare UCX",
               [=] { return RunLimit(all->ucx.get(), block_bytes, depth, direction, bytes); }};
  row.peer = Contender{
      "redis", [=] { return put ? all->redis->Put(bytes, depth) : all->redis->Get(bytes, depth); }};
  if (block_bytes == 1 << 20 && depth == 8) {
    row.bar = 0.85;
    row.peer_bar = 1.0;
  }
  return row;
}

// The worker beside its node: what it reads, it reads in the node's memory.
Row LocalGetRow(Contenders* all, const std::string& size, uint32_t block_bytes) {
  Row row{.name = fmt::format("get_{}_local", size), .unit = "GB/s"};
  row.terrace = {"terrace", [=] { return all->terrace->Get(kRoundBytesDeep, kDeep); }};
  row.limit = {"copy + check",
               [=] { return all->memory->CopyAndCheck(block_bytes, kRoundBytesDeep); }};
  row.peer = Contender{"redis", [=] { return all->redis->Get(kRoundBytesDeep, kDeep); }};
  if (block_bytes == 1 << 20) {
    row.bar = 0.85;
    row.peer_bar = 3.0;
  }
  return row;
}

// The same row beside Redis over its unix socket.
Row BesideUnixSocket(Contenders* all, Row row, bool put) {
  constexpr auto kUnix = RedisContender::Socket::kUnix;
  row.name += "_unix";
  row.peer = Contender{"redis, unix socket", [=] {
                         return put ? all->redis->Put(kRoundBytesDeep, kDeep, kUnix)
                                    : all->redis->Get(kRoundBytesDeep, kDeep, kUnix);
                       }};
  row.bar = row.peer_bar = std::nullopt;
  return row;
}

// Blocks used where they lie, a prefix at a time.
Row LocalViewRow(Contenders* all, const std::string& size, uint32_t block_bytes) {
  Row row{.name = fmt::format("view_{}_local", size), .unit = "GB/s"};
  row.terrace = {"terrace", [=] { return all->terrace->View(kRoundBytesDeep, kViewed); }};
  row.limit = {"check", [=] { return all->memory->Check(block_bytes, kRoundBytesDeep); }};
  if (block_bytes == 1 << 20) row.bar = 0.9;
  return row;
}

Row LocalPutRow(Contenders* all, const std::string& size, uint32_t block_bytes) {
  Row row{.name = fmt::format("put_{}_local", size), .unit = "GB/s"};
  row.terrace = {"terrace", [=] { return all->terrace->Put(kRoundBytesDeep, kDeep); }};
  row.limit = {"copy", [=] { return all->memory->Copy(block_bytes, kRoundBytesDeep); }};
  row.peer = Contender{"redis", [=] { return all->redis->Put(kRoundBytesDeep, kDeep); }};
  if (block_bytes == 1 << 20) row.bar = 0.7;
  return row;
}

// A question about 128 blocks; with `lease`, they are leased and given back as well.
Row MatchRow(Contenders* all, const std::string& name, double most, bool lease = false) {
  Row row{.name = name, .unit = "us"};
  row.terrace = {"terrace", [=] {
                   return lease ? all->terrace->Lease128(kMatchCalls)
                                : all->terrace->Match128(kMatchCalls);
                 }};
  row.limit = {"bare UCX", [=]() -> absl::StatusOr<Measurement> {
                 TERRACE_ASSIGN_OR_RETURN(const BenchRound round,
                                          all->ucx->Run(kMatchRequestBytes, 1, BenchDirection::kPut,
                                                        kMatchCalls * kMatchRequestBytes));
                 return Measurement{round.seconds * 1e6 / kMatchCalls, 0};
               }};
  row.most = most;
  return row;
}

class Benchmark {
 public:
  explicit Benchmark(const Options& options) : options_(options) {}

  absl::Status Run(const std::string& bin_folder) {
    PrintHeading(rounds(/*barred=*/false));
    TERRACE_RETURN_IF_ERROR(RunSsd(bin_folder));
    constexpr std::pair<const char*, uint32_t> kSizes[] = {
        {"64KiB", 64 << 10}, {"256KiB", 256 << 10}, {"1MiB", 1 << 20}, {"4MiB", 4 << 20}};
    for (const auto& [size, block_bytes] : kSizes) {
      TERRACE_RETURN_IF_ERROR(RunLocal(bin_folder, size, block_bytes));
      TERRACE_RETURN_IF_ERROR(RunWire(bin_folder, size, block_bytes));
    }
    PrintSummary(results_);
    if (!options_.json.empty()) return WriteJson(options_.json, results_);
    return absl::OkStatus();
  }

  bool failed() const {
    return std::ranges::any_of(results_,
                               [](const RowResult& r) { return r.verdict == Verdict::kFail; });
  }

 private:
  int rounds(bool barred) const {
    if (options_.quick) return kQuickRounds;
    return barred ? kBarRounds : kFullRounds;
  }

  // Before the wire's rows, which bind this process to one processor.
  absl::Status RunSsd(const std::string& bin_folder) {
    const std::string build = std::filesystem::path(bin_folder).parent_path();
    if (std::string(DemotionRow::kName).find(options_.only) != std::string::npos) {
      TERRACE_ASSIGN_OR_RETURN(
          SsdFolder folder, SsdFolder::Make(options_.ssd_folder, build, DemotionRow::kDiskBytes));
      TERRACE_ASSIGN_OR_RETURN(const auto row, DemotionRow::Start(bin_folder, std::move(folder)));
      TERRACE_ASSIGN_OR_RETURN(RowResult result, row->Run(rounds(true), &interrupted));
      Report(std::move(result));
    }
    const std::vector<std::string> names = SsdRows::Names(options_.only);
    if (names.empty()) return absl::OkStatus();
    TERRACE_ASSIGN_OR_RETURN(SsdFolder folder,
                             SsdFolder::Make(options_.ssd_folder, build, SsdRows::kDiskBytes));
    TERRACE_ASSIGN_OR_RETURN(const auto rows, SsdRows::Start(std::move(folder)));
    for (const std::string& name : names) {
      TERRACE_ASSIGN_OR_RETURN(RowResult result, rows->Run(name, rounds(true), &interrupted));
      Report(std::move(result));
    }
    return absl::OkStatus();
  }

  // What these rows need and does not run yet.
  absl::Status StartOthers(const std::vector<Row>& rows, bool local) {
    if (local && all_.memory == nullptr) all_.memory = std::make_unique<MemoryContender>();
    if (all_.ucx == nullptr) {
      TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<BenchLoop> loop, CreateUcxLoop());
      all_.ucx = std::make_unique<Limit>(std::move(loop));
    }
    const bool peer =
        std::ranges::any_of(rows, [](const Row& row) { return row.peer.has_value(); });
    if (!peer || all_.redis != nullptr) return absl::OkStatus();
    TERRACE_ASSIGN_OR_RETURN(all_.redis, RedisContender::Start());
    return absl::OkStatus();
  }

  absl::Status RunLocal(const std::string& bin_folder, const std::string& size,
                        uint32_t block_bytes) {
    std::vector<Row> rows = {LocalGetRow(&all_, size, block_bytes),
                             LocalViewRow(&all_, size, block_bytes),
                             LocalPutRow(&all_, size, block_bytes)};
    if (size == "64KiB") {
      rows.push_back(MatchRow(&all_, "match_128_local", 60));
      // A thousand leases per millisecond.
      rows.push_back(MatchRow(&all_, "lease_128_local", 128, /*lease=*/true));
    }
    if (size == "1MiB") {
      rows.push_back(BesideUnixSocket(&all_, rows[0], /*put=*/false));
      rows.push_back(BesideUnixSocket(&all_, rows[2], /*put=*/true));
    }
    return RunRows(bin_folder, std::move(rows), block_bytes, /*local=*/true);
  }

  absl::Status RunWire(const std::string& bin_folder, const std::string& size,
                       uint32_t block_bytes) {
    std::vector<Row> rows;
    for (bool put : {false, true}) {
      for (int depth : {1, kDeep}) {
        rows.push_back(TransferRow(&all_, size, block_bytes, depth, put));
      }
    }
    if (size == "64KiB") rows.push_back(MatchRow(&all_, "match_128_tcp", 150));
    return RunRows(bin_folder, std::move(rows), block_bytes, /*local=*/false);
  }

  absl::Status RunRows(const std::string& bin_folder, std::vector<Row> rows, uint32_t block_bytes,
                       bool local) {
    std::erase_if(
        rows, [this](const Row& row) { return row.name.find(options_.only) == std::string::npos; });
    if (rows.empty()) return absl::OkStatus();
    if (all_.ucx == nullptr) StayNear();
    TERRACE_RETURN_IF_ERROR(StartOthers(rows, local));
    const size_t blocks = (local ? kLocalArenaBytes : kWorkingSetBytes) / block_bytes;
    if (all_.redis != nullptr) TERRACE_RETURN_IF_ERROR(all_.redis->Fill(block_bytes, blocks));
    // A node of its own: blocks of other sizes, often read, would outlive this working set.
    all_.terrace.reset();
    TERRACE_ASSIGN_OR_RETURN(
        all_.terrace,
        TerraceContender::Start(bin_folder, local ? kLocalHostBytes : kHostBytes, local));
    for (const Row& row : rows) {
      // Rows that put drive the working set out; each begins with it whole.
      TERRACE_RETURN_IF_ERROR(all_.terrace->Fill(block_bytes, blocks));
      const bool barred = row.bar || row.peer_bar || row.most;
      TERRACE_ASSIGN_OR_RETURN(RowResult result, RunRow(row, rounds(barred), &interrupted));
      Report(std::move(result));
    }
    return absl::OkStatus();
  }

  void Report(RowResult result) {
    PrintRow(result);
    results_.push_back(std::move(result));
  }

  const Options options_;
  Contenders all_;
  std::vector<RowResult> results_;
};

int Main(int argc, char** argv) {
  Options options;
  Flags flags("terrace-bench", "Terrace beside its physical limit and its peers.");
  flags.AddBool("--quick", &options.quick, "fewer rounds: wider intervals");
  flags.AddString("--json", &options.json, "write the rows to this file, too");
  flags.AddString("--only", &options.only, "rows whose name contains this");
  flags.AddString("--ssd-folder", &options.ssd_folder,
                  "where the ssd rows keep 6 GiB of files, gone at the end (default: TMPDIR, or "
                  "beside the programs where that is memory)");
  if (auto code = flags.Parse(argc, argv)) return *code;
  struct sigaction action {};
  action.sa_handler = &OnInterrupt;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  Benchmark benchmark(options);
  const std::string bin_folder = std::filesystem::canonical("/proc/self/exe").parent_path();
  const absl::Status status = benchmark.Run(bin_folder);
  if (interrupted) return kExitInterrupted;
  if (!status.ok()) {
    fmt::print(stderr, "terrace-bench: {}\n", status.ToString());
    return kExitBroken;
  }
  return benchmark.failed() ? kExitMissed : 0;
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) { return terrace::bench::Main(argc, argv); }
