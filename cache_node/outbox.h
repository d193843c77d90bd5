// What one data connection has been sent and has not yet taken. On the transport's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "cache_node/tiered_store.h"
#include "cluster/transport.h"
#include "proto/clock.h"
#include "proto/frame.h"

namespace terrace {

// How long a peer may take over what it asked for: its own deadline and a grace, or this much.
constexpr absl::Duration kDefaultPatience = absl::Seconds(10);
constexpr absl::Duration kLongestPatience = absl::Seconds(60);
constexpr absl::Duration kGrace = absl::Seconds(2);

// The instant until which somebody waits for a request that came `now`.
absl::Duration RequestDeadline(absl::Duration now, uint32_t deadline_ms);

class Outbox : public std::enable_shared_from_this<Outbox> {
 public:
  // `on_sent` runs after each completed send that did not fail; it may send more. A send that
  // fails (or finds the transport's queue full) closes the connection: a peer never waits for a
  // reply that is lost. Made by std::make_shared: a send that the transport had not begun when
  // its connection was closed completes after the outbox is gone.
  Outbox(Transport* transport, ConnectionId connection, Clock* clock,
         std::function<void()> on_sent);

  void Send(uint64_t request_id, const FrameBody& body);
  // Sends `payload`, a part of `block`'s value, which stays referenced until it was sent.
  void SendBlock(uint64_t request_id, const BlockFrame& frame, BlockRef block, ByteSpan payload,
                 absl::Duration deadline);

  uint64_t bytes() const { return bytes_; }          // payload not yet sent
  size_t messages() const { return sends_.size(); }  // not yet sent
  // Whether a send should have completed by `now`.
  bool Overdue(absl::Duration now) const;

 private:
  void Enqueue(std::vector<std::byte> frame, BlockRef block, ByteSpan payload,
               absl::Duration deadline);
  void Sent(uint64_t send_id, uint64_t payload_bytes, const absl::Status& status);

  Transport* const transport_;
  const ConnectionId connection_;
  Clock* const clock_;
  const std::function<void()> on_sent_;
  uint64_t next_send_ = 1;
  uint64_t bytes_ = 0;
  absl::flat_hash_map<uint64_t, absl::Duration> sends_;  // id -> instant when it is overdue
};

}  // namespace terrace
