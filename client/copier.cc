#include "client/copier.h"

#include <algorithm>
#include <utility>

namespace terrace {
namespace {

constexpr absl::Duration kIdle = absl::Seconds(10);

}  // namespace

size_t Copier::DefaultThreads() {
  return std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 4);
}

Copier::Copier(size_t threads) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

Copier::~Copier() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    wake_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Copier::Run(absl::AnyInvocable<void()> work) {
  MutexLock lock(&mutex_);
  waiting_.push_back(std::move(work));
  wake_.Signal();
}

void Copier::Loop() {
  mutex_.Lock();
  while (!ending_ || !waiting_.empty()) {
    if (waiting_.empty()) {
      wake_.WaitWithTimeout(&mutex_, kIdle);
      continue;
    }
    absl::AnyInvocable<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    mutex_.Unlock();
    work();
    work = nullptr;
    mutex_.Lock();
  }
  mutex_.Unlock();
}

}  // namespace terrace
