// A node of a few hundred lines for tests of the client: it speaks the data plane over the
// loopback transport, keeps blocks in a map, and misbehaves where it is told to.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_parts.h"
#include "client/control_channel.h"
#include "cluster/loopback_transport.h"
#include "proto/envelope.h"
#include "proto/frame.h"
#include "proto/mutex.h"

namespace terrace {

// What the node is about to answer for one block; a fault changes it.
struct FakeReply {
  BlockFrame frame;
  std::vector<std::byte> bytes;
};

class FakeNode : public TransportHandler {
 public:
  FakeNode();
  ~FakeNode() override;

  // A client connected to it; fails the test when that fails.
  std::unique_ptr<Client> Connect(ClientOptions options = {},
                                  LoopbackTransportOptions transport = {});
  // The namespace that every client of it opens.
  Namespace ns() const { return ns_; }

  void Store(const BlockKey& key, std::vector<std::byte> bytes);
  bool Holds(const BlockKey& key);
  size_t values_received();
  size_t releases();
  size_t reserves();             // frames
  size_t envelopes_in_frames();  // of the values received
  size_t cancels();
  size_t hellos();

  // Faults; from any thread, between operations.
  void set_alter(std::function<void(FakeReply*)> alter);
  void set_value_status(WireStatus status);
  void set_hello_status(WireStatus status);
  void set_leases_left(uint64_t count);  // later ones are refused
  // Requests are kept instead of answered, until Unhold answers them all. Values that arrive
  // meanwhile are taken and never answered.
  void Hold();
  void Unhold();
  // Waits until `count` requests are held.
  void AwaitHeld(size_t count);
  void set_limits(const SessionLimits& limits);
  void CloseConnections();
  void Freeze(bool frozen) { network_->Freeze(address_, frozen); }
  // Ends the session and opens another; with `forget` under a new namespace id.
  void Restart(bool forget);

  // Of the last client that connected.
  Transport* client_transport() { return client_transport_; }

 private:
  class Control;
  struct Pending {
    BlockKey key;
    std::vector<std::byte> bytes;  // with the envelope, where it comes behind them
  };

  void OnOpen(ConnectionId connection, bool accepted) override;
  Landing OnMessage(ConnectionId connection, ByteSpan frame, uint64_t payload_bytes) override;
  void OnClose(ConnectionId connection, const absl::Status& why) override;

  Landing Serve(ConnectionId connection, const Frame& frame, uint64_t payload_bytes);
  void Answer(ConnectionId connection, const Frame& frame);
  void AnswerGet(ConnectionId connection, uint64_t request, const GetFrame& get);
  FakeReply Read(const GetFrame& get, uint16_t index);
  Landing TakePut(ConnectionId connection, uint64_t request, const PutFrame& put,
                  uint64_t payload_bytes);
  Landing TakeValue(ConnectionId connection, uint64_t request, const ValueFrame& value,
                    uint64_t payload_bytes);
  WireStatus Landed(const ValueFrame& value, const absl::Status& status);
  void Reply(ConnectionId connection, uint64_t request, const FrameBody& body,
             std::vector<std::byte> payload = {});
  SessionInfo NewSession();

  std::unique_ptr<LoopbackNetwork> network_ = LoopbackNetwork::Create();
  Namespace ns_;
  Transport* client_transport_ = nullptr;
  Control* control_ = nullptr;  // of the last client that connected

  Mutex mutex_;
  CondVar changed_;
  struct Block {
    std::vector<std::byte> envelope, bytes;
  };
  std::map<BlockKey, Block> blocks_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Pending> reservations_ ABSL_GUARDED_BY(mutex_);
  std::vector<ConnectionId> connections_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<ConnectionId, Frame>> held_ ABSL_GUARDED_BY(mutex_);
  bool holding_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void(FakeReply*)> alter_ ABSL_GUARDED_BY(mutex_);
  WireStatus value_status_ ABSL_GUARDED_BY(mutex_) = WireStatus::kOk;
  WireStatus hello_status_ ABSL_GUARDED_BY(mutex_) = WireStatus::kOk;
  SessionLimits limits_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_session_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_reservation_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_lease_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t leases_left_ ABSL_GUARDED_BY(mutex_) = UINT64_MAX;
  size_t reserves_ ABSL_GUARDED_BY(mutex_) = 0, envelopes_in_frames_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t values_ ABSL_GUARDED_BY(mutex_) = 0, releases_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t cancels_ ABSL_GUARDED_BY(mutex_) = 0, hellos_ ABSL_GUARDED_BY(mutex_) = 0;

  std::string address_;
  std::unique_ptr<Transport> transport_;  // its thread runs this handler; ends first
};

// A block's bytes, told apart from any other key's.
std::vector<std::byte> PatternBytes(const BlockKey& key, size_t length);

}  // namespace terrace
