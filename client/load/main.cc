// terrace-load: traffic as inference workers make it, every byte judged.
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "client/client.h"
#include "client/dial.h"
#include "client/load/replay.h"
#include "client/load/traffic.h"
#include "client/table.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "proto/clock.h"
#include "proto/control.grpc.pb.h"
#include "proto/flags.h"
#include "proto/mutex.h"
#include "proto/program.h"
#include "proto/status.h"
#include "proto/units.h"

namespace terrace {
namespace {

constexpr absl::Duration kAskTimeout = absl::Seconds(5);
constexpr int kExitWrong = 1, kExitUsage = 2, kExitInterrupted = 130;

std::atomic<bool> stop{false};
void OnInterrupt(int) { stop.store(true); }

struct Options {
  ClientOptions client;
  std::string trace;
  uint64_t limit = 0;
  absl::Duration seconds = absl::Seconds(10);
  uint64_t workers = 4;
  uint64_t block_bytes = 64 << 10;
  uint64_t segments = 4;
  std::string ns = "load";
  std::string json;
  uint64_t seed = 1;
};

// "30" and "30s" are both half a minute.
absl::StatusOr<absl::Duration> ParseSeconds(const std::string& text) {
  if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) {
    return ParseDuration(text + "s");
  }
  return ParseDuration(text);
}

double GBps(uint64_t bytes, absl::Duration time) {
  return time > absl::ZeroDuration()
             ? static_cast<double>(bytes) / 1e9 / absl::ToDoubleSeconds(time)
             : 0;
}

double HitRate(const ReplayReport& report) {
  if (report.blocks_requested == 0) return 0;
  return static_cast<double>(report.hit_blocks()) / static_cast<double>(report.blocks_requested);
}

bool Wrong(const ReplayReport& report) {
  return report.wrong_bytes + report.errors + report.stuck + report.unreachable > 0;
}

double Rate(const ReplayReport& report) {
  return static_cast<double>(report.requests) / absl::ToDoubleSeconds(report.elapsed);
}

nlohmann::json ToJson(const ReplayReport& report) {
  nlohmann::json hits = nlohmann::json::object();
  for (const auto& [tier, blocks] : report.hits) hits[tier] = blocks;
  return {{"requests", report.requests},
          {"blocks_requested", report.blocks_requested},
          {"hits", hits},
          {"misses", report.misses},
          {"hit_rate", HitRate(report)},
          {"wrong_bytes", report.wrong_bytes},
          {"errors", report.errors},
          {"first_error", report.first_error},
          {"timeouts", report.timeouts},
          {"unreachable", report.unreachable},
          {"stuck", report.stuck},
          {"no_space", report.no_space},
          {"elapsed_s", absl::ToDoubleSeconds(report.elapsed)},
          {"requests_per_s", Rate(report)},
          {"put_bytes", report.put_bytes},
          {"get_bytes", report.get_bytes},
          {"local_bytes", report.local_bytes},
          {"put_GBps", GBps(report.put_bytes, report.putting)},
          {"get_GBps", GBps(report.get_bytes, report.getting)},
          {"match_p50_us", report.match_latency.Quantile(0.5)},
          {"match_p99_us", report.match_latency.Quantile(0.99)},
          {"get_p50_us", report.get_latency.Quantile(0.5)},
          {"get_p99_us", report.get_latency.Quantile(0.99)}};
}

// Why there may be no hits in the ssd tier; empty without one. The summary does without where the
// node does not answer.
std::string AskAboutSsd(const ClientOptions& client) {
  const absl::StatusOr<Dialed> dialed =
      Dial({client.address, client.token_file, client.ca_file, client.cert_file, client.key_file});
  if (!dialed.ok()) return "";
  grpc::ClientContext context;
  Prepare(*dialed, kAskTimeout, &context);
  control::v1::GetTiersReply reply;
  const auto stub = control::v1::Admin::NewStub(dialed->channel);
  if (!stub->GetTiers(&context, control::v1::GetTiersRequest(), &reply).ok()) return "";
  if (reply.tiers_size() < 2) return "";
  const auto& demotions = reply.tiers(0).demotions();
  const auto written = demotions.find("written");
  return written == demotions.end() || written->second == 0
             ? "nothing has left host memory yet"
             : "what was asked for again was still in host memory";
}

std::string Summary(const ReplayReport& report, const std::string& about_ssd) {
  Table table;
  table.SetAlign(1, Table::Align::kRight);
  const auto count = [&table](const std::string& name, uint64_t value, const char* unit = "") {
    table.AddRow({name, FormatCount(value), unit});
  };
  const auto number = [&table](const std::string& name, double value, int digits,
                               const char* unit) {
    table.AddRow({name, fmt::format("{:.{}f}", value, digits), unit});
  };
  count("requests", report.requests);
  number("time", absl::ToDoubleSeconds(report.elapsed), 1, "s");
  number("requests per second", Rate(report), 1, "");
  count("blocks requested", report.blocks_requested);
  for (const auto& [tier, blocks] : report.hits) {
    count("hits in " + tier, blocks, tier == "ssd" && blocks == 0 ? about_ssd.c_str() : "");
  }
  count("misses", report.misses);
  number("hit rate", HitRate(report), 4, "");
  number("put", GBps(report.put_bytes, report.putting), 2, "GB/s while putting");
  number("get", GBps(report.get_bytes, report.getting), 2, "GB/s while getting");
  number("match p50", report.match_latency.Quantile(0.5), 0, "us");
  number("match p99", report.match_latency.Quantile(0.99), 0, "us");
  number("get p50", report.get_latency.Quantile(0.5), 0, "us per operation");
  number("get p99", report.get_latency.Quantile(0.99), 0, "us per operation");
  count("no space", report.no_space, "puts");
  count("timeouts", report.timeouts);
  count("unreachable", report.unreachable, "requests without a node");
  count("wrong bytes", report.wrong_bytes);
  count("errors", report.errors, report.first_error.c_str());
  count("stuck", report.stuck);
  const std::string verdict = Wrong(report) ? "NOT all is well: see above"
                                            : "all is well: every byte that came back was right";
  return table.Format() + "\n" + verdict + "\n";
}

// A line on standard error that is written over while it is a terminal, and rare while it is not.
class ProgressLine {
 public:
  explicit ProgressLine(const ReplayProgress& progress)
      : progress_(progress), thread_([this] { Loop(); }) {}
  ~ProgressLine() {
    {
      MutexLock lock(&mutex_);
      ended_ = true;
      wake_.Signal();
    }
    thread_.join();
    if (terminal_) PrintTo(stderr, "\r\x1b[K");
  }

