// A thread that works when it is woken or when a time has come, and sleeps in between.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "proto/mutex.h"

namespace terrace {

class BackgroundLoop {
 public:
  // `work` returns after how long it wants to run again: zero at once, InfiniteDuration only when
  // woken. It runs once at start.
  BackgroundLoop(const std::string& thread_name, std::function<absl::Duration()> work);
  ~BackgroundLoop();  // waits for a run in progress
  BackgroundLoop(const BackgroundLoop&) = delete;
  BackgroundLoop& operator=(const BackgroundLoop&) = delete;

  // Another run begins after this call, soon. Thread-safe, does not block.
  void Wake();

 private:
  void Run();

  const std::function<absl::Duration()> work_;
  Mutex mutex_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace
