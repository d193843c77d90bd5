// Speaks frames to a node, nothing more: what the client library never would do is done here.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cluster/loopback_transport.h"
#include "cluster/tcp_transport.h"
#include "proto/envelope.h"
#include "proto/frame.h"
#include "proto/mutex.h"

namespace terrace {

// How the processes of a test talk.
class Wires {
 public:
  virtual ~Wires() = default;
  virtual absl::StatusOr<std::unique_ptr<Transport>> Make(TransportHandler* handler) = 0;

  static std::unique_ptr<Wires> Tcp();
  static std::unique_ptr<Wires> Loopback();
};

struct Received {
  uint64_t request_id = 0;
  FrameBody body;
  std::vector<std::byte> payload;
};

class FrameClient : public TransportHandler {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  // Connects; aborts the test's process when that fails.
  FrameClient(Wires* wires, const std::string& address);
  ~FrameClient() override;

  void Send(uint64_t request_id, const FrameBody& body, std::vector<std::byte> payload = {});
  void SendRaw(std::vector<std::byte> frame, std::vector<std::byte> payload = {});
  // The next frame, or nothing when the connection is closed or kPatience has passed.
  std::optional<Received> Next();
  // Sends a request and returns its single reply.
  template <typename Reply>
  std::optional<Reply> Call(uint64_t request_id, const FrameBody& body,
                            std::vector<std::byte> payload = {}) {
    Send(request_id, body, std::move(payload));
    std::optional<Received> received = Next();
    if (!received || !std::holds_alternative<Reply>(received->body)) return std::nullopt;
    return std::get<Reply>(received->body);
  }
  bool Hello(const SessionToken& token);
  bool WaitUntilClosed();
  void Close();
  // While stalled nothing is read.
  void Stall(bool stalled);

  void OnOpen(ConnectionId connection, bool accepted) override;
  Landing OnMessage(ConnectionId connection, ByteSpan frame, uint64_t payload_bytes) override;
  void OnClose(ConnectionId connection, const absl::Status& why) override;

 private:
  bool WaitFor(const std::function<bool()>& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Received> received_ ABSL_GUARDED_BY(mutex_);
  ConnectionId connection_ = 0;
  std::unique_ptr<Transport> transport_;
};

// Blocks with known content: what a writer would say about `value`.
std::vector<std::byte> PatternValue(const WireKey& key, uint32_t length);
Envelope MakeEnvelope(NamespaceId ns, const WireKey& key, uint64_t layout_id, uint32_t segments,
                      ByteSpan value);
std::vector<std::byte> Encoded(const Envelope& envelope);
WireKey TestKey(uint64_t number);

}  // namespace terrace
