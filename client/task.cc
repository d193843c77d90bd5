#include "client/task.h"

#include <algorithm>

#include "proto/clock.h"

namespace terrace {

Outcome ToOutcome(WireStatus status) {
  switch (status) {
    case WireStatus::kOk:
    case WireStatus::kExists:
    case WireStatus::kPending:
      return Outcome::kOk;
    case WireStatus::kMiss:
    case WireStatus::kStopping:
      return Outcome::kMiss;
    case WireStatus::kAskAgain:
      return Outcome::kAskAgain;
    case WireStatus::kNoSpace:
      return Outcome::kNoSpace;
    case WireStatus::kNeverFits:
    case WireStatus::kBadRequest:
      return Outcome::kInvalid;
    case WireStatus::kUnknownNamespace:
    case WireStatus::kForeignLayout:
    case WireStatus::kUnauthenticated:
      return Outcome::kRefused;
    case WireStatus::kChecksumMismatch:
      return Outcome::kCorrupt;
    case WireStatus::kOverloaded:
      return Outcome::kOverloaded;
    case WireStatus::kNotDurable:
      return Outcome::kNotDurable;
  }
  return Outcome::kMiss;
}

uint32_t MillisecondsUntil(absl::Duration deadline) {
  const absl::Duration left = deadline - Clock::Real()->Now();
  constexpr int64_t kMost = 1 << 30;
  return static_cast<uint32_t>(std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 1, kMost));
}

}  // namespace terrace
