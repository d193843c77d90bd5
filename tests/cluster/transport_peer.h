// A transport's owner for tests: remembers what it was told, checks the contract's promises as it
// goes, and lets a test wait for a condition with a deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/transport.h"
#include "proto/mutex.h"

namespace terrace {

// Bytes that any reader can judge alone: a function of the seed and the position.
void FillPattern(uint64_t seed, MutableByteSpan out, uint64_t position = 0);
bool HasPattern(uint64_t seed, ByteSpan bytes, uint64_t position = 0);

struct Received {
  ConnectionId connection = 0;
  std::string frame;
  std::vector<std::byte> payload;  // empty when it was thrown away
  uint64_t payload_bytes = 0;
  bool landed = false;
  absl::Status status;
};

class TransportPeer : public TransportHandler {
 public:
  // Chooses where a payload lands; the default is memory of the peer's own, in `pieces` parts.
  using Lander = std::function<Landing(ConnectionId, ByteSpan frame, uint64_t payload_bytes)>;

  explicit TransportPeer(size_t pieces = 1) : pieces_(pieces) {}

  void OnOpen(ConnectionId connection, bool accepted) override;
  Landing OnMessage(ConnectionId connection, ByteSpan frame, uint64_t payload_bytes) override;
  void OnClose(ConnectionId connection, const absl::Status& why) override;

  // Before any traffic.
  void SetLander(Lander lander) { lander_ = std::move(lander); }
  // Every message goes back where it came from once it has landed; CountSent counts those with a
  // payload.
  void EchoOn(Transport* transport) { echo_ = transport; }

  // Waits until `condition` holds; false after 20 seconds. It is evaluated under the mutex.
  bool WaitUntil(const std::function<bool()>& condition);
  bool WaitOpen(ConnectionId connection) {
    return WaitUntil([&] { return open_.contains(connection); });
  }
  bool WaitClosed(ConnectionId connection) {
    return WaitUntil([&] { return closed_.contains(connection); });
  }
  bool WaitMessages(size_t count) {
    return WaitUntil([&] { return finished_ >= count; });
  }
  bool WaitAccepted(size_t count) {
    return WaitUntil([&] { return accepted_.size() >= count; });
  }
  // A callback for OutgoingMessage::sent whose outcome WaitSent sees.
  absl::AnyInvocable<void(absl::Status)> CountSent();
  bool WaitSent(size_t count) {
    return WaitUntil([&] { return sent_.size() >= count; });
  }

  std::vector<std::unique_ptr<Received>> TakeReceived();
  std::vector<absl::Status> sent();
  std::vector<ConnectionId> accepted();
  absl::Status closed_with(ConnectionId connection);
  size_t open_count();
  size_t finished();
  // Broken promises, one line each; empty in a good run.
  std::vector<std::string> complaints();

  // Wakes waiters; for landers of a test's own.
  void Changed() { changed_.SignalAll(); }

 private:
  Landing LandOwn(Received* received) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Complain(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t pieces_;
  Lander lander_;
  Transport* echo_ = nullptr;

  Mutex mutex_;
  CondVar changed_;
  std::map<ConnectionId, bool> open_;  // guarded by mutex_, as is all below
  std::map<ConnectionId, absl::Status> closed_;
  std::vector<ConnectionId> accepted_;
  std::vector<std::unique_ptr<Received>> received_;
  std::vector<absl::Status> sent_;
  size_t finished_ = 0;
  std::vector<std::string> complaints_;
};

}  // namespace terrace
