#include "cache_node/get_queue.h"

#include <algorithm>
#include <optional>

namespace terrace {
namespace {

// Room to send: enough for the transport to always have a next message, little enough for the
// memory of a client that stops reading. One message may exceed it.
constexpr uint64_t kWindowBytes = 8 << 20;
constexpr size_t kWindowMessages = 512;

// The bytes asked for, or nothing when the range is not one of whole segments of this block.
std::optional<ByteSpan> Range(ByteSpan value, const BlockShape& shape, const GetItem& item) {
  if (item.segment_count == 0) {
    if (item.first_segment != 0) return std::nullopt;
    return value;
  }
  if (uint32_t{item.first_segment} + item.segment_count > shape.segments) return std::nullopt;
  return value.subspan(size_t{item.first_segment} * shape.segment_bytes(),
                       size_t{item.segment_count} * shape.segment_bytes());
}

}  // namespace

void GetQueue::Add(const Session& session, uint64_t request_id, GetFrame frame) {
  if (requests_.size() >= plane_.limits.max_requests_in_flight) {
    for (size_t i = 0; i < frame.items.size(); ++i) {
      Refuse(request_id, static_cast<uint16_t>(i), WireStatus::kOverloaded);
    }
    return;
  }
  requests_.push_back({request_id, plane_.namespaces->Find(session.tenant, frame.ns),
                       RequestDeadline(plane_.clock->Now(), frame.deadline_ms),
                       std::move(frame.items)});
  Pump();
}

bool GetQueue::Cancel(uint64_t request_id) {
  return std::erase_if(requests_, [&](const Request& r) { return r.id == request_id; }) > 0;
}

void GetQueue::Pump() {
  while (!requests_.empty() && outbox_.bytes() < kWindowBytes &&
         outbox_.messages() < kWindowMessages) {
    Request& request = requests_.front();
    if (request.next < request.items.size() && plane_.clock->Now() < request.deadline) {
      Answer(request, static_cast<uint16_t>(request.next++));
      continue;
    }
    plane_.metrics->expired->Add(static_cast<double>(request.items.size() - request.next));
    requests_.pop_front();
  }
}

void GetQueue::Answer(const Request& request, uint16_t index) {
  const GetItem& item = request.items[index];
  if (request.ns == nullptr || !request.ns->live()) {
    return Refuse(request.id, index, WireStatus::kUnknownNamespace);
  }
  BlockRef block = plane_.store->Acquire({request.ns->id(), item.key.digest, item.key.shard});
  if (!block) return Refuse(request.id, index, WireStatus::kMiss);
  const std::optional<ByteSpan> range = Range(block.value(), request.ns->shape(), item);
  if (!range) return Refuse(request.id, index, WireStatus::kBadRequest);

  BlockFrame frame{index, WireStatus::kOk, {}};
  frame.envelope.assign(block.envelope().begin(), block.envelope().end());
  plane_.metrics->CountOutcome(RequestKind::kGet, WireStatus::kOk);
  plane_.metrics->bytes_out->Add(static_cast<double>(range->size()));
  outbox_.SendBlock(request.id, frame, std::move(block), *range, request.deadline);
}

void GetQueue::Refuse(uint64_t request_id, uint16_t index, WireStatus status) {
  plane_.metrics->CountOutcome(RequestKind::kGet, status);
  outbox_.Send(request_id, BlockFrame{index, status, {}});
}

}  // namespace terrace
