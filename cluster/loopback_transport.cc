#include "cluster/loopback_transport.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "cluster/event_loop.h"
#include "cluster/landing_writer.h"
#include "cluster/transport_counters.h"
#include "fmt/format.h"
#include "proto/block.h"
#include "proto/mutex.h"
#include "proto/program.h"
#include "proto/status.h"

namespace terrace {
namespace {

class LoopbackEnd;

uint64_t PayloadBytes(const OutgoingMessage& message) {
  uint64_t bytes = 0;
  for (ByteSpan part : message.payload) bytes += part.size();
  return bytes;
}

// Copies up to out.size() bytes of the payload from `offset` on; returns how many.
size_t CopyPayload(const OutgoingMessage& message, uint64_t offset, MutableByteSpan out) {
  size_t copied = 0;
  for (ByteSpan part : message.payload) {
    if (offset >= part.size()) {
      offset -= part.size();
      continue;
    }
    const size_t count = std::min(part.size() - offset, out.size() - copied);
    std::memcpy(out.data() + copied, part.data() + offset, count);
    copied += count;
    offset = 0;
    if (copied == out.size()) break;
  }
  return copied;
}

// One connection between two transports. Guarded by the network's mutex.
struct Wire {
  struct Side {
    LoopbackEnd* transport = nullptr;  // null once it has ended
    ConnectionId id = 0;
    std::deque<OutgoingMessage> sending;  // the front is what the other side reads
    std::deque<OutgoingMessage> sent;     // read completely
  };
  Side sides[2];
  std::string address;  // that was dialled: side 1's
  bool lost = false;    // nothing moves any more
};

class Network : public LoopbackNetwork {
 public:
  void Freeze(const std::string& address, bool frozen) override;
  void CutAfter(const std::string& address, uint64_t bytes) override {
    MutexLock lock(&mutex);
    cuts[address] = bytes;
  }

  Mutex mutex;
  absl::flat_hash_map<std::string, LoopbackEnd*> listeners ABSL_GUARDED_BY(mutex);
  absl::flat_hash_set<std::string> frozen ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<std::string, uint64_t> cuts ABSL_GUARDED_BY(mutex);
  int next_port ABSL_GUARDED_BY(mutex) = 1;
};

// A transport's view of a wire. Of its loop's thread.
struct Connection {
  std::shared_ptr<Wire> wire;
  int side = 0;
  bool open = false;
  bool reading = false;     // a read is posted
  bool in_message = false;  // the frame has been told, the payload is arriving
  uint64_t received = 0;    // of the payload
  LandingWriter writer;
};

class LoopbackEnd : public Transport {
 public:
  LoopbackEnd(Network* network, LoopbackTransportOptions options, TransportHandler* handler)
      : network_(network),
        options_(options),
        handler_(handler),
        scratch_(options.piece_bytes),
        loop_({.thread_name = "terrace-loop"}) {}
  ~LoopbackEnd() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start() { return loop_.Start(/*driver=*/nullptr); }

  absl::StatusOr<std::string> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address, absl::Duration timeout) override;
  void Send(ConnectionId connection, OutgoingMessage message) override;
  void Close(ConnectionId connection, absl::Status why) override;
  void Post(absl::AnyInvocable<void()> work) override { loop_.Post(std::move(work)); }
  void PostAfter(absl::Duration delay, absl::AnyInvocable<void()> work) override {
    loop_.PostAfter(delay, std::move(work));
  }
  absl::Status Register(MutableByteSpan memory) override {
    return memory.empty() ? absl::InvalidArgumentError("memory to register is empty")
                          : absl::OkStatus();
  }
  void Unregister(MutableByteSpan) override {}
  bool streams() const override { return options_.streams; }
  TransportStats Stats() const override { return counters_.Read("loopback"); }
  void Shutdown(absl::Duration deadline) override;

  // What the other side and the network ask for; any thread.
  void PostAccept(std::shared_ptr<Wire> wire);
  void PostOpened(ConnectionId id);
  void PostRead(ConnectionId id);
  void PostReap(ConnectionId id);
  void PostLost(ConnectionId id);
  void PostThaw();