 private:
  void Loop() {
    const absl::Duration period = terminal_ ? absl::Seconds(1) : absl::Seconds(10);
    absl::Duration next = Clock::Real()->Now() + period;
    MutexLock lock(&mutex_);
    while (!ended_) {
      wake_.WaitWithTimeout(&mutex_, next - Clock::Real()->Now());
      if (ended_ || Clock::Real()->Now() < next) continue;
      next += period;
      Print(absl::ToDoubleSeconds(period));
    }
  }

  void Print(double seconds) {
    const uint64_t bytes = progress_.bytes.load();
    const double blocks = std::max<double>(1, static_cast<double>(progress_.blocks.load()));
    const std::string line =
        fmt::format("{} requests, hit rate {:.3f}, {:.2f} GB/s", FormatCount(progress_.requests),
                    static_cast<double>(progress_.hits.load()) / blocks,
                    static_cast<double>(bytes - last_bytes_) / 1e9 / seconds);
    last_bytes_ = bytes;
    PrintTo(stderr, "{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\x1b[K" : "\n");
  }

  const ReplayProgress& progress_;
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  uint64_t last_bytes_ = 0;
  Mutex mutex_;
  CondVar wake_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all the others
};

std::optional<int> ParseFlags(int argc, const char* const* argv, Options* options) {
  Flags flags("terrace-load",
              "Drives a node with multi-turn traffic that shares prefixes, and judges every byte "
              "that comes back.");
  std::string seconds = "10";
  flags.AddString("--address", &options->client.address, "the node's control plane, HOST:PORT");
  flags.AddString("--token-file", &options->client.token_file, "file with the bearer token");
  flags.AddString("--ca", &options->client.ca_file, "PEM file: CA of the node (switches TLS on)");
  flags.AddString("--cert", &options->client.cert_file, "PEM file: own certificate, for mTLS");
  flags.AddString("--key", &options->client.key_file, "PEM file: its private key");
  bool remote = false;
  flags.AddBool("--remote", &remote,
                "let all bytes travel, also where the node's memory can be read in place");
  flags.AddString("--trace", &options->trace,
                  "replay this trace (JSON lines with hash_ids) instead of generated traffic");
  flags.AddUint("--limit", &options->limit, "requests of the trace at most; 0: all", 0,
                uint64_t{1} << 40);
  flags.AddString("--seconds", &seconds, "how long to generate traffic");
  flags.AddUint("--workers", &options->workers, "requests at a time", 1, 64);
  flags.AddBytes("--block-bytes", &options->block_bytes, "length of each block");
  flags.AddUint("--segments", &options->segments, "parts of a block with a checksum each", 1,
                kMaxSegments);
  flags.AddString("--namespace", &options->ns, "namespace to open (created where it is missing)");
  flags.AddUint("--seed", &options->seed, "of the traffic and of its keys", 0, UINT64_MAX);
  flags.AddString("--json", &options->json, "write the summary as one JSON object to this file");
  flags.Footer(
      "Exit code: 0 all is well (a timeout is a miss); 1 wrong bytes, errors, stuck operations or "
      "a node lost;\n"
      "2 wrong usage, no node or nothing to do; 130 interrupted.");
  if (std::optional<int> code = flags.Parse(argc, argv)) return code;
  absl::StatusOr<absl::Duration> parsed = ParseSeconds(seconds);
  if (!parsed.ok()) {
    PrintTo(stderr, "terrace-load: --seconds: {}\n", std::string(parsed.status().message()));
    return kExitUsage;
  }
  options->seconds = *parsed;
  options->client.local = !remote;
  const BlockShape shape{
      static_cast<uint32_t>(std::min<uint64_t>(options->block_bytes, UINT32_MAX)),
      static_cast<uint32_t>(options->segments)};
  if (absl::Status valid = Validate(shape); !valid.ok()) {
    PrintTo(stderr, "terrace-load: --block-bytes, --segments: {}\n", std::string(valid.message()));
    return kExitUsage;
  }
  return std::nullopt;
}

NamespaceDefinition ToNamespace(const Options& options) {
  NamespaceDefinition definition;
  definition.name = options.ns;
  definition.hash_algorithm = "terrace-load";
  definition.layout.model = "terrace-load";
  definition.layout.block_tokens = 512;
  definition.layout.block_bytes = static_cast<uint32_t>(options.block_bytes);
  definition.layout.segments = static_cast<uint32_t>(options.segments);
  return definition;
}

absl::Status Run(const Options& options, ReplayReport* report) {
  std::unique_ptr<Traffic> traffic = MakeConversations(options.seed);
  ReplayOptions replay{ToNamespace(options), options.workers, options.seconds, options.seed};
  if (!options.trace.empty()) {
    TERRACE_ASSIGN_OR_RETURN(traffic, OpenTrace(options.trace, options.limit));
    replay.time_limit = absl::InfiniteDuration();
  }
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Connect(options.client));
  TERRACE_RETURN_IF_ERROR(client->OpenNamespace(replay.ns).status());
  struct sigaction action {};
  action.sa_handler = &OnInterrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second one ends us at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const ClientStats path = client->Stats();
  PrintTo(stderr, "terrace-load: blocks are read {}\n",
          path.local ? fmt::format("from the node's memory ({})", path.local_reason)
                     : fmt::format("over {}: {}", path.transport, path.local_reason));
  Replay run(client.get(), traffic.get(), std::move(replay), &stop);
  ProgressLine line(run.progress());
  absl::Status ended = run.Run(report);
  report->local_bytes = client->Stats().local_bytes;
  return ended;
}

