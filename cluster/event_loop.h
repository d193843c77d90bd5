// One thread that sleeps in ppoll until there is work: posted by others, due by time, or made known
// by a driver's descriptor. Both transports run on it.
//
// Not epoll: the driver's descriptor is itself a tree of epoll sets, and every packet would climb
// one storey more even while the loop is awake.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/mutex.h"

namespace terrace {

// What a loop drives besides posted work. All calls come on the loop's thread.
class LoopDriver {
 public:
  virtual ~LoopDriver() = default;
  // Does what can be done without blocking; true when anything was done.
  virtual bool Progress() = 0;
  // Asked before the loop sleeps on the descriptor; false when something has arrived meanwhile.
  virtual bool Arm() = 0;
  // The last call: completes whatever is still open.
  virtual void End() = 0;
};

struct EventLoopOptions {
  std::string thread_name;
  // How long the loop spins after something has happened before it sleeps.
  absl::Duration spin = absl::ZeroDuration();
};

class EventLoop {
 public:
  using Work = absl::AnyInvocable<void()>;

  explicit EventLoop(EventLoopOptions options) : options_(std::move(options)) {}
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Starts the thread. `driver` may be null; it outlives the thread. ResourceExhausted when the
  // process has no descriptors or threads left.
  absl::Status Start(LoopDriver* driver);
  // From the thread, once: sleep ends when `fd`, which outlives the thread, becomes readable.
  void Watch(int fd) { driver_fd_ = fd; }

  // Runs `work` on the thread, in the order of the calls. After the end it is destroyed unrun.
  void Post(Work work);
  // Like Post, but runs even when the loop ends first (after the driver's End). False, without
  // taking `work`, once the loop has ended.
  bool Submit(Work& work);
  // Like Post, not before `delay` has passed.
  void PostAfter(absl::Duration delay, Work work);

  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Ends the loop after the work in hand and joins its thread. Idempotent; not from the thread.
  void Stop();

 private:
  struct Queued {
    Work work;
    bool run_at_end;
  };
  struct Timer {
    absl::Duration due;  // on the monotonic clock
    uint64_t order;
    Work work;

    bool operator>(const Timer& other) const {
      return due != other.due ? due > other.due : order > other.order;
    }
  };

  void Run();
  bool RunPosted();
  bool RunTimers();
  void Enqueue(Queued queued) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sleep();
  void AddTimer(Timer timer);
  void End();

  const EventLoopOptions options_;
  LoopDriver* driver_ = nullptr;
  int wake_fd_ = -1;  // eventfd: posted work while asleep
  std::thread thread_;

  // Of the loop's thread.
  std::vector<Timer> timers_;  // a heap, earliest first
  uint64_t timer_order_ = 0;
  int driver_fd_ = -1;
  std::vector<Queued> running_;

  Mutex mutex_;
  std::vector<Queued> posted_ ABSL_GUARDED_BY(mutex_);
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
