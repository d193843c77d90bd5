#include "cache_node/data_service.h"

#include <algorithm>
#include <cstring>

#include "fmt/format.h"
#include "proto/log.h"

namespace terrace {
namespace {

constexpr absl::Duration kHelloPatience = absl::Seconds(5);
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr size_t kLandedPart = 32 << 10;  // stays in the cache while it is judged

std::vector<BlockKey> ToKeys(NamespaceId ns, const std::vector<WireKey>& wire) {
  std::vector<BlockKey> keys;
  keys.reserve(wire.size());
  for (const WireKey& key : wire) keys.push_back({ns, key.digest, key.shard});
  return keys;
}

WireStatus ToWire(PersistOutcome outcome) {
  switch (outcome) {
    case PersistOutcome::kDurable:
      return WireStatus::kOk;
    case PersistOutcome::kMiss:
      return WireStatus::kMiss;
    case PersistOutcome::kNotDurable:
      return WireStatus::kNotDurable;
    case PersistOutcome::kAskAgain:
      return WireStatus::kAskAgain;
  }
  return WireStatus::kNotDurable;
}

}  // namespace

DataService::Connection::Connection(DataService* service, ConnectionId connection_id)
    : id(connection_id),
      hello_deadline(service->plane_.clock->Now() + kHelloPatience),
      outbox(std::make_shared<Outbox>(service->transport_, connection_id, service->plane_.clock,
                                      [this] { gets.Pump(); })),
      gets(service->plane_, service->transport_, outbox.get()),
      puts(service->plane_, outbox.get()) {}

void DataService::OnOpen(ConnectionId connection, bool) {
  connections_[connection] = std::make_unique<Connection>(this, connection);
  connection_count_.store(connections_.size(), std::memory_order_relaxed);
  Watch();
}

void DataService::OnClose(ConnectionId connection, const absl::Status& why) {
  auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  if (!why.ok()) {
    Log(LogLevel::kDebug, "data", "connection {} closed: {}", connection,
        std::string(why.message()));
  }
  if (it->second->session) it->second->session->connections.fetch_sub(1);
  connections_.erase(it);
  connection_count_.store(connections_.size(), std::memory_order_relaxed);
  TellWhenQuiet();
}

Landing DataService::OnMessage(ConnectionId id, ByteSpan bytes, uint64_t payload_bytes) {
  auto it = connections_.find(id);
  if (it == connections_.end()) return {};
  Connection* connection = it->second.get();
  absl::StatusOr<Frame> frame = Decode(bytes);
  if (!frame.ok()) {
    CloseMalformed(id, frame.status());
    return {};
  }
  plane_.metrics->CountFrame(frame->body);
  const bool carries_bytes = std::holds_alternative<ValueFrame>(frame->body) ||
                             std::holds_alternative<PutFrame>(frame->body);
  if ((payload_bytes > 0) != carries_bytes) {
    CloseMalformed(id, absl::InvalidArgumentError("a payload where none belongs, or none"));
    return {};
  }
  const auto* hello = std::get_if<HelloFrame>(&frame->body);
  if ((hello != nullptr) != (connection->session == nullptr)) {
    CloseMalformed(id, absl::InvalidArgumentError("Hello comes first, and once"));
    return {};
  }
  if (hello != nullptr) {
    Hello(connection, *hello);
    return {};
  }
  Landing landing = Serve(connection, *std::move(frame), payload_bytes);
  Watch();
  return landing;
}

void DataService::Hello(Connection* connection, const HelloFrame& frame) {
  WireStatus status = draining_ ? WireStatus::kStopping : WireStatus::kOk;
  std::shared_ptr<Session> session = plane_.sessions->Authenticate(frame.token);
  if (session == nullptr) {
    status = WireStatus::kUnauthenticated;
  } else if (status == WireStatus::kOk &&
             session->connections.fetch_add(1) >= plane_.limits.max_connections_per_session) {
    session->connections.fetch_sub(1);
    status = WireStatus::kOverloaded;
  }
  connection->outbox->Send(0, HelloReplyFrame{status});
  if (status == WireStatus::kOk) {
    connection->session = std::move(session);
    return;
  }
  plane_.metrics->hello_failed->Add();
  // The reply goes out first: the close waits its turn for long enough on any live connection.
  connection->hello_deadline = std::min(connection->hello_deadline, plane_.clock->Now() + kTick);
}

Landing DataService::Serve(Connection* connection, Frame frame, uint64_t payload_bytes) {
  const uint64_t request_id = frame.request_id;
  // What was granted before is finished while the node stops; nothing new is begun.
  if (draining_ && RefuseStopping(connection, frame)) return {};
  if (auto* match = std::get_if<MatchFrame>(&frame.body)) {
    Match(connection, request_id, *match);
  } else if (auto* get = std::get_if<GetFrame>(&frame.body)) {
    connection->gets.Add(*connection->session, request_id, std::move(*get));
  } else if (auto* lend = std::get_if<LendFrame>(&frame.body)) {
    for (const uint64_t lease : lend->released) {
      plane_.sessions->ReleaseLease(connection->session->id, lease);
    }
    connection->gets.Add(*connection->session, request_id, std::move(*lend));
  } else if (auto* reserve = std::get_if<ReserveFrame>(&frame.body)) {
    connection->puts.Reserve(connection->session, request_id, *reserve);
  } else if (auto* value = std::get_if<ValueFrame>(&frame.body)) {
    return connection->puts.Value(request_id, *value, payload_bytes);
  } else if (auto* put = std::get_if<PutFrame>(&frame.body)) {
    return connection->puts.Direct(connection->session, request_id, *put, payload_bytes);
  } else if (auto* landed = std::get_if<LandedFrame>(&frame.body)) {
    Landed(connection, request_id, std::move(*landed));
  } else if (auto* touch = std::get_if<TouchFrame>(&frame.body)) {
    Touch(*connection, *touch);
  } else if (auto* persist = std::get_if<PersistFrame>(&frame.body)) {
    Persist(*connection, request_id, *persist);
  } else if (auto* release = std::get_if<ReleaseFrame>(&frame.body)) {
    plane_.sessions->ReleaseLease(connection->session->id, release->lease);
  } else if (std::holds_alternative<CancelFrame>(frame.body)) {
    if (!connection->gets.Cancel(request_id)) connection->puts.Cancel(request_id);
  } else {
    CloseMalformed(connection->id, absl::InvalidArgumentError("a frame that only nodes send"));
  }
  return {};
}

void DataService::Match(Connection* connection, uint64_t request_id, const MatchFrame& frame) {
  const Session& session = *connection->session;
  MatchReplyFrame reply;
  if (const auto ns = plane_.namespaces->Find(session.tenant, frame.ns); ns == nullptr) {
    reply.status = WireStatus::kUnknownNamespace;
  } else {
    std::vector<BlockRef> refs;
    const bool lease = frame.lease_ms > 0;
    bool ask_again = false;
    plane_.store->Match(ToKeys(frame.ns, frame.keys), frame.count_use, &reply.tiers,
                        lease ? &refs : nullptr, &ask_again);
    if (ask_again) reply.status = WireStatus::kAskAgain;
    if (!refs.empty()) {
      reply.lease = plane_.sessions->GrantLease(session.id, std::move(refs),
                                                absl::Milliseconds(frame.lease_ms));
    }
  }
  plane_.metrics->CountOutcome(RequestKind::kMatch, reply.status);
  connection->outbox->Send(request_id, reply);
}

// As if the bytes had come with the frame.
void DataService::Landed(Connection* connection, uint64_t request_id, LandedFrame frame) {
  const std::shared_ptr<const LandingMemory> memory = connection->session->landing();
  const uint64_t length = frame.item.shape.length;
  ByteSpan bytes;
  if (memory != nullptr && length <= memory->bytes().size() &&
      frame.offset <= memory->bytes().size() - length) {
    bytes = memory->bytes().subspan(frame.offset, length);
  }
  PutTable& puts = connection->puts;
  Landing landing;
  if (frame.reservation != 0) {
    landing = puts.Value(request_id, {frame.index, frame.reservation, std::move(frame.envelope)},
                         bytes.size());
  } else {
    landing = puts.Direct(connection->session, request_id,
                          {frame.ns, frame.deadline_ms, frame.item, std::move(frame.envelope)},
                          bytes.size());
  }
  if (landing.landed == nullptr) return;  // refused
  // Each part is judged where it was copied to, where its writer does not reach.
  for (MutableByteSpan piece : landing.pieces) {
    for (size_t at = 0; at < piece.size(); at += kLandedPart) {
      const MutableByteSpan part = piece.subspan(at, std::min(kLandedPart, piece.size() - at));
      std::memcpy(part.data(), bytes.data(), part.size());
      bytes = bytes.subspan(part.size());
      landing.progress(part);
    }
  }
  landing.landed(absl::OkStatus());
}

void DataService::Touch(const Connection& connection, const TouchFrame& frame) {
  if (plane_.namespaces->Find(connection.session->tenant, frame.ns) == nullptr) return;
  plane_.store->Touch(ToKeys(frame.ns, frame.keys));
}

void DataService::Persist(const Connection& connection, uint64_t request_id,
                          const PersistFrame& frame) {
  const auto reply = [metrics = plane_.metrics, request_id](Outbox* outbox, size_t index,
                                                            WireStatus status) {
    metrics->CountOutcome(RequestKind::kPersist, status);
    outbox->Send(request_id, PutReplyFrame{static_cast<uint16_t>(index), status});
  };
  const bool known = plane_.namespaces->Find(connection.session->tenant, frame.ns) != nullptr;
  const std::vector<BlockKey> keys = ToKeys(frame.ns, frame.keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!known || *connection.persisting >= plane_.limits.max_reservations) {
      reply(connection.outbox.get(), i,
            known ? WireStatus::kOverloaded : WireStatus::kUnknownNamespace);
      continue;
    }
    *connection.persisting += 1;
    // The ssd tier calls back on a thread of its own, which only posts to this one.
    plane_.store->Persist(keys[i], [transport = transport_, persisting = connection.persisting,
                                    outbox = std::weak_ptr<Outbox>(connection.outbox), reply,
                                    i](PersistOutcome outcome) {
      transport->Post([persisting, outbox, reply, i, outcome] {
        *persisting -= 1;
        if (const auto open = outbox.lock()) reply(open.get(), i, ToWire(outcome));
      });
    });
  }
}

