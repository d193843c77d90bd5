// scrub: whether the blocks of the ssd tier are what they should be.
#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "client/terracectl/commands.h"
#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/program.h"
#include "proto/status.h"
#include "proto/units.h"

namespace terrace::ctl {
namespace {

namespace wire = control::v1;

constexpr int kExitNotRight = 1, kExitInterrupted = 130;
// Slower than this a single block may take a quarter of an hour: mostly a unit was forgotten.
constexpr uint64_t kLeastRate = 64 << 10;
constexpr absl::Duration kTellEvery = absl::Seconds(10);  // where it is no terminal

std::string Describe(const wire::ScrubReply& reply, absl::Duration took) {
  const double seconds = std::max(absl::ToDoubleSeconds(took), 1e-3);
  return fmt::format(
      "{} of {} blocks, {}, {}/s, {} corrupt", FormatCount(reply.blocks()),
      FormatCount(reply.blocks_total()), FormatBytes(reply.bytes()),
      FormatBytes(static_cast<uint64_t>(static_cast<double>(reply.bytes()) / seconds)),
      FormatCount(reply.corrupt()));
}

// Cancels a call at the first SIGINT or SIGTERM; the next one ends the process. A handler may not
// do that itself: it wakes a thread that does.
class CancelOnSignal {
 public:
  explicit CancelOnSignal(grpc::ClientContext* context) {
    sem_init(&woken_, 0, 0);
    struct sigaction action {};
    action.sa_handler = [](int) {
      arrived_.store(true);
      sem_post(&woken_);
    };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    thread_ = std::thread([context] {
      while (sem_wait(&woken_) != 0) continue;  // interrupted
      if (arrived_.load()) context->TryCancel();
    });
  }
  ~CancelOnSignal() {
    sem_post(&woken_);
    thread_.join();
  }
  static bool arrived() { return arrived_.load(); }

 private:
  static inline sem_t woken_;
  static inline std::atomic<bool> arrived_{false};
  std::thread thread_;
};

// A line that renews itself on a terminal, else one at the beginning and then some a minute.
class Progress {
 public:
  void Tell(const wire::ScrubReply& reply) {
    const absl::Duration now = Clock::Real()->Now();
    if (terminal_) {
      PrintTo(stderr, "\r{}\x1b[K", Describe(reply, now - begin_));
    } else if (!reply.done() && now >= next_) {
      PrintTo(stderr, "scrubbing: {}\n", Describe(reply, now - begin_));
      next_ = now + kTellEvery;
    }
  }
  void Clear() const {
    if (terminal_) PrintTo(stderr, "\r\x1b[K");
  }
  absl::Duration took() const { return Clock::Real()->Now() - begin_; }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  const absl::Duration begin_ = Clock::Real()->Now();
  absl::Duration next_ = begin_;
};

void PrintResult(const wire::ScrubReply& reply, absl::Duration took) {
  PrintTo(stdout, "scrubbed {}\n", Describe(reply, took));
  if (reply.unreadable() > 0) {
    PrintTo(stdout, "{} blocks could not be read: the node's log and 'terracectl tiers' say more\n",
            FormatCount(reply.unreadable()));
  }
  if (reply.left() > 0) {
    PrintTo(stdout, "{} blocks left the tier meanwhile\n", FormatCount(reply.left()));
  }
}

absl::StatusOr<int> Scrub(const GlobalOptions& options, uint64_t bytes_per_second) {
  if (bytes_per_second > 0 && bytes_per_second < kLeastRate) {
    return absl::InvalidArgumentError(
        fmt::format("--rate: {} per second are too few: give {} at least, or 0 for no bound",
                    FormatBytes(bytes_per_second), FormatBytes(kLeastRate)));
  }
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  wire::ScrubRequest request;
  request.set_bytes_per_second(bytes_per_second);
  grpc::ClientContext context;
  Authorize(connection.dialed(), &context);
  CancelOnSignal cancel(&context);
  Progress progress;
  auto reader = connection.stub()->Scrub(&context, request);
  wire::ScrubReply reply;
  while (reader->Read(&reply)) {
    if (options.json) {
      PrintTo(stdout, "{}", ToJson(reply));
      std::fflush(stdout);
    } else {
      progress.Tell(reply);
    }
  }
  if (!options.json) progress.Clear();
  const absl::Status status = FromGrpc(reader->Finish(), connection.address());
  if (!reply.done() && CancelOnSignal::arrived()) {
    PrintTo(stderr, "interrupted after {}; what was found corrupt is gone\n",
            Describe(reply, progress.took()));
    return kExitInterrupted;
  }
  TERRACE_RETURN_IF_ERROR(status);
  if (!reply.done()) {
    return absl::UnavailableError(fmt::format("the node at {} broke off", connection.address()));
  }
  if (!options.json) PrintResult(reply, progress.took());
  return reply.corrupt() + reply.unreadable() == 0 ? 0 : kExitNotRight;
}

}  // namespace

void AddScrubCommand(Flags* root, GlobalOptions* options, std::vector<Command>* commands) {
  auto bytes_per_second = std::make_shared<uint64_t>(0);
  Flags* flags = root->AddCommand("scrub",
                                  "read and verify every block of the ssd tier; exit code 1 where "
                                  "one was corrupt (it is gone) or could not be read");
  flags->AddBytes("--rate", bytes_per_second.get(),
                  "bytes per second at most, 64KiB or more; 0: no bound");
  commands->push_back({flags, [=] { return Scrub(*options, *bytes_per_second); }});
}

}  // namespace terrace::ctl
