// The sending half of one UCX connection: its queue, and the pieces in UCX's hands. Lives on the
// transport's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cluster/piece.h"
#include "cluster/transport.h"
#include "cluster/transport_counters.h"
#include "cluster/ucx_handles.h"

namespace terrace {

struct UcxSendLimits {
  size_t max_header_bytes = 0;  // of one active message: piece header and frame part
  // Of one eager active message, its header included. A payload for which there is no room in the
  // last one goes by rendezvous, whole.
  size_t segment_bytes = 0;
  uint32_t max_pieces = 0;  // in UCX's hands at once
  uint64_t max_in_flight_bytes = 0;
  uint32_t max_queued_messages = 0;
};

class UcxSender {
 public:
  // `ready` is called when Pump may have something to do.
  UcxSender(ucp_ep_h endpoint, const UcxSendLimits* limits, TransportCounters* counters,
            absl::AnyInvocable<void()> ready);

  // Goes out before any message.
  void Greet(PieceKind kind);
  // The peer has greeted; messages may go.
  void Open();
  // ResourceExhausted or InvalidArgument go to `sent` at once.
  void Enqueue(OutgoingMessage message);

  // Hands pieces to UCX until a limit is reached. Not from inside a UCX callback: a piece sent
  // there would overtake those that UCX still queues. Returns whether any was handed over, or
  // why the endpoint is of no use any more.
  absl::StatusOr<bool> Pump();

  bool quiet() const { return pieces_out_ == 0; }
  // Tells every message that is left. Only when quiet().
  void FailAll(const absl::Status& why);

 private:
  struct Outbound {
    OutgoingMessage message;
    PieceHeader next;  // its offset is what has been handed over
    uint32_t pieces_out = 0;
    bool handed_over = false;
    bool failed = false;
  };
  struct Piece {
    UcxSender* sender;
    Outbound* message;
    uint64_t bytes;
    std::vector<std::byte> header;
    std::vector<ucp_dt_iov_t> data;
  };

  bool MayPump() const;
  absl::Status SendPiece();
  void Fill(Outbound* message, Piece* piece, bool* rendezvous);
  static void OnSent(void* request, ucs_status_t status, void* piece);
  void Complete(Piece* piece, ucs_status_t status);
  void Retire();

  const ucp_ep_h endpoint_;
  const UcxSendLimits* const limits_;
  TransportCounters* const counters_;
  absl::AnyInvocable<void()> ready_;

  bool open_ = false;
  absl::Status broken_;
  std::deque<Outbound> queue_;  // in order; leaves from the front when sent
  size_t next_ = 0;             // in queue_: the first that is not handed over
  uint64_t sequence_ = 0;
  uint32_t pieces_out_ = 0;
  uint64_t bytes_out_ = 0;
  std::vector<std::unique_ptr<Piece>> pieces_;
  std::vector<Piece*> idle_;
};

}  // namespace terrace
