// The Get requests of one connection. Blocks are looked up when there is room to send them, not
// when they are asked for: what waits costs no reference, and Cancel or a deadline can still call
// it off. On the transport's thread only.
#pragma once

#include <deque>
#include <memory>

#include "cache_node/data_plane.h"
#include "cache_node/outbox.h"
#include "cache_node/session_table.h"
#include "proto/frame.h"

namespace terrace {

class GetQueue {
 public:
  // Both outlive the queue.
  GetQueue(const DataPlane& plane, Outbox* outbox) : plane_(plane), outbox_(*outbox) {}

  // Every item is answered with a Block frame of its own, in order, unless the deadline passes
  // first: then nobody waits for what is left.
  void Add(const Session& session, uint64_t request_id, GetFrame frame);
  // Items not yet answered are dropped. False when there is no such request.
  bool Cancel(uint64_t request_id);
  // Sends while there is room; to be called after each completed send.
  void Pump();

  bool empty() const { return requests_.empty(); }

 private:
  struct Request {
    uint64_t id = 0;
    std::shared_ptr<OpenedNamespace> ns;  // null: unknown
    absl::Duration deadline;
    std::vector<GetItem> items;
    size_t next = 0;  // the first item not yet answered
  };

  void Answer(const Request& request, uint16_t index);
  void Refuse(uint64_t request_id, uint16_t index, WireStatus status);

  const DataPlane& plane_;
  Outbox& outbox_;
  std::deque<Request> requests_;
};

}  // namespace terrace
