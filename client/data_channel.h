// The data connection of one session: who waits for which reply, how much may be under way, what
// must end by when. Everything runs on the transport's thread unless marked otherwise.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "client/backoff.h"
#include "client/copier.h"
#include "client/landing_slots.h"
#include "client/session.h"
#include "client/task.h"
#include "cluster/transport.h"
#include "proto/clock.h"
#include "proto/frame.h"

namespace terrace {

// Told on the transport's thread.
class DataListener {
 public:
  virtual ~DataListener() = default;
  virtual void OnDataUp() = 0;
  virtual void OnDataDown(const absl::Status& why) = 0;
  // The node does not know the session's token any more: another session is needed.
  virtual void OnTokenRefused() = 0;
};

// Counted on the transport's thread, read by any.
struct ChannelCounters {
  std::atomic<uint64_t> gets{0}, get_bytes{0}, puts{0}, put_bytes{0};
  std::atomic<uint64_t> local_bytes{0};  // of get_bytes
  std::atomic<uint64_t> misses{0}, corrupt{0}, timeouts{0}, reconnects{0};
};

inline void Count(std::atomic<uint64_t>* counter, uint64_t amount = 1) {
  counter->fetch_add(amount, std::memory_order_relaxed);
}

class DataChannel : public TransportHandler {
 public:
  explicit DataChannel(DataListener* listener) : listener_(listener) {}
  // Before anything else; `transport` delivers its events here, `copier` ends before it.
  void Attach(Transport* transport, Copier* copier) {
    transport_ = transport;
    copier_ = copier;
  }

  // The session's life.
  void OpenSession(SessionInfo session);
  void EndSession();  // what is in flight goes on, nothing new is sent
  void LoseSession(const absl::Status& why);

  // Operations. Without a connection a task ends at once, as a miss.
  void Start(std::unique_ptr<Task> task);
  void Cancel(uint64_t task_id);
  void CancelAll();
  // Keys that the engine used by itself; lost without a connection. `over` is called when the frame
  // has been sent or dropped.
  void Touch(NamespaceId ns, std::vector<WireKey> keys, absl::AnyInvocable<void()> over);
  // Of a lease granted under session `session_id`; leases end with their session.
  void Release(uint64_t session_id, uint64_t lease);

  // Thread-safe.
  bool up() const { return up_.load(std::memory_order_acquire); }
  ChannelCounters& counters() { return counters_; }
  const ChannelCounters& counters() const { return counters_; }

  // The same of a lease on places. It waits for a request that can take it along, or a moment.
  void EndLease(uint64_t session_id, uint64_t lease);
  // Leases for a request that is about to be sent.
  std::vector<uint64_t> TakeEndedLeases() { return std::exchange(ended_leases_, {}); }

  // ---- For tasks ----
  const SessionLimits& limits() const { return session_->limits; }
  uint64_t session_id() const { return session_ ? session_->session_id : 0; }
  // The node's memory; null where bytes travel.
  std::shared_ptr<const LocalMemory> memory() const {
    return session_ ? session_->memory : nullptr;
  }
  // Room in landing memory for a block that item `index` of `request` is about to send; it is free
  // again with the node's reply. CanLand: there may be room for such a block, now or later.
  struct Landed {
    uint64_t offset = 0;
    MutableByteSpan bytes;
  };
  bool CanLand(uint64_t length) const {
    return landing_slots_ != nullptr && landing_slots_->CanEverFit(length);
  }
  std::optional<Landed> Land(uint64_t request, uint16_t index, uint64_t length);
  // Runs `copy` on a thread of its own and then `copied` on this one.
  void Copy(absl::AnyInvocable<void()> copy, absl::AnyInvocable<void()> copied);
  // Asks for turns to send requests, or values.
  void WantTurn(Task* task) {
    task->needs_room() ? turns_.push_back(task) : turns_.push_front(task);
  }
  void WantSend(Task* task) { sends_.push_back(task); }
  // Whether a request that moves `bytes` in `reservations` may be opened now. One that is larger
  // than the bound may when it is alone.
  bool HasRoom(uint64_t bytes, uint32_t reservations) const;
  uint64_t OpenRequest(Task* task, uint64_t bytes, uint32_t reservations);
  // Part of a request is over; EndRequest gives back what is left. A reply to an ended request
  // is thrown away as it arrives.
  void GiveBack(uint64_t request, uint64_t bytes, uint32_t reservations);
  void EndRequest(uint64_t request);
  // EndRequest, and tells the node that nobody waits any more.
  void CancelRequest(uint64_t request);
  // A frame that cannot be queued costs the connection: nothing may be lost silently.
  void Send(uint64_t request, const FrameBody& frame);
  // With bytes; they stay until `sent`. HasSendRoom keeps few of them queued, so that a block is
  // checksummed while the one before it is on the wire.
  bool HasSendRoom() const { return unsent_bytes_ < kSendWindowBytes; }
  // `message` has the payload and its callbacks.
  void SendPayload(uint64_t request, const FrameBody& frame, OutgoingMessage message);
  bool streams() const { return transport_->streams(); }
  // Whether a put of one block should ask first. So it does for a while after one that was sent
  // unasked and not wanted.
  bool AsksBeforePut() { return ask_before_puts_ > 0 && ask_before_puts_-- > 0; }
  void PutWasNotWanted() { ask_before_puts_ = kAskBeforePuts; }
  // Completes and destroys `task` if it has finished.
  void Settle(Task* task);
  // Gives turns to those who wait. After anything that made room.
  void Pump();

