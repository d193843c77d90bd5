#include "cluster/event_loop.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "proto/clock.h"

namespace terrace {
namespace {

// Signals of the process are for its main thread; faults stay where they happen.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

EventLoop::~EventLoop() {
  Stop();
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::Status EventLoop::Start(LoopDriver* driver) {
  driver_ = driver;
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    return absl::ResourceExhaustedError(fmt::format("event loop: {}", std::strerror(errno)));
  }
  const BlockedSignals blocked;  // inherited by the thread
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(fmt::format("event loop thread: {}", error.what()));
  }
  return absl::OkStatus();
}

void EventLoop::Enqueue(Queued queued) {
  posted_.push_back(std::move(queued));
  if (!asleep_) return;
  asleep_ = false;  // one wake-up is enough
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(wake_fd_, &one, sizeof(one));
}

void EventLoop::Post(Work work) {
  MutexLock lock(&mutex_);
  if (!ended_) Enqueue({std::move(work), /*run_at_end=*/false});
}

bool EventLoop::Submit(Work& work) {
  MutexLock lock(&mutex_);
  if (ended_) return false;
  Enqueue({std::move(work), /*run_at_end=*/true});
  return true;
}

void EventLoop::PostAfter(absl::Duration delay, Work work) {
  const absl::Duration due = Clock::Real()->Now() + delay;
  Post([this, due, work = std::move(work)]() mutable {
    AddTimer({.due = due, .order = timer_order_++, .work = std::move(work)});
  });
}

void EventLoop::AddTimer(Timer timer) {
  timers_.push_back(std::move(timer));
  std::push_heap(timers_.begin(), timers_.end(), std::greater<>());
}

void EventLoop::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    if (!ended_) Enqueue({[] {}, /*run_at_end=*/false});
  }
  if (thread_.joinable()) thread_.join();
}

void EventLoop::Run() {
  pthread_setname_np(pthread_self(), options_.thread_name.substr(0, 15).c_str());
  absl::Duration last_busy = Clock::Real()->Now();
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (stopping_) break;
    }
    bool busy = RunPosted();
    busy |= RunTimers();
    busy |= driver_ != nullptr && driver_->Progress();
    if (options_.spin > absl::ZeroDuration()) {
      const absl::Duration now = Clock::Real()->Now();
      if (busy) last_busy = now;
      // Whoever else wants this processor, such as him who was told, has something to do.
      if (!busy) std::this_thread::yield();
      busy = now - last_busy < options_.spin;
    }
    if (!busy && (driver_ == nullptr || driver_->Arm())) Sleep();
  }
  End();
}

bool EventLoop::RunPosted() {
  {
    MutexLock lock(&mutex_);
    if (posted_.empty()) return false;
    running_.swap(posted_);
  }
  for (Queued& queued : running_) std::exchange(queued.work, nullptr)();
  running_.clear();
  return true;
}

bool EventLoop::RunTimers() {
  if (timers_.empty()) return false;
  const absl::Duration now = Clock::Real()->Now();
  bool ran = false;
  while (!timers_.empty() && timers_.front().due <= now) {
    std::pop_heap(timers_.begin(), timers_.end(), std::greater<>());
    Work work = std::move(timers_.back().work);
    timers_.pop_back();
    work();
    ran = true;
  }
  return ran;
}

void EventLoop::Sleep() {
  timespec timeout{};
  const timespec* until = nullptr;  // for ever
  if (!timers_.empty() && timers_.front().due != absl::InfiniteDuration()) {
    const absl::Duration left = timers_.front().due - Clock::Real()->Now();
    timeout = absl::ToTimespec(std::max(left, absl::ZeroDuration()));
    until = &timeout;
  }
  {
    MutexLock lock(&mutex_);
    if (!posted_.empty() || stopping_) return;
    asleep_ = true;
  }
  pollfd waits[] = {{.fd = wake_fd_, .events = POLLIN}, {.fd = driver_fd_, .events = POLLIN}};
  ppoll(waits, 2, until, /*sigmask=*/nullptr);
  if (waits[0].revents != 0) {
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t got = read(wake_fd_, &wakes, sizeof(wakes));
  }
  MutexLock lock(&mutex_);
  asleep_ = false;
}

void EventLoop::End() {
  if (driver_ != nullptr) driver_->End();
  timers_.clear();
  std::vector<Queued> rest;
  do {
    for (Queued& queued : rest) {
      if (queued.run_at_end) std::exchange(queued.work, nullptr)();
    }
    rest.clear();
    MutexLock lock(&mutex_);
    rest.swap(posted_);
    ended_ = rest.empty();
  } while (!rest.empty());
}

}  // namespace terrace
