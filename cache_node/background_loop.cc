#include "cache_node/background_loop.h"

#include <pthread.h>

#include <algorithm>

#include "proto/clock.h"

namespace terrace {
namespace {

// Bounds each wait, as every wait is; nothing depends on it.
constexpr absl::Duration kLongestSleep = absl::Hours(1);

}  // namespace

BackgroundLoop::BackgroundLoop(const std::string& thread_name, std::function<absl::Duration()> work)
    : work_(std::move(work)), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), thread_name.substr(0, 15).c_str());
}

BackgroundLoop::~BackgroundLoop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.Signal();
  thread_.join();
}

void BackgroundLoop::Wake() {
  {
    MutexLock lock(&mutex_);
    woken_ = true;
  }
  changed_.Signal();
}

void BackgroundLoop::Run() {
  absl::Duration rest = absl::ZeroDuration();
  while (true) {
    {
      MutexLock lock(&mutex_);
      const absl::Duration due = Clock::Real()->Now() + std::min(rest, kLongestSleep);
      while (!woken_ && !stopping_) {
        const absl::Duration left = due - Clock::Real()->Now();
        if (left <= absl::ZeroDuration()) break;
        changed_.WaitWithTimeout(&mutex_, left);
      }
      if (stopping_) return;
      woken_ = false;
    }
    rest = work_();
  }
}

}  // namespace terrace
