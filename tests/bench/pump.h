// Keeps a fixed number of operations in flight.
#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/mutex.h"

namespace terrace::bench {

// Operations 0 … count-1, `depth` at a time; the next one starts in the callback of one that
// ended. After an error none is started.
class Pump {
 public:
  static constexpr absl::Duration kTimeout = absl::Seconds(20);

  // Called once per operation, on any thread.
  class Done {
   public:
    explicit Done(Pump* pump) : pump_(pump) {}
    void operator()(const absl::Status& status) const { pump_->Ended(status); }

   private:
    Pump* pump_;
  };

  Pump(size_t count, std::function<void(size_t index, Done done)> start)
      : count_(count), start_(std::move(start)) {}

  // The first error; DeadlineExceeded when for kTimeout the last operation does not end.
  absl::Status Run(int depth);

 private:
  void StartOne();
  void Ended(const absl::Status& status);

  const size_t count_;
  const std::function<void(size_t, Done)> start_;
  Mutex mutex_;
  CondVar all_ended_;
  size_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::bench
