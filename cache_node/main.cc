// terraced: a node of the cache.
#include <semaphore.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "cache_node/host_memory.h"
#include "cache_node/node.h"
#include "cache_node/options.h"
#include "cache_node/ports.h"
#include "cache_node/security.h"
#include "cache_node/ssd_folders.h"
#include "cache_node/supervisor.h"
#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/log.h"
#include "proto/program.h"
#include "proto/units.h"
#include "proto/version.h"
#include "storage/folder_identity.h"

namespace terrace {
namespace {

constexpr int kExitConfig = 2;
constexpr int kExitStart = 1;

int Fail(const absl::Status& status, int code) {
  PrintTo(stderr, "terraced: {}\n", std::string(status.message()));
  return code;
}

void PrintMemory(std::FILE* out, const NodeOptions& options) {
  uint64_t sum = 0;
  for (const MemoryBudgetItem& item : MemoryBudget(options)) {
    PrintTo(out, "memory: {:>10}  {}\n", FormatBytes(item.bytes), item.name);
    sum += item.bytes;
  }
  PrintTo(out, "memory: {:>10}  in all\n", FormatBytes(sum));
  // Only the host tier is taken at start. How far the rest grows depends on what clients store.
  if (!HostMemory::Check(options.host_bytes).ok()) return;  // told elsewhere
  if (absl::Status there = HostMemory::Check(sum, "all of it is"); !there.ok()) {
    PrintTo(stderr, "terraced: warning: memory: {}; lower --host-bytes or --ssd\n",
            std::string(there.message()));
  }
}

absl::Status WithSsdFlag(const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("--ssd: ", absl::StripPrefix(status.message(), "ssd: ")));
}

void Warn(const absl::Status& status) {
  PrintTo(stderr, "terraced: warning: {}\n", std::string(status.message()));
}

void PrintSsdFolder(const SsdFolder& folder) {
  if (folder.bytes != 0) {
    PrintTo(stdout, "ssd:      {}, {}\n", folder.path, FormatBytes(folder.bytes));
    return;
  }
  const absl::StatusOr<uint64_t> bytes = DefaultSsdBytes(folder.path);
  if (!bytes.ok()) return Warn(WithSsdFlag(bytes.status()));
  PrintTo(stdout, "ssd:      {}, {} (four fifths of the device)\n", folder.path,
          FormatBytes(*bytes));
}

// The folders as a start would find them; nothing is made or changed.
absl::Status LookAtSsd(const NodeOptions& options) {
  const absl::StatusOr<std::vector<SsdFolder>> folders = ParseSsdFolders(options.ssd);  // validated
  for (const SsdFolder& folder : *folders) {
    absl::Status wrong = LookAtFolder(folder.path, {kLocalCluster, options.node_id});
    if (!wrong.ok()) return WithSsdFlag(wrong);
    // By the node, perhaps, whose next start this configuration is for.
    if (absl::Status lock = LookAtLock(folder.path); !lock.ok()) Warn(WithSsdFlag(lock));
  }
  return absl::OkStatus();
}

void PrintSsd(const NodeOptions& options) {
  const absl::StatusOr<std::vector<SsdFolder>> folders = ParseSsdFolders(options.ssd);  // validated
  for (const SsdFolder& folder : *folders) PrintSsdFolder(folder);
  const auto print_bytes = [](const char* name, uint64_t bytes, const char* unit) {
    if (bytes > 0) PrintTo(stdout, "ssd:      {} {}{}\n", name, FormatBytes(bytes), unit);
  };
  print_bytes("write budget", options.ssd_write_budget, " per day");
  print_bytes("write rate", options.ssd_write_rate, " per second");
  print_bytes("endurance", options.ssd_endurance, " of each device");
  if (options.ssd_max_age > absl::ZeroDuration()) {
    PrintTo(stdout, "ssd:      max age {}\n", absl::FormatDuration(options.ssd_max_age));
  }
}

int CheckConfig(const NodeOptions& options) {
  const absl::StatusOr<Security> security = Security::Load(options);
  if (!security.ok()) return Fail(security.status(), kExitConfig);
  if (absl::Status ssd = LookAtSsd(options); !ssd.ok()) return Fail(ssd, kExitConfig);
  PrintTo(stdout, "node:     {}, terrace {}\n", options.node_id, kVersion);
  PrintTo(stdout, "control:  {}\ndata:     {}, {} threads, transport {}\nhttp:     {}\n",
          options.listen, options.data_listen, options.data_threads, options.transport,
          options.http_listen);
  PrintTo(stdout, "security: {}\n", security->Describe());
  PrintSsd(options);
  PrintMemory(stdout, options);
  // A node that runs already may have it.
  if (absl::Status there = HostMemory::Check(options.host_bytes); !there.ok()) {
    PrintTo(stderr, "terraced: warning: --host-bytes: {}\n", std::string(there.message()));
  }
  return 0;
}

// Memory being touched: a line that renews itself on a terminal, else one line a second.
class Progress {
 public:
  void Tell(uint64_t done, uint64_t all) {
    const absl::Duration now = Clock::Real()->Now();
    const absl::Duration pace = terminal_ ? absl::Milliseconds(100) : absl::Seconds(1);
    if (now - last_ < pace && !(done == all && terminal_)) return;
    last_ = now;
    PrintTo(stderr, "{}touching memory: {} of {}{}", terminal_ ? "\r" : "", FormatBytes(done),
            FormatBytes(all), terminal_ && done < all ? "  " : "\n");
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  absl::Duration last_ = Clock::Real()->Now();
};

// SIGTERM, SIGINT and the supervisor's: the first one is waited for, the next one has its usual
// effect, at once. So has every one before Arm(), while memory is being touched. Those that are
// ignored stay so.
class StopSignal {
 public:
  static void Arm() {
    sem_init(&arrived_, 0, 0);
    Install([](int) { sem_post(&arrived_); });
  }
  static void Wait() {
    while (sem_wait(&arrived_) != 0) continue;  // interrupted
    Install(SIG_DFL);
  }

