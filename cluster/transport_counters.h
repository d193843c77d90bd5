// A transport's numbers: written by its thread, read by any.
#pragma once

#include <atomic>
#include <cstdint>

#include "cluster/transport.h"

namespace terrace {

struct TransportCounters {
  std::atomic<uint64_t> connections{0};
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> messages_sent{0};
  std::atomic<uint64_t> messages_received{0};
  std::atomic<uint64_t> malformed{0};
  std::atomic<uint64_t> payload_in_flight{0};

  TransportStats Read(std::string profile) const {
    return {.profile = std::move(profile),
            .connections = connections.load(std::memory_order_relaxed),
            .bytes_sent = bytes_sent.load(std::memory_order_relaxed),
            .bytes_received = bytes_received.load(std::memory_order_relaxed),
            .messages_sent = messages_sent.load(std::memory_order_relaxed),
            .messages_received = messages_received.load(std::memory_order_relaxed),
            .malformed = malformed.load(std::memory_order_relaxed),
            .payload_in_flight = payload_in_flight.load(std::memory_order_relaxed)};
  }
};

// One writer: a plain load and store is enough, and cheaper than a locked addition.
inline void Add(std::atomic<uint64_t>& counter, uint64_t value) {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}
inline void Subtract(std::atomic<uint64_t>& counter, uint64_t value) { Add(counter, -value); }

}  // namespace terrace
