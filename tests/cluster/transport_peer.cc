#include "tests/cluster/transport_peer.h"

#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "fmt/format.h"
#include "proto/clock.h"

namespace terrace {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

uint64_t Word(uint64_t seed, uint64_t index) {
  uint64_t x = (seed ^ index) * 0x9e3779b97f4a7c15;
  x ^= x >> 29;
  return x * 0xbf58476d1ce4e5b9;
}

std::byte ByteAt(uint64_t seed, uint64_t position) {
  return static_cast<std::byte>(Word(seed, position / 8) >> (8 * (position % 8)));
}

}  // namespace

void FillPattern(uint64_t seed, MutableByteSpan out, uint64_t position) {
  size_t i = 0;
  for (; i < out.size() && (position + i) % 8 != 0; ++i) out[i] = ByteAt(seed, position + i);
  for (; i + 8 <= out.size(); i += 8) {
    const uint64_t word = Word(seed, (position + i) / 8);
    std::memcpy(out.data() + i, &word, 8);
  }
  for (; i < out.size(); ++i) out[i] = ByteAt(seed, position + i);
}

bool HasPattern(uint64_t seed, ByteSpan bytes, uint64_t position) {
  std::vector<std::byte> expected(bytes.size());
  FillPattern(seed, MutableByteSpan(expected), position);
  return bytes.empty() || std::memcmp(expected.data(), bytes.data(), bytes.size()) == 0;
}

void TransportPeer::Complain(const std::string& what) { complaints_.push_back(what); }

void TransportPeer::OnOpen(ConnectionId connection, bool accepted) {
  MutexLock lock(&mutex_);
  if (open_.contains(connection)) Complain("opened twice");
  open_[connection] = accepted;
  if (accepted) accepted_.push_back(connection);
  changed_.SignalAll();
}

Landing TransportPeer::OnMessage(ConnectionId connection, ByteSpan frame, uint64_t payload_bytes) {
  if (lander_) return lander_(connection, frame, payload_bytes);
  MutexLock lock(&mutex_);
  if (!open_.contains(connection)) Complain("message before open");
  if (closed_.contains(connection)) Complain("message after close");
  received_.push_back(std::make_unique<Received>(Received{.connection = connection,
                                                          .frame = std::string(AsText(frame)),
                                                          .payload_bytes = payload_bytes}));
  Received* const received = received_.back().get();
  if (payload_bytes > 0) return LandOwn(received);
  received->landed = true;
  ++finished_;
  changed_.SignalAll();
  if (echo_ != nullptr) {
    echo_->Send(connection, {.frame = std::vector<std::byte>(frame.begin(), frame.end())});
  }
  return {};
}

Landing TransportPeer::LandOwn(Received* received) {
  received->payload.resize(received->payload_bytes);
  const MutableByteSpan whole(received->payload);
  Landing landing;
  const size_t part = whole.size() / pieces_;
  for (size_t i = 0; i < pieces_; ++i) {
    landing.pieces.push_back(i + 1 < pieces_ ? whole.subspan(i * part, part)
                                             : whole.subspan(i * part));
  }
  // Every byte, in order, exactly once.
  landing.progress = [this, whole, seen = size_t{0}](ByteSpan bytes) mutable {
    MutexLock lock(&mutex_);
    if (bytes.empty() || bytes.data() != whole.data() + seen) Complain("progress out of order");
    seen += bytes.size();
    if (seen > whole.size()) Complain("progress past the end");
  };
  landing.landed = [this, received](absl::Status status) {
    MutexLock lock(&mutex_);
    if (received->landed) Complain("landed twice");
    if (closed_.contains(received->connection)) Complain("landed after close");
    received->landed = true;
    received->status = status;
    ++finished_;
    changed_.SignalAll();
    if (echo_ == nullptr || !status.ok()) return;
    OutgoingMessage answer;
    const ByteSpan frame = AsBytes(received->frame);
    answer.frame.assign(frame.begin(), frame.end());
    answer.payload.push_back(received->payload);
    answer.sent = CountSent();
    echo_->Send(received->connection, std::move(answer));
  };
  return landing;
}

void TransportPeer::OnClose(ConnectionId connection, const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (closed_.contains(connection)) Complain("closed twice");
  for (const auto& received : received_) {
    if (received->connection == connection && !received->landed) Complain("close before landed");
  }
  open_.erase(connection);
  closed_[connection] = why;
  changed_.SignalAll();
}

bool TransportPeer::WaitUntil(const std::function<bool()>& condition) {
  const absl::Duration until = Clock::Real()->Now() + kPatience;
  MutexLock lock(&mutex_);
  while (!condition()) {
    const absl::Duration left = until - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitWithTimeout(&mutex_, left);
  }
  return true;
}

absl::AnyInvocable<void(absl::Status)> TransportPeer::CountSent() {
  return [this, done = false](absl::Status status) mutable {
    MutexLock lock(&mutex_);
    if (std::exchange(done, true)) Complain("sent twice");
    sent_.push_back(std::move(status));
    changed_.SignalAll();
  };
}

std::vector<std::unique_ptr<Received>> TransportPeer::TakeReceived() {
  MutexLock lock(&mutex_);
  finished_ = 0;
  return std::exchange(received_, {});
}

std::vector<absl::Status> TransportPeer::sent() {
  MutexLock lock(&mutex_);
  return sent_;
}
std::vector<ConnectionId> TransportPeer::accepted() {
  MutexLock lock(&mutex_);
  return accepted_;
}
absl::Status TransportPeer::closed_with(ConnectionId connection) {
  MutexLock lock(&mutex_);
  const auto found = closed_.find(connection);
  return found == closed_.end() ? absl::NotFoundError("not closed") : found->second;
}
size_t TransportPeer::open_count() {
  MutexLock lock(&mutex_);
  return open_.size();
}
size_t TransportPeer::finished() {
  MutexLock lock(&mutex_);
  return finished_;
}
std::vector<std::string> TransportPeer::complaints() {
  MutexLock lock(&mutex_);
  return complaints_;
}

}  // namespace terrace