 private:
  struct Request {
    Task* task;
    uint64_t bytes;
    uint32_t reservations;
  };
  using Deadline = std::pair<absl::Duration, uint64_t>;  // when, of which task
  struct Running {
    std::unique_ptr<Task> task;
    absl::Duration due;
    bool abandoned = false;
  };

  // How long the transport may hold memory of a task that was given up, before the connection is.
  static constexpr absl::Duration kGrace = absl::Milliseconds(50);
  static constexpr absl::Duration kConnectTimeout = absl::Seconds(2);
  static constexpr uint64_t kSendWindowBytes = 128 << 10;
  static constexpr int kAskBeforePuts = 15;
  // Copied by this thread before it lets the frames out that announce it.
  static constexpr uint64_t kMostLandedPerTurn = 256 << 10;
  static constexpr absl::Duration kLeasePatience = absl::Milliseconds(1);
  static constexpr size_t kMostEndedLeases = 64;

  void OnOpen(ConnectionId connection, bool accepted) override;
  Landing OnMessage(ConnectionId connection, ByteSpan frame, uint64_t payload_bytes) override;
  void OnClose(ConnectionId connection, const absl::Status& why) override;

  void Connect();
  void ConnectLater();
  void CloseConnection(absl::Status why);
  void OnHelloReply(WireStatus status);
  Landing OnReply(Frame frame, uint64_t payload_bytes);
  void GiveUp(Running& running, Outcome why);
  void SetDue(Running& running, absl::Duration due);
  void ArmTimer();
  void OnTimer();
  void EndAll(Outcome why);
  void SendEndedLeases();
  void Rest();
  void ResetLanding();

  DataListener* const listener_;
  Transport* transport_ = nullptr;
  Copier* copier_ = nullptr;
  ChannelCounters counters_;
  std::atomic<bool> up_{false};

  std::optional<SessionInfo> session_;
  bool ending_ = false;  // the session takes nothing new
  ConnectionId connection_ = 0;
  uint64_t attempts_ = 0;  // to connect; tells an outdated retry
  bool was_up_ = false;
  Backoff backoff_;

  absl::flat_hash_map<uint64_t, Running> tasks_;
  std::set<Deadline> deadlines_;
  absl::Duration timer_ = absl::InfiniteDuration();  // when the transport will call OnTimer
  std::deque<Task*> turns_, sends_;                  // a match of several shards may be there twice
  absl::flat_hash_map<uint64_t, Request> requests_;
  uint64_t next_request_ = 1;
  uint64_t bytes_in_flight_ = 0;
  uint32_t reservations_in_flight_ = 0;
  uint64_t unsent_bytes_ = 0;
  bool pumping_ = false;
  int ask_before_puts_ = 0;
  std::vector<uint64_t> ended_leases_;
  std::unique_ptr<LandingSlots> landing_slots_;  // null: there is no landing memory
  // By request and item: where its block lies until the node has answered, whoever waits for that.
  absl::flat_hash_map<std::pair<uint64_t, uint16_t>, uint64_t> landings_;
  uint64_t landed_bytes_ = 0;   // since the last rest
  bool resting_ = false;        // nothing lands until what was announced has left
  bool ending_leases_ = false;  // the transport will call SendEndedLeases
};

}  // namespace terrace