 private:
  void Dial(ConnectionId id, const std::string& address, absl::Duration timeout);
  void Accept(std::shared_ptr<Wire> wire);
  void Enqueue(ConnectionId id, OutgoingMessage message);
  void Read(ConnectionId id);
  bool ReadPiece(ConnectionId id, Connection* connection);
  bool Frozen(const Wire& wire) ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mutex);
  void Reap(ConnectionId id);
  void Lost(ConnectionId id, absl::Status why);
  void EndAll();

  Network* const network_;
  const LoopbackTransportOptions options_;
  TransportHandler* const handler_;
  TransportCounters counters_;
  std::atomic<ConnectionId> next_id_{1};

  // Of the loop's thread.
  absl::flat_hash_map<ConnectionId, Connection> connections_;
  std::vector<std::shared_ptr<Wire>> unaccepted_;  // dialled while frozen
  std::vector<std::byte> scratch_;
  bool ended_ = false;

  Mutex shutdown_mutex_;
  std::string address_ ABSL_GUARDED_BY(network_->mutex);

  EventLoop loop_;
};

// --- The network -----------------------------------------------------------------------------

void Network::Freeze(const std::string& address, bool freeze) {
  MutexLock lock(&mutex);
  if (freeze) {
    frozen.insert(address);
    return;
  }
  frozen.erase(address);
  const auto listener = listeners.find(address);
  if (listener != listeners.end()) listener->second->PostThaw();
}

void LoopbackEnd::PostAccept(std::shared_ptr<Wire> wire) {
  loop_.Post([this, wire = std::move(wire)]() mutable { Accept(std::move(wire)); });
}
void LoopbackEnd::PostOpened(ConnectionId id) {
  loop_.Post([this, id] {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    found->second.open = true;
    Add(counters_.connections, 1);
    handler_->OnOpen(id, /*accepted=*/false);
    Read(id);
  });
}
void LoopbackEnd::PostRead(ConnectionId id) {
  loop_.Post([this, id] { Read(id); });
}
void LoopbackEnd::PostReap(ConnectionId id) {
  loop_.Post([this, id] { Reap(id); });
}
void LoopbackEnd::PostLost(ConnectionId id) {
  loop_.Post([this, id] { Lost(id, absl::UnavailableError("peer: connection lost")); });
}
void LoopbackEnd::PostThaw() {
  loop_.Post([this] {
    for (auto& wire : std::exchange(unaccepted_, {})) Accept(std::move(wire));
    std::vector<ConnectionId> ids;
    for (const auto& [id, connection] : connections_) ids.push_back(id);
    for (const ConnectionId id : ids) {
      bool lost = false;
      {
        MutexLock lock(&network_->mutex);
        const Wire& wire = *connections_.at(id).wire;
        lost = wire.lost;
        const Wire::Side& peer = wire.sides[1 - connections_.at(id).side];
        if (peer.transport != nullptr) peer.transport->PostRead(peer.id);
      }
      lost ? PostLost(id) : Read(id);
    }
  });
}

// --- The callers' side -----------------------------------------------------------------------

absl::StatusOr<std::string> LoopbackEnd::Listen(const std::string& address) {
  MutexLock lock(&network_->mutex);
  if (!address_.empty()) return absl::FailedPreconditionError("the transport listens already");
  // Socket addresses are welcome too, so that callers need not know which transport they have.
  std::string bound = address;
  if (address.ends_with(":0")) bound = fmt::format("loopback:{}", network_->next_port++);
  if (bound.find(':') == std::string::npos) {
    return absl::InvalidArgumentError(fmt::format("address '{}' is not host:port", address));
  }
  if (!network_->listeners.emplace(bound, this).second) {
    return absl::UnavailableError(fmt::format("listen on {}: address in use", bound));
  }
  address_ = bound;
  return bound;
}

absl::StatusOr<ConnectionId> LoopbackEnd::Connect(const std::string& address,
                                                  absl::Duration timeout) {
  if (address.find(':') == std::string::npos) {
    return absl::InvalidArgumentError(fmt::format("address '{}' is not host:port", address));
  }
  const ConnectionId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  EventLoop::Work work = [this, id, address, timeout] { Dial(id, address, timeout); };
  if (!loop_.Submit(work)) return absl::UnavailableError("the transport is shut down");
  return id;
}

void LoopbackEnd::Send(ConnectionId id, OutgoingMessage message) {
  EventLoop::Work work = [this, id, message = std::move(message)]() mutable {
    Enqueue(id, std::move(message));
  };
  if (!loop_.Submit(work)) work();
}

