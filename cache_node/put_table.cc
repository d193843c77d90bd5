#include "cache_node/put_table.h"

#include <algorithm>

namespace terrace {
namespace {

WireStatus ToWire(ReserveOutcome outcome) {
  switch (outcome) {
    case ReserveOutcome::kReserved:
      return WireStatus::kOk;
    case ReserveOutcome::kExists:
      return WireStatus::kExists;
    case ReserveOutcome::kPending:
      return WireStatus::kPending;
    case ReserveOutcome::kNoSpace:
      return WireStatus::kNoSpace;
    case ReserveOutcome::kNeverFits:
      return WireStatus::kNeverFits;
  }
  return WireStatus::kNoSpace;
}

}  // namespace

PutTable::~PutTable() {
  while (!puts_.empty()) GiveBack(puts_.begin());
}

WireStatus PutTable::Admit(const Session& session, const BlockShape& expected,
                           const ReserveItem& item, uint64_t more_places,
                           uint64_t more_bytes) const {
  if (item.shape != expected || item.opaque_bytes > kMaxOpaqueBytes) {
    return WireStatus::kBadRequest;
  }
  const uint64_t bytes = bytes_ + more_bytes;
  const bool overloaded =
      session.reservations.load() + more_places >= plane_.limits.max_reservations ||
      (bytes > 0 && bytes + item.shape.length > plane_.limits.max_bytes_in_flight);
  return overloaded ? WireStatus::kOverloaded : WireStatus::kOk;
}

void PutTable::Reserve(const std::shared_ptr<Session>& session, uint64_t request_id,
                       const ReserveFrame& frame) {
  ReserveReplyFrame reply;
  reply.items = ReservePlaces(session, request_id, frame.ns, frame.items, frame.deadline_ms);
  for (const ReserveReplyFrame::Item& item : reply.items) {
    plane_.metrics->CountOutcome(RequestKind::kReserve, item.status);
  }
  outbox_.Send(request_id, reply);
}

std::vector<ReserveReplyFrame::Item> PutTable::ReservePlaces(
    const std::shared_ptr<Session>& session, uint64_t request_id, NamespaceId ns_id,
    std::span<const ReserveItem> items, uint32_t deadline_ms) {
  const std::shared_ptr<OpenedNamespace> ns = plane_.namespaces->Find(session->tenant, ns_id);
  const absl::Duration deadline = RequestDeadline(plane_.clock->Now(), deadline_ms);
  std::vector<ReserveReplyFrame::Item> places(items.size());

  std::vector<size_t> admitted;
  std::vector<BlockKey> keys;
  std::vector<BlockShape> shapes;
  std::vector<uint16_t> opaque_bytes;
  std::vector<uint32_t> depths;
  for (size_t i = 0; i < items.size(); ++i) {
    const ReserveItem& item = items[i];
    WireStatus& status = places[i].status;
    status = ns == nullptr ? WireStatus::kUnknownNamespace
                           : Admit(*session, ns->shape(), item, admitted.size(),
                                   admitted.size() * ns->shape().length);
    if (status != WireStatus::kOk) continue;
    admitted.push_back(i);
    keys.push_back({ns->id(), item.key.digest, item.key.shard});
    shapes.push_back(item.shape);
    opaque_bytes.push_back(item.opaque_bytes);
    depths.push_back(item.depth);
  }

  std::vector<ReserveResult> results = plane_.store->Reserve(keys, shapes, opaque_bytes, depths);
  for (size_t k = 0; k < results.size(); ++k) {
    ReserveReplyFrame::Item& item = places[admitted[k]];
    item.status = ToWire(results[k].outcome);
    if (results[k].outcome == ReserveOutcome::kNoSpace) plane_.mover->Wake();
    if (results[k].outcome != ReserveOutcome::kReserved) continue;
    auto put = std::make_unique<Put>();
    put->request_id = request_id;
    put->session = session;
    put->ns = ns;
    put->opaque_bytes = opaque_bytes[k];
    put->deadline = deadline;
    put->place = std::move(results[k].reservation);
    item.reservation = Keep(std::move(put));
  }
  return places;
}

uint64_t PutTable::Keep(std::unique_ptr<Put> put) {
  put->session->reservations.fetch_add(1);
  bytes_ += put->place.value().size();
  puts_[next_id_] = std::move(put);
  return next_id_++;
}

void PutTable::GiveBack(Puts::iterator it) {
  it->second->session->reservations.fetch_sub(1);
  bytes_ -= it->second->ns->shape().length;
  puts_.erase(it);
}

Landing PutTable::Value(uint64_t request_id, const ValueFrame& frame, uint64_t payload_bytes) {
  auto it = puts_.find(frame.reservation);
  if (it == puts_.end() || it->second->landing) {
    Reply(request_id, frame.index, WireStatus::kBadRequest);
    return {};
  }
  it->second->request_id = request_id;
  it->second->index = frame.index;
  return Land(it, frame.envelope, payload_bytes);
}

Landing PutTable::Direct(const std::shared_ptr<Session>& session, uint64_t request_id,
                         const PutFrame& frame, uint64_t payload_bytes) {
  const ReserveReplyFrame::Item place =
      ReservePlaces(session, request_id, frame.ns, {&frame.item, 1}, frame.deadline_ms).front();
  if (place.status != WireStatus::kOk) {
    Reply(request_id, /*index=*/0, place.status);
    return {};
  }
  return Land(puts_.find(place.reservation), frame.envelope, payload_bytes);
}

Landing PutTable::Land(Puts::iterator it, ByteSpan envelope, uint64_t payload_bytes) {
  Put& put = *it->second;
  const uint32_t segments = put.ns->shape().segments;
  const size_t behind = envelope.empty() ? EnvelopeBytes(segments, put.opaque_bytes) : 0;
  WireStatus status = WireStatus::kOk;
  if (payload_bytes != put.place.value().size() + behind) {
    status = WireStatus::kBadRequest;
  } else if (behind == 0) {
    status = TakeEnvelope(&put, envelope);
  }
  if (status != WireStatus::kOk) {
    Reply(put.request_id, put.index, status);
    GiveBack(it);
    return {};
  }
  put.landing = true;
  put.behind.resize(behind);
  put.checksums.resize(segments);
  put.checksummer.emplace(put.ns->shape().segment_bytes(), put.checksums);

  Landing landing;
  landing.pieces.push_back(put.place.value());
  if (behind > 0) landing.pieces.push_back(MutableByteSpan(put.behind));
  // `put` stays where it is until `landed`, which the transport always calls.
  landing.progress = [&put](ByteSpan bytes) { put.checksummer->Update(bytes); };
  landing.landed = [this, id = it->first](absl::Status landed) { Landed(id, landed); };
  return landing;
}

WireStatus PutTable::TakeEnvelope(Put* put, ByteSpan bytes) {
  const absl::StatusOr<EnvelopeView> envelope = EnvelopeView::Parse(bytes);
  if (!envelope.ok() || envelope->key() != put->place.key() ||
      envelope->shape() != put->ns->shape() ||
      envelope->bytes().size() != EnvelopeBytes(put->ns->shape().segments, put->opaque_bytes)) {
    return WireStatus::kBadRequest;
  }
  if (envelope->layout_id() != put->ns->layout_id()) return WireStatus::kForeignLayout;
  put->envelope = envelope->ToValue();
  return WireStatus::kOk;
}

void PutTable::Landed(uint64_t id, const absl::Status& status) {
  auto it = puts_.find(id);
  Put& put = *it->second;
  if (status.ok()) {
    plane_.metrics->bytes_in->Add(put.ns->shape().length);
    Reply(put.request_id, put.index, Publish(&put));
  }
  GiveBack(it);
}

WireStatus PutTable::Publish(Put* put) {
  if (!put->behind.empty()) {
    const WireStatus status = TakeEnvelope(put, put->behind);
    if (status != WireStatus::kOk) return status;
  }
  if (put->checksums != put->envelope.checksums) {
    plane_.metrics->checksum_mismatch->Add();
    return WireStatus::kChecksumMismatch;
  }
  bool published = false;
  put->ns->RunIfLive([&] { published = put->place.Publish(std::move(put->envelope)); });
  // A place outlives everything but its namespace.
  if (!published) return WireStatus::kUnknownNamespace;
  plane_.mover->Published(put->ns->shape().length);
  return WireStatus::kOk;
}

bool PutTable::Cancel(uint64_t request_id) {
  bool found = false;
  for (auto it = puts_.begin(); it != puts_.end();) {
    auto current = it++;
    if (current->second->request_id != request_id || current->second->landing) continue;
    GiveBack(current);
    found = true;
  }
  return found;
}

bool PutTable::Expire(absl::Duration now) {
  bool overdue = false;
  for (auto it = puts_.begin(); it != puts_.end();) {
    auto current = it++;
    const Put& put = *current->second;
    // A Value may be on its way when the deadline passes: the grace lets it arrive.
    if (now < put.deadline + kGrace) continue;
    overdue |= put.landing;
    if (put.landing) continue;
    plane_.metrics->reservations_expired->Add();
    GiveBack(current);
  }
  return overdue;
}

void PutTable::Reply(uint64_t request_id, uint16_t index, WireStatus status) {
  plane_.metrics->CountOutcome(RequestKind::kPut, status);
  outbox_.Send(request_id, PutReplyFrame{index, status});
}

}  // namespace terrace
