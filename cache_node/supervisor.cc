#include "cache_node/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "cache_node/service_manager.h"
#include "cluster/local_socket.h"
#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/log.h"
#include "proto/mutex.h"
#include "proto/program.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr int kExitStart = 1;
constexpr absl::Duration kShortLife = absl::Seconds(1);
constexpr absl::Duration kShortestPause = absl::Milliseconds(100), kLongestPause = absl::Seconds(5);
constexpr int kMostFailedStarts = 3;

// What a child asks for, one per packet: the kind, then a name. Each is answered when it is done.
constexpr char kKeep = 'K', kDrop = 'D', kDropAll = 'A', kReady = 'R';
constexpr char kDone = '!';
constexpr absl::Duration kPatience = absl::Seconds(2);

bool IsOf(const std::string& name, std::string_view prefix) { return name.starts_with(prefix); }

// The child's side of what its parent keeps.
class ParentStore final : public DescriptorStore {
 public:
  ParentStore(Descriptor socket, KeptFiles kept)
      : socket_(std::move(socket)), left_(std::move(kept)) {}

  absl::Status Keep(std::string_view name, const Descriptor& file) override {
    const Descriptor copy(dup(file.get()));
    if (!copy) return absl::ResourceExhaustedError(std::strerror(errno));
    return Tell(kKeep, name, {&copy, 1});
  }
  absl::Status DropAll(std::string_view prefix) override {
    {
      MutexLock lock(&mutex_);
      std::erase_if(left_, [prefix](const auto& file) { return IsOf(file.first, prefix); });
    }
    return Tell(kDropAll, prefix, {});
  }
  Descriptor Take(std::string_view name) override {
    MutexLock lock(&mutex_);
    const auto found = left_.find(name);
    if (found == left_.end()) return {};
    Descriptor file = std::move(found->second);
    left_.erase(found);
    return file;
  }

  // What nobody has taken by now is of no use to anybody.
  void Ready() {
    KeptFiles left;
    {
      MutexLock lock(&mutex_);
      left = std::exchange(left_, {});
    }
    for (const auto& [name, file] : left) Tell(kDrop, name, {}).IgnoreError();
    Tell(kReady, "", {}).IgnoreError();
  }

 private:
  absl::Status Tell(char kind, std::string_view name, std::span<const Descriptor> files) {
    const std::string packet = kind + std::string(name);
    MutexLock lock(&asking_);
    TERRACE_RETURN_IF_ERROR(SendPacket(socket_, AsBytes(packet), files));
    return ReceivePacket(socket_, 1, kPatience).status();
  }

  const Descriptor socket_;
  Mutex asking_;  // one question at a time
  Mutex mutex_;
  KeptFiles left_ ABSL_GUARDED_BY(mutex_);
};

struct Child {
  pid_t pid = 0;
  Descriptor socket;
  std::optional<absl::Duration> ready_at;
};

// SIGTERM, SIGINT and SIGCHLD as events of a descriptor, until destruction.
class Signals {
 public:
  Signals() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int number : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&wanted, number);
    sigprocmask(SIG_BLOCK, &wanted, &before_);
    fd_ = Descriptor(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  int fd() const { return fd_.get(); }
  // 0: none has come.
  int Next() const {
    signalfd_siginfo info{};
    return read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t before_{};
  Descriptor fd_;
};

std::string Describe(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("ended with code {}", WEXITSTATUS(status));
}

class Supervisor {
 public:
  explicit Supervisor(const Serve& serve) : serve_(serve), kept_(manager_.TakeKept()) {
    restarts_.kept = !kept_.empty();
  }

  int Run() {
    while (true) {
      std::optional<int> code = Start();  // in the child: its end
      if (code) return *code;
      const int status = Watch();
      if (IsLast(status)) return End(status);
      if (!Pause(status)) return 0;
    }
  }

 private:
  std::optional<int> Start();
  int ServeAsChild(Descriptor socket);
  int Watch();
  void Listen();
  void Do(char kind, const std::string& name, std::vector<Descriptor> files);
  void GiveUp(std::string_view prefix);
  void HandSignalsOn();
  // Whether nobody follows a child that ended so.
  bool IsLast(int status) const;
  int End(int status);
  // Before the next child; false: it is not wanted any more.
  bool Pause(int status);

  const Serve& serve_;
  ServiceManager manager_;
  std::optional<Signals> signals_;
  KeptFiles kept_;
  Child child_;
  Restarts restarts_;
  bool stopping_ = false;
  int failed_starts_ = 0;
  absl::Duration pause_;
};

std::optional<int> Supervisor::Start() {
  auto pair = LocalPair();
  if (!pair.ok()) {
    Log(LogLevel::kError, "supervisor", "{}", pair.status().ToString());
    return kExitStart;
  }
  std::fflush(nullptr);  // else both write it
  if (!signals_) signals_.emplace();
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return kExitStart;  // it was faster
    pair->first = Descriptor();
    return ServeAsChild(std::move(pair->second));
  }
  if (pid < 0) {
    Log(LogLevel::kError, "supervisor", "fork: {}", std::strerror(errno));
    return kExitStart;
  }
  child_ = {pid, std::move(pair->first), std::nullopt};
  return std::nullopt;
}