void LoopbackEnd::Close(ConnectionId id, absl::Status why) {
  EventLoop::Work work = [this, id, why = std::move(why)] { Lost(id, why); };
  loop_.Submit(work);
}

void LoopbackEnd::Shutdown(absl::Duration) {
  MutexLock one_at_a_time(&shutdown_mutex_);
  EventLoop::Work work = [this] { EndAll(); };
  loop_.Submit(work);
  loop_.Stop();
}

void LoopbackEnd::EndAll() {
  ended_ = true;
  {
    MutexLock lock(&network_->mutex);
    if (!address_.empty()) network_->listeners.erase(address_);
    for (const auto& wire : unaccepted_) {
      wire->lost = true;
      if (wire->sides[0].transport != nullptr)
        wire->sides[0].transport->PostLost(wire->sides[0].id);
    }
  }
  while (!connections_.empty()) {
    Lost(connections_.begin()->first, absl::CancelledError("transport shut down"));
  }
}

// --- The loop --------------------------------------------------------------------------------

void LoopbackEnd::Dial(ConnectionId id, const std::string& address, absl::Duration timeout) {
  auto wire = std::make_shared<Wire>();
  wire->address = address;
  wire->sides[0].transport = this;
  wire->sides[0].id = id;
  {
    MutexLock lock(&network_->mutex);
    const auto listener = network_->listeners.find(address);
    if (!ended_ && listener != network_->listeners.end()) {
      connections_.emplace(id, Connection{.wire = wire, .side = 0});
      listener->second->PostAccept(std::move(wire));
    }
  }
  if (!connections_.contains(id)) {
    handler_->OnClose(id, absl::UnavailableError(fmt::format("{}: nobody listens", address)));
    return;
  }
  loop_.PostAfter(timeout, [this, id] {
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second.open) return;
    Lost(id, absl::DeadlineExceededError("the peer does not answer"));
  });
}

void LoopbackEnd::Accept(std::shared_ptr<Wire> wire) {
  const ConnectionId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  {
    MutexLock lock(&network_->mutex);
    if (wire->lost || ended_) return;
    if (network_->frozen.contains(wire->address)) {
      unaccepted_.push_back(std::move(wire));
      return;
    }
    wire->sides[1].transport = this;
    wire->sides[1].id = id;
    wire->sides[0].transport->PostOpened(wire->sides[0].id);
  }
  connections_.emplace(id, Connection{.wire = std::move(wire), .side = 1, .open = true});
  Add(counters_.connections, 1);
  handler_->OnOpen(id, /*accepted=*/true);
  Read(id);
}

void LoopbackEnd::Enqueue(ConnectionId id, OutgoingMessage message) {
  const uint64_t bytes = PayloadBytes(message);
  const auto found = connections_.find(id);
  absl::Status status;
  if (message.sending) {
    for (ByteSpan part : message.payload) message.sending(part);
  }
  if (message.frame.size() > kMaxFrameBytes || bytes > kMaxPayloadBytes) {
    status = absl::InvalidArgumentError("frame or payload too large");
  } else if (found == connections_.end()) {
    status = absl::UnavailableError("no such connection");
  } else {
    MutexLock lock(&network_->mutex);
    Wire& wire = *found->second.wire;
    Wire::Side& mine = wire.sides[found->second.side];
    const Wire::Side& peer = wire.sides[1 - found->second.side];
    if (mine.sending.size() < options_.max_queued_messages) {
      Add(counters_.payload_in_flight, bytes);
      mine.sending.push_back(std::move(message));
      if (peer.transport != nullptr) peer.transport->PostRead(peer.id);
      return;
    }
    status = absl::ResourceExhaustedError(
        fmt::format("{} messages wait on this connection", mine.sending.size()));
  }
  if (message.sent) message.sent(status);
}

bool LoopbackEnd::Frozen(const Wire& wire) { return network_->frozen.contains(wire.address); }

// Reads one piece per turn of the loop, so that closing can come in between.
void LoopbackEnd::Read(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.open || found->second.reading) return;
  if (!ReadPiece(id, &found->second)) return;
  connections_.at(id).reading = true;
  loop_.Post([this, id] {
    const auto again = connections_.find(id);
    if (again == connections_.end()) return;
    again->second.reading = false;
    Read(id);
  });
}

