#include "cache_node/get_queue.h"

#include <algorithm>
#include <optional>

namespace terrace {
namespace {

// Room to send: enough for the transport to always have a next message, little enough for the
// memory of a client that stops reading. One message may exceed it.
constexpr uint64_t kWindowBytes = 8 << 20;
constexpr size_t kWindowMessages = 512;
// Blocks on their way from the ssd tier, or come and not yet sent: enough to keep a device busy.
// The last one may exceed the bytes.
constexpr size_t kMostComing = 32;
constexpr uint64_t kMostComingBytes = 32 << 20;

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

bool GetQueue::Fills::full() const {
  return coming.size() + come.size() >= kMostComing || bytes >= kMostComingBytes;
}

void GetQueue::Add(const Session& session, uint64_t request_id, GetFrame frame) {
  Add(session, {.id = request_id, .items = std::move(frame.items)}, frame.ns, frame.deadline_ms);
}

void GetQueue::Add(const Session& session, uint64_t request_id, LendFrame frame) {
  Request request{.id = request_id, .lease_ms = std::max(frame.lease_ms, uint32_t{1})};
  request.items.reserve(frame.keys.size());
  for (const WireKey& key : frame.keys) request.items.push_back({key});
  Add(session, std::move(request), frame.ns, frame.deadline_ms);
}

void GetQueue::Add(const Session& session, Request request, NamespaceId ns, uint32_t deadline_ms) {
  session_id_ = session.id;
  request.deadline = RequestDeadline(plane_.clock->Now(), deadline_ms);
  if (requests_.size() >= plane_.limits.max_requests_in_flight) {
    for (size_t i = 0; i < request.items.size(); ++i) {
      Refuse({request.id, static_cast<uint16_t>(i), {}, {}, {}, request.lease_ms},
             WireStatus::kOverloaded);
    }
    return SendLent();
  }
  request.ns = plane_.namespaces->Find(session.tenant, ns);
  requests_.push_back(std::move(request));
  Pump();
}

bool GetQueue::Cancel(uint64_t request_id) {
  bool found = std::erase_if(requests_, [&](const Request& r) { return r.id == request_id; }) > 0;
  found |= std::erase_if(fills_->come, [&](const Come& come) {
             const bool cancelled = come.wanted.request_id == request_id;
             if (cancelled) fills_->bytes -= come.wanted.shape.length;
             return cancelled;
           }) > 0;
  for (auto& [number, wanted] : fills_->coming) {
    if (wanted.request_id == request_id) found = wanted.cancelled = true;
  }
  return found;
}

void GetQueue::Pump() {
  const auto room = [this] {
    return outbox_.bytes() < kWindowBytes && outbox_.messages() < kWindowMessages;
  };
  while (!fills_->come.empty() && room()) {
    Come come = std::move(fills_->come.front());
    fills_->come.pop_front();
    fills_->bytes -= come.wanted.shape.length;
    if (plane_.clock->Now() >= come.wanted.deadline) {
      plane_.metrics->expired->Add(1);
    } else {
      Deliver(come.wanted, std::move(come.block));
    }
  }
  while (!requests_.empty() && room() && !fills_->full()) {
    Request& request = requests_.front();
    if (request.next < request.items.size() && plane_.clock->Now() < request.deadline) {
      Answer(request, static_cast<uint16_t>(request.next++));
      continue;
    }
    plane_.metrics->expired->Add(static_cast<double>(request.items.size() - request.next));
    requests_.pop_front();
  }
  SendLent();
}

void GetQueue::Answer(const Request& request, uint16_t index) {
  const GetItem& item = request.items[index];
  Wanted wanted{request.id, index, item, {}, request.deadline, request.lease_ms};
  if (request.ns == nullptr || !request.ns->live()) {
    return Refuse(wanted, WireStatus::kUnknownNamespace);
  }
  wanted.shape = request.ns->shape();
  const BlockKey key{request.ns->id(), item.key.digest, item.key.shard};
  BlockRef block = plane_.store->Acquire(key);
  block ? Deliver(wanted, std::move(block)) : AwaitFill(key, wanted);
}

void GetQueue::Arrived(Fills* fills, uint64_t number, BlockRef block) {
  const Wanted wanted = fills->coming.extract(number).mapped();
  if (fills->queue == nullptr) return;
  if (wanted.cancelled) {
    fills->bytes -= wanted.shape.length;
  } else {
    fills->come.push_back({wanted, std::move(block)});
  }
  fills->queue->Pump();
}

void GetQueue::AwaitFill(const BlockKey& key, const Wanted& wanted) {
  // The ssd tier calls back on a thread of its own, which only posts to this one.
  const uint64_t number = fills_->next_number++;
  auto waiter = [transport = transport_, fills = fills_, number](BlockRef block) {
    transport->Post([fills, number, block = std::move(block)]() mutable {
      Arrived(fills.get(), number, std::move(block));
    });
  };
  switch (plane_.store->Fill(key, std::move(waiter))) {
    case FillOutcome::kComing:
      fills_->coming.emplace(number, wanted);
      fills_->bytes += wanted.shape.length;
      return;
    case FillOutcome::kHere:
      return Deliver(wanted, plane_.store->Acquire(key));
    case FillOutcome::kAskAgain:
      return Refuse(wanted, WireStatus::kAskAgain);
    case FillOutcome::kBusy:
      return Refuse(wanted, WireStatus::kOverloaded);
    case FillOutcome::kMiss:
      return Refuse(wanted, WireStatus::kMiss);
  }
}

void GetQueue::Deliver(const Wanted& wanted, BlockRef block) {
  if (!block) return Refuse(wanted, WireStatus::kMiss);
  if (wanted.lease_ms == 0) return SendBlock(wanted, std::move(block));
  const std::byte* const base = plane_.store->memory().data();
  LentFrame::Item item{wanted.index, WireStatus::kOk};
  item.value = static_cast<uint64_t>(block.value().data() - base);
  item.envelope = static_cast<uint64_t>(block.envelope().data() - base);
  item.generation = LoadGeneration(block.envelope());
  plane_.metrics->bytes_lent->Add(static_cast<double>(block.value().size()));
  Lend(wanted, item, std::move(block));
}

void GetQueue::Lend(const Wanted& wanted, LentFrame::Item item, BlockRef block) {
  const bool other = lent_.request_id != wanted.request_id;
  if (other || lent_.frame.items.size() == kMaxKeysPerFrame) SendLent();
  lent_.request_id = wanted.request_id;
  lent_.lease_ms = wanted.lease_ms;
  lent_.frame.items.push_back(item);
  if (block) lent_.refs.push_back(std::move(block));
}

void GetQueue::SendLent() {
  Lent lent = std::exchange(lent_, {});
  if (lent.frame.items.empty()) return;
  if (!lent.refs.empty()) {
    lent.frame.lease = plane_.sessions->GrantLease(session_id_, std::move(lent.refs),
                                                   absl::Milliseconds(lent.lease_ms));
  }
  for (LentFrame::Item& item : lent.frame.items) {
    const bool granted = lent.frame.lease != 0;
    if (item.status == WireStatus::kOk && !granted) item = {item.index, WireStatus::kOverloaded};
    plane_.metrics->CountOutcome(RequestKind::kGet, item.status);
  }
  outbox_.Send(lent.request_id, lent.frame);
}

void GetQueue::SendBlock(const Wanted& wanted, BlockRef block) {
  const std::optional<ByteSpan> range = Range(block.value(), wanted.shape, wanted.item);
  if (!range) return Refuse(wanted, WireStatus::kBadRequest);
  BlockFrame frame{wanted.index, WireStatus::kOk, {}};
  frame.envelope.assign(block.envelope().begin(), block.envelope().end());
  plane_.metrics->CountOutcome(RequestKind::kGet, WireStatus::kOk);
  plane_.metrics->bytes_out->Add(static_cast<double>(range->size()));
  outbox_.SendBlock(wanted.request_id, frame, std::move(block), *range, wanted.deadline);
}

void GetQueue::Refuse(const Wanted& wanted, WireStatus status) {
  if (wanted.lease_ms > 0) return Lend(wanted, {wanted.index, status}, {});
  plane_.metrics->CountOutcome(RequestKind::kGet, status);
  outbox_.Send(wanted.request_id, BlockFrame{wanted.index, status, {}});
}

}  // namespace terrace