int Supervisor::ServeAsChild(Descriptor socket) {
  signals_.reset();
  for (const int number : {SIGTERM, SIGINT}) signal(number, SIG_IGN);
  ParentStore store(std::move(socket), std::move(kept_));
  return serve_(&store, restarts_, [&store] { store.Ready(); });
}

// Until the child has ended; returns how.
int Supervisor::Watch() {
  while (true) {
    pollfd wanted[] = {{signals_->fd(), POLLIN, 0}, {child_.socket.get(), POLLIN, 0}};
    poll(wanted, 2, -1);
    Listen();
    HandSignalsOn();
    int status = 0;
    if (waitpid(child_.pid, &status, WNOHANG) == child_.pid) {
      Listen();  // what it told before
      return status;
    }
  }
}

void Supervisor::Listen() {
  while (child_.socket) {
    auto packet =
        ReceivePacket(child_.socket, 1 + DescriptorStore::kMaxNameBytes, absl::ZeroDuration());
    if (absl::IsDeadlineExceeded(packet.status())) return;
    if (!packet.ok()) {
      child_.socket = Descriptor();
      return;
    }
    if (packet->bytes.empty()) continue;
    const std::string name(reinterpret_cast<const char*>(packet->bytes.data()) + 1,
                           packet->bytes.size() - 1);
    Do(static_cast<char>(packet->bytes[0]), name, std::move(packet->descriptors));
    SendPacket(child_.socket, AsBytes(std::string(1, kDone))).IgnoreError();  // gone: seen soon
  }
}

void Supervisor::Do(char kind, const std::string& name, std::vector<Descriptor> files) {
  if (kind == kReady) {
    child_.ready_at = Clock::Real()->Now();
    manager_.Tell(restarts_.count == 0 ? "READY=1"
                                       : fmt::format("STATUS=started again {} times, last {}",
                                                     restarts_.count, restarts_.why));
  }
  if (kind == kDrop && kept_.erase(name) > 0) manager_.Drop(name);
  if (kind == kDropAll) GiveUp(name);
  if (kind == kKeep && !files.empty()) {
    if (kept_.contains(name)) manager_.Drop(name);
    manager_.Keep(name, files[0]);
    kept_[name] = std::move(files[0]);
  }
}

void Supervisor::GiveUp(std::string_view prefix) {
  bool any = false;
  for (const auto& [name, file] : kept_) {
    if (!IsOf(name, prefix)) continue;
    any = true;
    manager_.Drop(name);
  }
  std::erase_if(kept_, [prefix](const auto& file) { return IsOf(file.first, prefix); });
  if (any) manager_.WaitUntilDone();
}

void Supervisor::HandSignalsOn() {
  for (int number; (number = signals_->Next()) != 0;) {
    if (number == SIGCHLD) continue;
    stopping_ = true;
    manager_.Tell("STOPPING=1");
    kill(child_.pid, kStopSignal);
  }
}

bool Supervisor::IsLast(int status) const {
  const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  // Except where it died of what another supervisor had kept.
  const bool of_kept = restarts_.kept && WIFSIGNALED(status);
  return stopping_ || ended_well || (!child_.ready_at && restarts_.count == 0 && !of_kept);
}

int Supervisor::End(int status) {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  signals_.reset();
  const int number = WTERMSIG(status) == kStopSignal ? SIGTERM : WTERMSIG(status);
  signal(number, SIG_DFL);
  raise(number);
  return 128 + number;
}

bool Supervisor::Pause(int status) {
  const bool served = child_.ready_at.has_value();
  const bool for_long = served && Clock::Real()->Now() - *child_.ready_at >= kShortLife;
  failed_starts_ = served ? 0 : failed_starts_ + 1;
  if (failed_starts_ == kMostFailedStarts && !kept_.empty()) {
    Log(LogLevel::kError, "supervisor",
        "no start succeeds with the memory that was kept; it is "
        "given up");
    GiveUp("");
  }
  const bool first = restarts_.count == 0;
  restarts_.why = Describe(status);
  ++restarts_.count;
  restarts_.kept = !kept_.empty();
  pause_ = for_long || first ? absl::ZeroDuration()
                             : std::clamp(2 * pause_, kShortestPause, kLongestPause);
  Log(LogLevel::kError, "supervisor", "the serving process was {}; it is started again{}",
      restarts_.why,
      pause_ > absl::ZeroDuration() ? " in " + absl::FormatDuration(pause_) : std::string());
  const absl::Duration until = Clock::Real()->Now() + pause_;
  while (Clock::Real()->Now() < until) {
    pollfd wanted{signals_->fd(), POLLIN, 0};
    poll(&wanted, 1, static_cast<int>(absl::ToInt64Milliseconds(until - Clock::Real()->Now())) + 1);
    for (int number; (number = signals_->Next()) != 0;) {
      if (number != SIGCHLD) return false;
    }
  }
  return true;
}

}  // namespace

int Supervise(const Serve& serve) { return Supervisor(serve).Run(); }

}  // namespace terrace