bool LoopbackEnd::ReadPiece(ConnectionId id, Connection* connection) {
  Wire& wire = *connection->wire;
  Wire::Side& peer = wire.sides[1 - connection->side];
  std::vector<std::byte> frame;
  uint64_t payload_bytes = 0;
  size_t piece = 0;
  bool cut = false;
  {
    MutexLock lock(&network_->mutex);
    if (wire.lost || peer.sending.empty() || Frozen(wire)) return false;
    OutgoingMessage& message = peer.sending.front();
    payload_bytes = PayloadBytes(message);
    if (!connection->in_message) frame = message.frame;
    piece = CopyPayload(message, connection->received, MutableByteSpan(scratch_));
    const auto budget = network_->cuts.find(wire.address);
    if (connection->side == 1 && budget != network_->cuts.end()) {
      cut = budget->second < piece;
      piece = std::min<uint64_t>(piece, budget->second);
      budget->second -= piece;
      if (cut) network_->cuts.erase(budget);
    }
    if (!cut && connection->received + piece == payload_bytes) {
      peer.sent.push_back(std::move(message));
      peer.sending.pop_front();
      if (peer.transport != nullptr) peer.transport->PostReap(peer.id);
    }
  }
  const bool complete = !cut && connection->received + piece == payload_bytes;
  Add(counters_.bytes_received, frame.size() + piece);
  if (complete) Add(counters_.messages_received, 1);
  if (!connection->in_message) {
    connection->in_message = true;
    connection->received = 0;
    Landing landing = handler_->OnMessage(id, frame, payload_bytes);
    if (payload_bytes > 0) connection->writer = LandingWriter(std::move(landing), payload_bytes);
  }
  connection->writer.Write(ByteSpan(scratch_).first(piece));
  connection->received += piece;
  if (cut) {
    PostLost(id);
    return false;
  }
  if (complete) {
    connection->in_message = false;
    connection->received = 0;
    connection->writer.Finish(absl::OkStatus());
  }
  return true;
}

// Tells the messages that the other side has read.
void LoopbackEnd::Reap(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  std::deque<OutgoingMessage> sent;
  {
    MutexLock lock(&network_->mutex);
    sent.swap(found->second.wire->sides[found->second.side].sent);
  }
  for (OutgoingMessage& message : sent) {
    const uint64_t bytes = PayloadBytes(message);
    Subtract(counters_.payload_in_flight, bytes);
    Add(counters_.bytes_sent, bytes + message.frame.size());
    Add(counters_.messages_sent, 1);
    if (message.sent) message.sent(absl::OkStatus());
  }
}

void LoopbackEnd::Lost(ConnectionId id, absl::Status why) {
  Reap(id);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection connection = std::move(found->second);
  std::deque<OutgoingMessage> unsent;
  {
    MutexLock lock(&network_->mutex);
    Wire& wire = *connection.wire;
    Wire::Side& mine = wire.sides[connection.side];
    const Wire::Side& peer = wire.sides[1 - connection.side];
    // A frozen side keeps its connections; it finds out when it thaws.
    if (!ended_ && wire.lost && connection.side == 1 && Frozen(wire)) {
      found->second = std::move(connection);
      return;
    }
    wire.lost = true;
    mine.transport = nullptr;
    unsent.swap(mine.sending);
    if (peer.transport != nullptr) peer.transport->PostLost(peer.id);
  }
  connections_.erase(id);
  if (connection.open) Subtract(counters_.connections, 1);
  const absl::Status gone = absl::UnavailableError("connection closed");
  for (OutgoingMessage& message : unsent) {
    Subtract(counters_.payload_in_flight, PayloadBytes(message));
    if (message.sent) message.sent(gone);
  }
  connection.writer.Finish(gone);
  handler_->OnClose(id, why);
}

}  // namespace

std::unique_ptr<LoopbackNetwork> LoopbackNetwork::Create() { return std::make_unique<Network>(); }

std::unique_ptr<Transport> CreateLoopbackTransport(LoopbackNetwork* network,
                                                   LoopbackTransportOptions options,
                                                   TransportHandler* handler) {
  auto end = std::make_unique<LoopbackEnd>(static_cast<Network*>(network), options, handler);
  if (const absl::Status started = end->Start(); !started.ok()) {
    PrintTo(stderr, "loopback transport: {}\n", started.ToString());
    std::abort();  // a test's process has no threads left
  }
  return end;
}

}  // namespace terrace
