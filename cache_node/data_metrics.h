// What the data plane counts. Every series exists from the start, so that a rate never begins in
// the middle.
#pragma once

#include <array>

#include "proto/frame.h"
#include "proto/metrics.h"

namespace terrace {

enum class RequestKind { kMatch, kGet, kReserve, kPut, kPersist };
constexpr size_t kRequestKinds = static_cast<size_t>(RequestKind::kPersist) + 1;

class DataMetrics {
 public:
  explicit DataMetrics(MetricRegistry* registry);

  void CountFrame(const FrameBody& body) { frames_[body.index()]->Add(); }
  // One block's outcome (of Match: the request's).
  void CountOutcome(RequestKind kind, WireStatus status, double amount = 1) {
    outcomes_[static_cast<size_t>(kind)][static_cast<size_t>(status)]->Add(amount);
  }

  Counter* const bytes_out;   // of blocks
  Counter* const bytes_lent;  // of blocks, to clients on this machine
  Counter* const bytes_in;
  Counter* const malformed;          // frames; each closed its connection
  Counter* const checksum_mismatch;  // puts whose bytes were not what the writer had computed
  Counter* const overdue;       // connections closed because the peer stopped reading or writing
  Counter* const hello_failed;  // no or no valid token
  Counter* const expired;       // gets whose deadline passed while they waited
  Counter* const reservations_expired;

 private:
  static constexpr size_t kFrameTypes = std::variant_size_v<FrameBody>;
  static constexpr size_t kStatuses = static_cast<size_t>(kLastWireStatus) + 1;

  std::array<Counter*, kFrameTypes> frames_{};
  std::array<std::array<Counter*, kStatuses>, kRequestKinds> outcomes_{};
};

// Memory and CPU time of this process, read when somebody asks.
void AddProcessMetrics(MetricRegistry* registry);
uint64_t ResidentMemoryBytes();

}  // namespace terrace