int Main(int argc, const char* const* argv) {
  Options options;
  const char* address = std::getenv("TERRACE_ADDRESS");
  options.client.address = address != nullptr ? address : "127.0.0.1:7470";
  options.client.name = "terrace-load";
  if (std::optional<int> code = ParseFlags(argc, argv, &options)) return *code;
  std::ofstream json;  // opened first: not after a long run is it seen that it cannot be
  if (!options.json.empty()) {
    json.open(options.json);
    if (!json) {
      PrintTo(stderr, "terrace-load: cannot write --json {}\n", options.json);
      return kExitUsage;
    }
  }
  ReplayReport report;
  if (absl::Status status = Run(options, &report); !status.ok()) {
    PrintTo(stderr, "terrace-load: {}\n", std::string(status.message()));
    return kExitUsage;
  }
  const std::string about_ssd = AskAboutSsd(options.client);
  if (!about_ssd.empty()) report.hits.try_emplace("ssd", 0);
  PrintTo(stdout, "{}", Summary(report, about_ssd));
  if (!options.json.empty()) {
    json << ToJson(report).dump(2) << "\n";
    if (!json.flush()) {
      PrintTo(stderr, "terrace-load: cannot write --json {}\n", options.json);
      return kExitUsage;
    }
  }
  if (stop) return kExitInterrupted;
  if (report.requests == 0) {
    PrintTo(stderr, "terrace-load: not one request was made; {}\n",
            options.trace.empty() ? "--seconds is too short for blocks of this size"
                                  : "--trace holds none");
    return kExitUsage;
  }
  return Wrong(report) ? kExitWrong : 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  return terrace::RunProgram("terrace-load", &terrace::Main, argc, argv);
}