bool DataService::RefuseStopping(Connection* connection, const Frame& frame) {
  if (std::holds_alternative<MatchFrame>(frame.body)) {
    connection->outbox->Send(frame.request_id, MatchReplyFrame{WireStatus::kStopping, 0, {}});
  } else if (const auto* get = std::get_if<GetFrame>(&frame.body)) {
    for (size_t i = 0; i < get->items.size(); ++i) {
      connection->outbox->Send(frame.request_id,
                               BlockFrame{static_cast<uint16_t>(i), WireStatus::kStopping, {}});
    }
  } else if (const auto* lend = std::get_if<LendFrame>(&frame.body)) {
    LentFrame reply;
    for (size_t i = 0; i < lend->keys.size(); ++i) {
      reply.items.push_back({static_cast<uint16_t>(i), WireStatus::kStopping});
    }
    connection->outbox->Send(frame.request_id, reply);
  } else if (const auto* reserve = std::get_if<ReserveFrame>(&frame.body)) {
    ReserveReplyFrame reply;
    reply.items.assign(reserve->items.size(), {WireStatus::kStopping, 0});
    connection->outbox->Send(frame.request_id, reply);
  } else if (const auto* persist = std::get_if<PersistFrame>(&frame.body)) {
    for (size_t i = 0; i < persist->keys.size(); ++i) {
      connection->outbox->Send(frame.request_id,
                               PutReplyFrame{static_cast<uint16_t>(i), WireStatus::kStopping});
    }
  } else if (const auto* landed = std::get_if<LandedFrame>(&frame.body);
             landed != nullptr && landed->reservation == 0) {
    connection->outbox->Send(frame.request_id, PutReplyFrame{landed->index, WireStatus::kStopping});
  } else if (std::holds_alternative<PutFrame>(frame.body)) {
    connection->outbox->Send(frame.request_id, PutReplyFrame{0, WireStatus::kStopping});
  } else {
    return false;
  }
  return true;
}

