#include "tests/client/fake_node.h"

#include <thread>

#include "gtest/gtest.h"
#include "proto/checksum.h"
#include "proto/clock.h"

namespace terrace {
namespace {

constexpr uint32_t kBlockBytes = 64 << 10;
constexpr uint32_t kSegments = 4;

std::vector<std::byte> Sealed(const BlockKey& key, const Namespace& ns, ByteSpan bytes) {
  Envelope envelope{key, 7, ns.layout_id, ns.shape, Codec::kRaw, {}, {}};
  envelope.metadata.depth = 3;
  envelope.metadata.opaque = "note";
  envelope.checksums.resize(ns.shape.segments);
  SegmentChecksummer(ns.shape.segment_bytes(), envelope.checksums).Update(bytes);
  std::vector<std::byte> encoded(EnvelopeBytes(ns.shape.segments, 4));
  envelope.EncodeTo(encoded);
  return encoded;
}

}  // namespace

std::vector<std::byte> PatternBytes(const BlockKey& key, size_t length) {
  uint64_t state = key.ns.value * 31 + key.shard;
  for (uint8_t b : key.digest.bytes) state = state * 1099511628211u + b;
  std::vector<std::byte> bytes(length);
  for (std::byte& b : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

// Opens sessions at once and by function call.
class FakeNode::Control : public ControlChannel {
 public:
  explicit Control(FakeNode* node) : node_(node) {}
  ~Control() override { Stop(); }

  void Start(SessionListener* listener) override {
    listener_ = listener;
    thread_ = std::thread([this] { Loop(); });
  }
  absl::StatusOr<Namespace> OpenNamespace(const NamespaceDefinition&, absl::Duration) override {
    return node_->ns_;
  }
  void Renew() override {
    MutexLock lock(&mutex_);
    renew_ = true;
    changed_.SignalAll();
  }
  void Stop() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Loop() {
    while (true) {
      EXPECT_TRUE(listener_->OnSessionOpened(node_->NewSession()).ok());
      MutexLock lock(&mutex_);
      while (!renew_ && !stopping_) changed_.WaitWithTimeout(&mutex_, absl::Seconds(1));
      renew_ = false;
      listener_->OnSessionLost(absl::UnavailableError("the session broke"));
      if (stopping_) return;
    }
  }

  FakeNode* const node_;
  SessionListener* listener_ = nullptr;
  std::thread thread_;
  Mutex mutex_;
  CondVar changed_;
  bool renew_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

FakeNode::FakeNode() {
  ns_.id.value = 11;
  ns_.secret.fill(5);
  ns_.layout_id = 99;
  ns_.shape = {kBlockBytes, kSegments};
  ns_.block_tokens = 16;
  transport_ = CreateLoopbackTransport(network_.get(), {}, this);
  address_ = *transport_->Listen("127.0.0.1:0");
}

FakeNode::~FakeNode() { transport_->Shutdown(absl::Seconds(1)); }

std::unique_ptr<Client> FakeNode::Connect(ClientOptions options,
                                          LoopbackTransportOptions transport_options) {
  auto control = std::make_unique<Control>(this);
  control_ = control.get();
  ClientParts parts;
  parts.control = std::move(control);
  parts.make_transport = [this, transport_options](TransportHandler* handler) {
    auto transport = CreateLoopbackTransport(network_.get(), transport_options, handler);
    client_transport_ = transport.get();
    return transport;
  };
  options.address = address_;
  auto client = ConnectWith(options, std::move(parts));
  EXPECT_TRUE(client.ok()) << client.status();
  if (!client.ok()) return nullptr;
  NamespaceDefinition definition;
  definition.name = "test";
  definition.layout.block_bytes = ns_.shape.length;
  definition.layout.segments = ns_.shape.segments;
  EXPECT_TRUE((*client)->OpenNamespace(definition).ok());
  return *std::move(client);
}

SessionInfo FakeNode::NewSession() {
  MutexLock lock(&mutex_);
  SessionInfo session;
  session.session_id = next_session_++;
  session.token.fill(static_cast<uint8_t>(session.session_id));
  session.data_addresses = {address_};
  session.limits = limits_;
  return session;
}

void FakeNode::Store(const BlockKey& key, std::vector<std::byte> bytes) {
  MutexLock lock(&mutex_);
  blocks_[key] = {Sealed(key, ns_, bytes), std::move(bytes)};
}

bool FakeNode::Holds(const BlockKey& key) {
  MutexLock lock(&mutex_);
  auto it = blocks_.find(key);
  return it != blocks_.end() && it->second.bytes == PatternBytes(key, it->second.bytes.size());
}

size_t FakeNode::values_received() {
  MutexLock lock(&mutex_);
  return values_;
}
size_t FakeNode::reserves() {
  MutexLock lock(&mutex_);
  return reserves_;
}

size_t FakeNode::envelopes_in_frames() {
  MutexLock lock(&mutex_);
  return envelopes_in_frames_;
}

void FakeNode::set_leases_left(uint64_t count) {
  MutexLock lock(&mutex_);
  leases_left_ = count;
}

size_t FakeNode::releases() {
  MutexLock lock(&mutex_);
  return releases_;
}
size_t FakeNode::cancels() {
  MutexLock lock(&mutex_);
  return cancels_;
}
size_t FakeNode::hellos() {
  MutexLock lock(&mutex_);
  return hellos_;
}
void FakeNode::set_alter(std::function<void(FakeReply*)> alter) {
  MutexLock lock(&mutex_);
  alter_ = std::move(alter);
}
void FakeNode::set_value_status(WireStatus status) {
  MutexLock lock(&mutex_);
  value_status_ = status;
}
void FakeNode::set_hello_status(WireStatus status) {
  MutexLock lock(&mutex_);
  hello_status_ = status;
}
void FakeNode::set_limits(const SessionLimits& limits) {
  MutexLock lock(&mutex_);
  limits_ = limits;
}
void FakeNode::Hold() {
  MutexLock lock(&mutex_);
  holding_ = true;
}
void FakeNode::Unhold() {
  std::vector<std::pair<ConnectionId, Frame>> held;
  {
    MutexLock lock(&mutex_);
    holding_ = false;
    held.swap(held_);
  }
  for (const auto& [connection, frame] : held) Answer(connection, frame);
}
void FakeNode::AwaitHeld(size_t count) {
  MutexLock lock(&mutex_);
  while (held_.size() < count) changed_.WaitWithTimeout(&mutex_, absl::Seconds(1));
}
void FakeNode::CloseConnections() {
  MutexLock lock(&mutex_);
  for (ConnectionId id : connections_) transport_->Close(id, absl::CancelledError("told to"));
}
void FakeNode::Restart(bool forget) {
  if (forget) {
    ++ns_.id.value;
    MutexLock lock(&mutex_);
    blocks_.clear();
  }
  control_->Renew();
}

// ---- The data plane ----

void FakeNode::OnOpen(ConnectionId connection, bool) {
  MutexLock lock(&mutex_);
  connections_.push_back(connection);
}

void FakeNode::OnClose(ConnectionId connection, const absl::Status&) {
  MutexLock lock(&mutex_);
  std::erase(connections_, connection);
  std::erase_if(held_, [&](const auto& held) { return held.first == connection; });
}

Landing FakeNode::OnMessage(ConnectionId connection, ByteSpan bytes, uint64_t payload_bytes) {
  absl::StatusOr<Frame> frame = Decode(bytes);
  EXPECT_TRUE(frame.ok()) << frame.status();
  if (!frame.ok()) return {};
  return Serve(connection, *frame, payload_bytes);
}

Landing FakeNode::Serve(ConnectionId connection, const Frame& frame, uint64_t payload_bytes) {
  if (const auto* value = std::get_if<ValueFrame>(&frame.body)) {
    return TakeValue(connection, frame.request_id, *value, payload_bytes);
  }
  if (const auto* put = std::get_if<PutFrame>(&frame.body)) {
    return TakePut(connection, frame.request_id, *put, payload_bytes);
  }
  {
    MutexLock lock(&mutex_);
    if (std::holds_alternative<ReleaseFrame>(frame.body)) ++releases_;
    if (std::holds_alternative<CancelFrame>(frame.body)) ++cancels_;
    if (holding_ && frame.request_id != 0 && !std::holds_alternative<CancelFrame>(frame.body)) {
      held_.emplace_back(connection, frame);
      changed_.SignalAll();
      return {};
    }
  }
  Answer(connection, frame);
  return {};
}

void FakeNode::Answer(ConnectionId connection, const Frame& frame) {
  if (std::holds_alternative<HelloFrame>(frame.body)) {
    WireStatus status;
    {
      MutexLock lock(&mutex_);
      ++hellos_;
      status = std::exchange(hello_status_, WireStatus::kOk);
    }
    Reply(connection, 0, HelloReplyFrame{status});
  } else if (const auto* match = std::get_if<MatchFrame>(&frame.body)) {
    MatchReplyFrame reply;
    {
      MutexLock lock(&mutex_);
      for (const WireKey& key : match->keys) {
        if (!blocks_.contains({match->ns, key.digest, key.shard})) break;
        reply.tiers.push_back(key.shard == 1 ? Tier::kSsd : Tier::kHost);
      }
      if (match->lease_ms > 0 && !reply.tiers.empty() && leases_left_ > 0) {
        --leases_left_;
        reply.lease = next_lease_++;
      }
    }
    Reply(connection, frame.request_id, reply);
  } else if (const auto* get = std::get_if<GetFrame>(&frame.body)) {
    AnswerGet(connection, frame.request_id, *get);
  } else if (const auto* reserve = std::get_if<ReserveFrame>(&frame.body)) {
    ReserveReplyFrame reply;
    {
      MutexLock lock(&mutex_);
      ++reserves_;
      for (const ReserveItem& item : reserve->items) {
        const BlockKey key{reserve->ns, item.key.digest, item.key.shard};
        if (blocks_.contains(key)) {
          reply.items.push_back({WireStatus::kExists, 0});
        } else {
          reply.items.push_back({WireStatus::kOk, next_reservation_});
          reservations_[next_reservation_++] = {key, {}};
        }
      }
    }
    Reply(connection, frame.request_id, reply);
  }
}

void FakeNode::AnswerGet(ConnectionId connection, uint64_t request, const GetFrame& get) {
  for (uint16_t i = 0; i < get.items.size(); ++i) {
    FakeReply reply = Read(get, i);
    std::function<void(FakeReply*)> alter;
    {
      MutexLock lock(&mutex_);
      alter = alter_;
    }
    if (alter) alter(&reply);
    Reply(connection, request, reply.frame, std::move(reply.bytes));
  }
}

FakeReply FakeNode::Read(const GetFrame& get, uint16_t index) {
  const GetItem& item = get.items[index];
  MutexLock lock(&mutex_);
  auto it = blocks_.find({get.ns, item.key.digest, item.key.shard});
  if (it == blocks_.end()) return {{index, WireStatus::kMiss, {}}, {}};
  const uint32_t segment = ns_.shape.segment_bytes();
  const auto begin = it->second.bytes.begin() + item.first_segment * segment;
  const uint32_t count = item.segment_count == 0 ? ns_.shape.segments : item.segment_count;
  return {{index, WireStatus::kOk, it->second.envelope}, {begin, begin + count * segment}};
}

Landing FakeNode::TakePut(ConnectionId connection, uint64_t request, const PutFrame& put,
                          uint64_t payload_bytes) {
  const BlockKey key{put.ns, put.item.key.digest, put.item.key.shard};
  uint64_t reservation = 0;
  {
    MutexLock lock(&mutex_);
    if (!blocks_.contains(key)) {
      reservation = next_reservation_++;
      reservations_[reservation] = {key, {}};
    }
  }
  if (reservation == 0) {
    Reply(connection, request, PutReplyFrame{0, WireStatus::kExists});
    return {};
  }
  return TakeValue(connection, request, {0, reservation, put.envelope}, payload_bytes);
}

Landing FakeNode::TakeValue(ConnectionId connection, uint64_t request, const ValueFrame& value,
                            uint64_t payload_bytes) {
  MutexLock lock(&mutex_);
  Pending& pending = reservations_.at(value.reservation);
  pending.bytes.resize(payload_bytes);
  Landing landing;
  landing.pieces.push_back(MutableByteSpan(pending.bytes));
  landing.landed = [this, connection, request, value,
                    silent = holding_](const absl::Status& status) {
    const WireStatus answer = Landed(value, status);
    if (status.ok() && !silent) Reply(connection, request, PutReplyFrame{value.index, answer});
  };
  return landing;
}

WireStatus FakeNode::Landed(const ValueFrame& value, const absl::Status& status) {
  MutexLock lock(&mutex_);
  const auto node = reservations_.extract(value.reservation);
  if (!status.ok()) return WireStatus::kMiss;
  ++values_;
  std::vector<std::byte> bytes = node.mapped().bytes;
  std::vector<std::byte> encoded = value.envelope;
  if (!encoded.empty()) ++envelopes_in_frames_;
  if (encoded.empty()) {  // it came behind the bytes
    encoded.assign(bytes.begin() + ns_.shape.length, bytes.end());
    bytes.resize(ns_.shape.length);
  }
  const absl::StatusOr<EnvelopeView> envelope = EnvelopeView::Parse(encoded);
  EXPECT_TRUE(envelope.ok()) << envelope.status();
  if (!envelope.ok()) return WireStatus::kBadRequest;
  std::vector<uint32_t> sums(envelope->shape().segments);
  SegmentChecksummer(envelope->shape().segment_bytes(), sums).Update(bytes);
  if (sums != envelope->ToValue().checksums) return WireStatus::kChecksumMismatch;
  if (value_status_ == WireStatus::kOk) {
    blocks_[node.mapped().key] = {std::move(encoded), std::move(bytes)};
  }
  return value_status_;
}

void FakeNode::Reply(ConnectionId connection, uint64_t request, const FrameBody& body,
                     std::vector<std::byte> payload) {
  OutgoingMessage message{Encode(request, body), {}, {}};
  auto owned = std::make_shared<std::vector<std::byte>>(std::move(payload));
  if (!owned->empty()) message.payload.push_back(*owned);
  message.sent = [owned](const absl::Status&) {};
  transport_->Send(connection, std::move(message));
}

}  // namespace terrace
