// The Get and Lend requests of one connection. Blocks are looked up when there is room to send
// them, not when they are asked for: what waits costs no reference, and Cancel or a deadline can
// still call it off. Blocks that have to be read from the ssd tier are answered when they have
// come; a bounded number of them is on its way while others are sent. On the transport's thread
// only.
#pragma once

#include <deque>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "cache_node/data_plane.h"
#include "cache_node/outbox.h"
#include "cache_node/session_table.h"
#include "proto/frame.h"

namespace terrace {

class GetQueue {
 public:
  // All outlive the queue.
  GetQueue(const DataPlane& plane, Transport* transport, Outbox* outbox)
      : plane_(plane), transport_(transport), outbox_(*outbox) {
    fills_->queue = this;
  }
  ~GetQueue() { fills_->queue = nullptr; }
  GetQueue(const GetQueue&) = delete;
  GetQueue& operator=(const GetQueue&) = delete;

  // Every item is answered with a Block frame of its own, unless the deadline passes first: then
  // nobody waits for what is left.
  void Add(const Session& session, uint64_t request_id, GetFrame frame);
  // The same with places under a lease, in Lent frames.
  void Add(const Session& session, uint64_t request_id, LendFrame frame);
  // Items not yet answered are dropped, those whose blocks are on their way, too. False when none
  // of such a request is left.
  bool Cancel(uint64_t request_id);
  // Sends while there is room; to be called after each completed send.
  void Pump();

  bool empty() const { return requests_.empty() && fills_->coming.empty() && fills_->come.empty(); }

 private:
  struct Request {
    uint64_t id = 0;
    std::shared_ptr<OpenedNamespace> ns;  // null: unknown
    absl::Duration deadline;
    uint32_t lease_ms = 0;  // 0: bytes are wanted, not places
    std::vector<GetItem> items;
    size_t next = 0;  // the first item not yet answered
  };
  // What the next Lent frame says.
  struct Lent {
    uint64_t request_id = 0;
    uint32_t lease_ms = 0;
    LentFrame frame;
    std::vector<BlockRef> refs;
  };

  struct Wanted {
    uint64_t request_id = 0;
    uint16_t index = 0;
    GetItem item;
    BlockShape shape;
    absl::Duration deadline;
    uint32_t lease_ms = 0;
    bool cancelled = false;
  };
  struct Come {  // from the ssd tier
    Wanted wanted;
    BlockRef block;  // empty: a miss
  };
  // Outlives the queue where fills are still on their way when the connection ends.
  struct Fills {
    // By a number of their own. What is cancelled keeps its place until its fill has come: the
    // bounds are on what the ssd tier is asked for.
    absl::flat_hash_map<uint64_t, Wanted> coming;
    uint64_t next_number = 0;
    uint64_t bytes = 0;  // of what is coming or has come
    std::deque<Come> come;
    GetQueue* queue = nullptr;  // null: gone

    bool full() const;
  };

  void Add(const Session& session, Request request, NamespaceId ns, uint32_t deadline_ms);
  void Answer(const Request& request, uint16_t index);
  static void Arrived(Fills* fills, uint64_t number, BlockRef block);
  void AwaitFill(const BlockKey& key, const Wanted& wanted);
  void Deliver(const Wanted& wanted, BlockRef block);
  void SendBlock(const Wanted& wanted, BlockRef block);
  void Lend(const Wanted& wanted, LentFrame::Item item, BlockRef block);
  void SendLent();
  void Refuse(const Wanted& wanted, WireStatus status);

  const DataPlane& plane_;
  Transport* const transport_;
  Outbox& outbox_;
  uint64_t session_id_ = 0;
  std::deque<Request> requests_;
  Lent lent_;
  const std::shared_ptr<Fills> fills_ = std::make_shared<Fills>();
};

}  // namespace terrace
