// The data plane of one transport, that is of one data thread: connections, and what their frames
// ask for (proto/frame.h). Everything but the calls marked thread-safe happens on that thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "cache_node/data_plane.h"
#include "cache_node/get_queue.h"
#include "cache_node/outbox.h"
#include "cache_node/put_table.h"
#include "cluster/transport.h"
#include "proto/frame.h"

namespace terrace {

class DataService : public TransportHandler {
 public:
  explicit DataService(const DataPlane& plane) : plane_(plane) {}

  // Before the transport listens. The transport is shut down before this object goes.
  void Attach(Transport* transport) { transport_ = transport; }

  void OnOpen(ConnectionId connection, bool accepted) override;
  Landing OnMessage(ConnectionId connection, ByteSpan frame, uint64_t payload_bytes) override;
  void OnClose(ConnectionId connection, const absl::Status& why) override;

  // Closes the connections of a session that is over. Thread-safe.
  void EndSession(uint64_t session_id);
  // New requests are answered kStopping from here on; `quiet` runs once when those that came
  // before are finished. Thread-safe, once.
  void Drain(std::function<void()> quiet);

  size_t connection_count() const { return connection_count_.load(std::memory_order_relaxed); }

 private:
  struct Connection {
    Connection(DataService* service, ConnectionId connection_id);

    ConnectionId id;
    std::shared_ptr<Session> session;  // null until Hello
    absl::Duration hello_deadline;
    std::shared_ptr<Outbox> outbox;
    GetQueue gets;
    PutTable puts;

    // Blocks being made durable. Shared with those that will say so, perhaps after the connection.
    std::shared_ptr<size_t> persisting = std::make_shared<size_t>(0);

    bool busy() const {
      return outbox->messages() > 0 || !gets.empty() || !puts.empty() || *persisting > 0;
    }
  };

  void Hello(Connection* connection, const HelloFrame& frame);
  Landing Serve(Connection* connection, Frame frame, uint64_t payload_bytes);
  void Match(Connection* connection, uint64_t request_id, const MatchFrame& frame);
  void Landed(Connection* connection, uint64_t request_id, LandedFrame frame);
  void Touch(const Connection& connection, const TouchFrame& frame);
  void Persist(const Connection& connection, uint64_t request_id, const PersistFrame& frame);
  // Answers a request that would begin something while the node stops; false for other frames.
  bool RefuseStopping(Connection* connection, const Frame& frame);
  void CloseMalformed(ConnectionId connection, const absl::Status& why);

  // Watches deadlines while there are any; an idle service has no timer.
  void Watch();
  void Tick();
  // The instant's reason to give a connection up, or OK.
  absl::Status Judge(Connection* connection, absl::Duration now);
  void TellWhenQuiet();

  const DataPlane plane_;
  Transport* transport_ = nullptr;
  absl::flat_hash_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  std::atomic<size_t> connection_count_{0};
  bool watching_ = false;
  bool draining_ = false;
  std::function<void()> quiet_;
};

}  // namespace terrace