 private:
  static void Install(void (*handler)(int)) {
    for (const int number : {SIGTERM, SIGINT, kStopSignal}) {
      struct sigaction action {
      }, before{};
      action.sa_handler = handler;
      action.sa_flags = SA_RESTART;
      sigaction(number, nullptr, &before);
      if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
    }
  }
  static inline sem_t arrived_;
};

// A device that hangs cannot be waited for: nothing takes its requests back.
void EndInAnyCase(absl::Duration stop_timeout) {
  signal(SIGALRM, [](int) {
    constexpr char kText[] = "terraced: something does not end; leaving without it\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
    _exit(kExitStart);
  });
  alarm(static_cast<unsigned>(absl::ToInt64Seconds(2 * stop_timeout)) + 10);
}

// The usual soft limit is for programs that call select(). Connections have bounds of their own,
// and a control plane that met this one does not accept again (gRPC 1.51).
void RaiseDescriptorLimit() {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return;
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
}

int Run(const NodeOptions& options, DescriptorStore* keep, const Restarts& before,
        const std::function<void()>& ready) {
  signal(SIGPIPE, SIG_IGN);
  if (!before.kept) PrintMemory(stderr, options);
  Progress progress;
  NodeHooks hooks;
  hooks.progress = [&](uint64_t done, uint64_t all) { progress.Tell(done, all); };
  hooks.keep = keep;
  hooks.restarts = before;
  absl::StatusOr<std::unique_ptr<Node>> node = Node::Start(options, std::move(hooks));
  if (!node.ok()) return Fail(node.status(), kExitStart);
  StopSignal::Arm();
  PrintTo(stdout, "terraced ready {}\n", (*node)->Describe());
  std::fflush(stdout);
  ready();

  StopSignal::Wait();
  // The ssd tier gets half of the time in any case.
  const absl::Duration most =
      options.ssd.empty() ? options.stop_timeout : 1.5 * options.stop_timeout;
  Log(LogLevel::kInfo, "node", "stopping, at most {}; another signal stops at once",
      absl::FormatDuration(most + absl::Seconds(1)));
  EndInAnyCase(options.stop_timeout);
  (*node)->Stop();
  return 0;
}

int RunSupervised(NodeOptions options) {
  const absl::StatusOr<std::vector<Descriptor>> ports = HoldPorts(&options);
  if (!ports.ok()) return Fail(ports.status(), kExitStart);
  return Supervise(
      [&options](DescriptorStore* keep, const Restarts& before,
                 const std::function<void()>& ready) { return Run(options, keep, before, ready); });
}

int Main(int argc, const char* const* argv) {
  CommandLine line;
  if (std::optional<int> code = ParseCommandLine(argc, argv, &line)) return *code;
  if (absl::Status valid = line.options.Validate(); !valid.ok()) return Fail(valid, kExitConfig);
  if (absl::Status level = SetLogLevel(line.options.log_level); !level.ok()) {
    return Fail(level, kExitConfig);
  }
  if (line.check_config) return CheckConfig(line.options);
  RaiseDescriptorLimit();
  if (line.supervisor == "on") return RunSupervised(line.options);
  return Run(line.options, nullptr, {}, [] {});
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  return terrace::RunProgram("terraced", &terrace::Main, argc, argv);
}
