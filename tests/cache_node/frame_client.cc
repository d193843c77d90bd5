#include "tests/cache_node/frame_client.h"

#include <cstdio>
#include <cstdlib>

#include "proto/checksum.h"
#include "proto/clock.h"

namespace terrace {
namespace {

void Require(const absl::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  std::abort();
}

class TcpWires : public Wires {
 public:
  absl::StatusOr<std::unique_ptr<Transport>> Make(TransportHandler* handler) override {
    return CreateTcpTransport({}, handler);
  }
};

class LoopbackWires : public Wires {
 public:
  absl::StatusOr<std::unique_ptr<Transport>> Make(TransportHandler* handler) override {
    return CreateLoopbackTransport(network_.get(), {}, handler);
  }

 private:
  std::unique_ptr<LoopbackNetwork> network_ = LoopbackNetwork::Create();
};

}  // namespace

std::unique_ptr<Wires> Wires::Tcp() { return std::make_unique<TcpWires>(); }
std::unique_ptr<Wires> Wires::Loopback() { return std::make_unique<LoopbackWires>(); }

FrameClient::FrameClient(Wires* wires, const std::string& address) {
  absl::StatusOr<std::unique_ptr<Transport>> transport = wires->Make(this);
  Require(transport.status(), "transport");
  transport_ = *std::move(transport);
  absl::StatusOr<ConnectionId> connection = transport_->Connect(address, absl::Seconds(10));
  Require(connection.status(), "connect");
  connection_ = *connection;
  MutexLock lock(&mutex_);
  WaitFor([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open_ || closed_; });
}

FrameClient::~FrameClient() {
  Stall(false);
  transport_->Shutdown(absl::Seconds(1));
}

void FrameClient::Send(uint64_t request_id, const FrameBody& body, std::vector<std::byte> payload) {
  SendRaw(Encode(request_id, body), std::move(payload));
}

void FrameClient::SendRaw(std::vector<std::byte> frame, std::vector<std::byte> payload) {
  OutgoingMessage message;
  message.frame = std::move(frame);
  auto held = std::make_shared<std::vector<std::byte>>(std::move(payload));
  if (!held->empty()) message.payload.push_back(*held);
  message.sent = [held](absl::Status) {};
  transport_->Send(connection_, std::move(message));
}

std::optional<Received> FrameClient::Next() {
  MutexLock lock(&mutex_);
  WaitFor([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !received_.empty() || closed_; });
  if (received_.empty()) return std::nullopt;
  Received received = std::move(received_.front());
  received_.pop_front();
  return received;
}

bool FrameClient::Hello(const SessionToken& token) {
  std::optional<HelloReplyFrame> reply = Call<HelloReplyFrame>(0, HelloFrame{token});
  return reply && reply->status == WireStatus::kOk;
}

bool FrameClient::WaitUntilClosed() {
  MutexLock lock(&mutex_);
  return WaitFor([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return closed_; });
}

void FrameClient::Close() { transport_->Close(connection_, absl::OkStatus()); }

void FrameClient::Stall(bool stalled) {
  MutexLock lock(&mutex_);
  stalled_ = stalled;
  changed_.SignalAll();
}

void FrameClient::OnOpen(ConnectionId, bool) {
  MutexLock lock(&mutex_);
  open_ = true;
  changed_.SignalAll();
}

Landing FrameClient::OnMessage(ConnectionId, ByteSpan frame, uint64_t payload_bytes) {
  absl::StatusOr<Frame> decoded = Decode(frame);
  Require(decoded.status(), "a node's frame");
  auto received = std::make_shared<Received>();
  received->request_id = decoded->request_id;
  received->body = std::move(decoded->body);
  received->payload.resize(payload_bytes);
  auto deliver = [this, received](const absl::Status& status) {
    MutexLock lock(&mutex_);
    if (status.ok()) received_.push_back(std::move(*received));
    changed_.SignalAll();
  };
  {
    MutexLock lock(&mutex_);
    WaitFor([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !stalled_; });
  }
  if (payload_bytes == 0) {
    deliver(absl::OkStatus());
    return {};
  }
  Landing landing;
  landing.pieces.push_back(received->payload);
  landing.landed = deliver;
  return landing;
}

void FrameClient::OnClose(ConnectionId, const absl::Status&) {
  MutexLock lock(&mutex_);
  closed_ = true;
  changed_.SignalAll();
}

bool FrameClient::WaitFor(const std::function<bool()>& condition) {
  const absl::Duration deadline = Clock::Real()->Now() + kPatience;
  while (!condition()) {
    const absl::Duration left = deadline - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitWithTimeout(&mutex_, left);
  }
  return true;
}

std::vector<std::byte> PatternValue(const WireKey& key, uint32_t length) {
  std::vector<std::byte> value(length);
  uint64_t state = 0;
  std::memcpy(&state, key.digest.bytes.data(), sizeof(state));
  for (std::byte& b : value) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    b = static_cast<std::byte>(state >> 56);
  }
  return value;
}

Envelope MakeEnvelope(NamespaceId ns, const WireKey& key, uint64_t layout_id, uint32_t segments,
                      ByteSpan value) {
  Envelope envelope;
  envelope.key = {ns, key.digest, key.shard};
  envelope.layout_id = layout_id;
  envelope.shape = {static_cast<uint32_t>(value.size()), segments};
  for (uint32_t i = 0; i < segments; ++i) {
    const size_t size = envelope.shape.segment_bytes();
    envelope.checksums.push_back(Crc32c(value.subspan(i * size, size)));
  }
  return envelope;
}

std::vector<std::byte> Encoded(const Envelope& envelope) {
  std::vector<std::byte> bytes(
      EnvelopeBytes(envelope.shape.segments, envelope.metadata.opaque.size()));
  envelope.EncodeTo(bytes);
  return bytes;
}

WireKey TestKey(uint64_t number) { return {Sha256(std::as_bytes(std::span(&number, 1))), 0}; }

}  // namespace terrace