void DataService::CloseMalformed(ConnectionId connection, const absl::Status& why) {
  plane_.metrics->malformed->Add();
  transport_->Close(connection, why);
}

void DataService::EndSession(uint64_t session_id) {
  transport_->Post([this, session_id] {
    for (const auto& [id, connection] : connections_) {
      if (connection->session && connection->session->id == session_id) {
        transport_->Close(id, absl::CancelledError("the session is over"));
      }
    }
  });
}

void DataService::Drain(std::function<void()> quiet) {
  transport_->Post([this, quiet = std::move(quiet)] {
    draining_ = true;
    quiet_ = quiet;
    TellWhenQuiet();
    Watch();
  });
}

void DataService::Watch() {
  if (watching_) return;
  watching_ = true;
  transport_->PostAfter(kTick, [this] { Tick(); });
}

void DataService::Tick() {
  const absl::Duration now = plane_.clock->Now();
  bool more = quiet_ != nullptr;
  for (const auto& [id, connection] : connections_) {
    if (absl::Status why = Judge(connection.get(), now); !why.ok()) transport_->Close(id, why);
    more |= connection->session == nullptr || connection->busy();
  }
  TellWhenQuiet();
  watching_ = false;
  if (more) Watch();
}

absl::Status DataService::Judge(Connection* connection, absl::Duration now) {
  if (connection->session == nullptr && connection->hello_deadline < now) {
    return absl::UnauthenticatedError("no valid token");
  }
  const bool landing_overdue = connection->puts.Expire(now);
  if (landing_overdue || connection->outbox->Overdue(now)) {
    plane_.metrics->overdue->Add();
    return absl::DeadlineExceededError("the peer stopped in mid-transfer");
  }
  return absl::OkStatus();
}

void DataService::TellWhenQuiet() {
  if (quiet_ == nullptr) return;
  for (const auto& [id, connection] : connections_) {
    if (connection->busy()) return;
  }
  std::exchange(quiet_, nullptr)();
}

}  // namespace terrace
