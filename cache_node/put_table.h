// The puts of one connection: places reserved, bytes landing in them, blocks published. A place
// is given back when its time is over, when it is cancelled or refused, or with the connection,
// but never while the transport still writes to it. On the transport's thread only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cache_node/data_plane.h"
#include "cache_node/outbox.h"
#include "proto/checksum.h"
#include "proto/envelope.h"
#include "proto/frame.h"

namespace terrace {

class PutTable {
 public:
  // Both outlive the table.
  PutTable(const DataPlane& plane, Outbox* outbox) : plane_(plane), outbox_(*outbox) {}
  ~PutTable();  // the transport is quiet

  void Reserve(const std::shared_ptr<Session>& session, uint64_t request_id,
               const ReserveFrame& frame);
  // Where the bytes of a Value land; thrown away when it is refused (the reply is under way then).
  Landing Value(uint64_t request_id, const ValueFrame& frame, uint64_t payload_bytes);
  // Reserve and Value in one.
  Landing Direct(const std::shared_ptr<Session>& session, uint64_t request_id,
                 const PutFrame& frame, uint64_t payload_bytes);
  // Gives back the places of a Reserve whose bytes have not begun to arrive.
  bool Cancel(uint64_t request_id);
  // Gives back places whose time is over. True when bytes that have begun to arrive are overdue.
  bool Expire(absl::Duration now);

  bool empty() const { return puts_.empty(); }

 private:
  struct Put {
    uint64_t request_id = 0;  // of the Reserve, then of the Value
    uint16_t index = 0;       // of the Value
    std::shared_ptr<Session> session;
    std::shared_ptr<OpenedNamespace> ns;
    uint16_t opaque_bytes = 0;
    absl::Duration deadline;
    Reservation place;
    // From here on: once bytes arrive.
    bool landing = false;
    std::vector<std::byte> behind;  // the envelope as it arrives, where it follows the bytes
    Envelope envelope;
    std::vector<uint32_t> checksums;  // computed from what arrived
    std::optional<SegmentChecksummer> checksummer;
  };
  using Puts = absl::flat_hash_map<uint64_t, std::unique_ptr<Put>>;

  // Whether an item may go to the store; counts what it would hold against the bounds.
  WireStatus Admit(const Session& session, const BlockShape& expected, const ReserveItem& item,
                   uint64_t more_places, uint64_t more_bytes) const;
  // The status of each item, and the reservation of those that are kOk.
  std::vector<ReserveReplyFrame::Item> ReservePlaces(const std::shared_ptr<Session>& session,
                                                     uint64_t request_id, NamespaceId ns,
                                                     std::span<const ReserveItem> items,
                                                     uint32_t deadline_ms);
  uint64_t Keep(std::unique_ptr<Put> put);
  void GiveBack(Puts::iterator it);
  // `envelope` is empty when it comes behind the bytes.
  Landing Land(Puts::iterator it, ByteSpan envelope, uint64_t payload_bytes);
  // Judges an encoded envelope and keeps it.
  static WireStatus TakeEnvelope(Put* put, ByteSpan bytes);
  void Landed(uint64_t id, const absl::Status& status);
  WireStatus Publish(Put* put);
  void Reply(uint64_t request_id, uint16_t index, WireStatus status);

  const DataPlane& plane_;
  Outbox& outbox_;
  uint64_t next_id_ = 1;
  uint64_t bytes_ = 0;  // of all places
  Puts puts_;           // by reservation id
};

}  // namespace terrace
