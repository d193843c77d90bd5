#include "client/get_task.h"

#include <algorithm>
#include <cstring>

#include "client/data_channel.h"
#include "fmt/format.h"
#include "proto/checksum.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Places that one frame asks for: enough to keep every thread that copies busy, little enough for
// the next frame's to be known before these are read.
constexpr uint64_t kMostLentBytes = 16 << 20;
// Somebody may still copy when the deadline passes.
constexpr uint32_t kLeaseGraceMs = 200;

}  // namespace

GetTask::GetTask(const Namespace& ns, Mode mode, std::vector<GetRequest> requests,
                 std::shared_ptr<Operation::State> state, absl::Duration deadline)
    : Task(state->id, deadline),
      ns_(ns),
      mode_(mode),
      requests_(std::move(requests)),
      state_(std::move(state)) {
  items_.reserve(requests_.size());
  for (uint32_t i = 0; i < requests_.size(); ++i) {
    if (absl::Status valid = Validate(requests_[i]); valid.ok()) {
      items_.push_back({i});
    } else {
      state_->results[i].message = std::string(valid.message());
      state_->SetOutcome(i, Outcome::kInvalid);
    }
  }
  open_ = static_cast<uint32_t>(items_.size());
  allowed_ = mode_ == Mode::kEach ? open_ : 0;
}

BlockShape GetTask::RangeOf(const GetRequest& request) const {
  const uint32_t segments = request.segment_count == 0 ? ns_.shape.segments : request.segment_count;
  return {segments * ns_.shape.segment_bytes(), segments};
}

absl::Status GetTask::Validate(const GetRequest& request) const {
  TERRACE_RETURN_IF_ERROR(terrace::Validate(ns_.shape));
  if (request.key.ns != ns_.id) return absl::InvalidArgumentError("key of another namespace");
  const BlockShape range = RangeOf(request);
  if (request.first_segment + range.segments > ns_.shape.segments) {
    return absl::InvalidArgumentError(
        fmt::format("segments {} to {} of a block with {}", request.first_segment,
                    request.first_segment + range.segments - 1, ns_.shape.segments));
  }
  size_t bytes = 0;
  for (MutableByteSpan piece : request.destination) bytes += piece.size();
  if (bytes != range.length) {
    return absl::InvalidArgumentError(
        fmt::format("the destination has {} bytes, the range {}", bytes, range.length));
  }
  return absl::OkStatus();
}

Turn GetTask::SendRequest(DataChannel& channel) {
  if (!again_.empty()) return AskForBytes(channel);
  if (next_ == allowed_) {
    const bool more_run = allowed_ < items_.size() && run_request_ == 0;
    return mode_ == Mode::kLeadingRun && more_run ? AskForRun(channel) : Turn::kNothing;
  }
  return channel.memory() != nullptr ? AskForPlaces(channel) : AskForBytes(channel);
}

// As many of those that come next as one frame may ask for.
std::vector<uint32_t> GetTask::NextPositions(const DataChannel& channel, uint64_t most,
                                             uint64_t* bytes) {
  std::vector<uint32_t> positions;
  const size_t known = again_.empty() ? allowed_ - next_ : again_.size();
  for (size_t i = 0; i < std::min<size_t>(known, channel.limits().max_keys_per_frame); ++i) {
    const uint32_t position = again_.empty() ? next_ + static_cast<uint32_t>(i) : again_[i];
    const uint64_t more = RangeOf(requests_[items_[position].index]).length;
    if (!positions.empty() && *bytes + more > most) break;
    *bytes += more;
    positions.push_back(position);
  }
  return positions;
}

void GetTask::Ask(DataChannel& channel, std::vector<uint32_t> positions, uint64_t bytes,
                  FrameBody frame) {
  for (const uint32_t position : positions) items_[position].state = Item::kAsked;
  const auto count = static_cast<uint32_t>(positions.size());
  if (again_.empty()) {
    next_ += count;
  } else {
    again_.erase(again_.begin(), again_.begin() + count);
  }
  const uint64_t request = channel.OpenRequest(this, bytes, 0);
  batches_.emplace(request, Batch{std::move(positions), count});
  channel.Send(request, frame);
}

Turn GetTask::AskForBytes(DataChannel& channel) {
  // A quarter of what may be in flight per frame keeps the next one ready while bytes arrive.
  uint64_t bytes = 0;
  std::vector<uint32_t> positions =
      NextPositions(channel, channel.limits().max_bytes_in_flight / 4, &bytes);
  if (!channel.HasRoom(bytes, 0)) return Turn::kNoRoom;
  GetFrame frame{ns_.id, MillisecondsUntil(deadline()), {}};
  for (const uint32_t position : positions) {
    const GetRequest& request = requests_[items_[position].index];
    frame.items.push_back(
        {{request.key.digest, request.key.shard}, request.first_segment, request.segment_count});
  }
  Ask(channel, std::move(positions), bytes, std::move(frame));
  return Turn::kSent;
}

Turn GetTask::AskForPlaces(DataChannel& channel) {
  uint64_t bytes = 0;
  std::vector<uint32_t> positions = NextPositions(channel, kMostLentBytes, &bytes);
  if (!channel.HasRoom(bytes, 0)) return Turn::kNoRoom;
  const uint32_t patience = MillisecondsUntil(deadline());
  LendFrame frame{ns_.id, patience, patience + kLeaseGraceMs, channel.TakeEndedLeases(), {}};
  for (const uint32_t position : positions) {
    const BlockKey& key = requests_[items_[position].index].key;
    frame.keys.push_back({key.digest, key.shard});
  }
  Ask(channel, std::move(positions), bytes, std::move(frame));
  return Turn::kSent;
}

// A lease keeps what the answer promises until it has been read.
Turn GetTask::AskForRun(DataChannel& channel) {
  if (!channel.HasRoom(0, 0)) return Turn::kNoRoom;
  MatchFrame frame{ns_.id, /*count_use=*/false, MillisecondsUntil(deadline()), {}};
  const size_t end =
      std::min<size_t>(items_.size(), allowed_ + channel.limits().max_keys_per_frame);
  for (size_t i = allowed_; i < end; ++i) {
    const BlockKey& key = requests_[items_[i].index].key;
    frame.keys.push_back({key.digest, key.shard});
  }
  run_asked_ = static_cast<uint32_t>(frame.keys.size());
  run_request_ = channel.OpenRequest(this, 0, 0);
  channel.Send(run_request_, frame);
  return Turn::kNothing;
}

absl::Status GetTask::OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                              uint64_t payload_bytes, Landing* landing) {
  if (request == run_request_) {
    const auto* run = std::get_if<MatchReplyFrame>(&reply);
    if (run == nullptr) return absl::DataLossError("a Match was answered by another frame");
    return OnRun(channel, *run);
  }
  if (const auto* lent = std::get_if<LentFrame>(&reply)) return OnLent(channel, request, *lent);
  auto* block = std::get_if<BlockFrame>(&reply);
  if (block == nullptr) return absl::DataLossError("a Get was answered by another frame");
  return OnBlock(channel, request, *block, payload_bytes, landing);
}

absl::Status GetTask::OnRun(DataChannel& channel, const MatchReplyFrame& reply) {
  if (reply.tiers.size() > run_asked_) return absl::DataLossError("a run longer than asked for");
  channel.EndRequest(run_request_);
  run_request_ = 0;
  if (reply.lease != 0) leases_.push_back(reply.lease);
  for (uint32_t i = 0; i < reply.tiers.size(); ++i) {
    state_->results[items_[allowed_ + i].index].tier = reply.tiers[i];
  }
  allowed_ += static_cast<uint32_t>(reply.tiers.size());
  if (reply.tiers.size() < run_asked_) {
    const Outcome why = reply.status == WireStatus::kOk ? Outcome::kMiss : ToOutcome(reply.status);
    for (uint32_t i = allowed_; i < items_.size(); ++i) {
      SetFinal(channel, i, i == allowed_ ? why : Outcome::kMiss, {});
    }
    items_.resize(allowed_);
  }
  channel.WantTurn(this);
  return absl::OkStatus();
}

absl::Status GetTask::OnBlock(DataChannel& channel, uint64_t request, BlockFrame& block,
                              uint64_t payload_bytes, Landing* landing) {
  const Batch& batch = batches_.find(request)->second;
  if (block.index >= batch.positions.size() ||
      items_[batch.positions[block.index]].state != Item::kAsked) {
    return absl::DataLossError("a block that was not asked for");
  }
  const uint32_t position = batch.positions[block.index];
  if (block.status != WireStatus::kOk) {
    EndItem(channel, request, position, ToOutcome(block.status), ToString(block.status));
    return absl::OkStatus();
  }
  absl::StatusOr<EnvelopeView> envelope = EnvelopeView::Parse(block.envelope);
  absl::Status good = envelope.status();
  if (good.ok()) good = Judge(requests_[items_[position].index], *envelope, payload_bytes);
  if (!good.ok()) {
    EndItem(channel, request, position, Outcome::kCorrupt, std::string(good.message()));
    return absl::OkStatus();  // the bytes are thrown away
  }
  *landing = Land(channel, request, position, *envelope);
  return absl::OkStatus();
}

// Whether this envelope is that of the block asked for, and the bytes behind it can be the range.
absl::Status GetTask::Judge(const GetRequest& request, const EnvelopeView& envelope,
                            uint64_t payload_bytes) const {
  if (envelope.key() != request.key) {
    return absl::DataLossError("the envelope carries another key: " + ToString(envelope.key()));
  }
  if (envelope.layout_id() != ns_.layout_id) {
    return absl::DataLossError(
        fmt::format("the envelope carries layout {:016x}, the namespace has {:016x}",
                    envelope.layout_id(), ns_.layout_id));
  }
  if (envelope.shape() != ns_.shape) {
    return absl::DataLossError("the envelope carries another shape");
  }
  if (payload_bytes != RangeOf(request).length) {
    return absl::DataLossError(
        fmt::format("{} bytes came, the range has {}", payload_bytes, RangeOf(request).length));
  }
  return absl::OkStatus();
}

GetTask::Arrival GetTask::Expect(uint32_t position, const EnvelopeView& envelope) const {
  const GetRequest& wanted = requests_[items_[position].index];
  const BlockShape range = RangeOf(wanted);
  Arrival arrival;
  for (uint32_t i = 0; i < range.segments; ++i) {
    arrival.expected.push_back(envelope.checksum(wanted.first_segment + i));
  }
  arrival.computed.resize(range.segments);
  arrival.checksummer.emplace(range.segment_bytes(), arrival.computed);
  arrival.generation = envelope.generation();
  arrival.metadata = envelope.metadata();
  return arrival;
}

Landing GetTask::Land(DataChannel& channel, uint64_t request, uint32_t position,
                      const EnvelopeView& envelope) {
  items_[position].state = Item::kLanding;
  auto arrival = std::make_shared<Arrival>(Expect(position, envelope));
  Landing landing;
  landing.pieces = std::move(requests_[items_[position].index].destination);
  landing.progress = [arrival](ByteSpan bytes) { arrival->checksummer->Update(bytes); };
  landing.landed = [this, &channel, request, position, arrival](const absl::Status& status) {
    OnLanded(channel, request, position, *arrival, status);
    channel.Settle(this);  // may destroy this task, but not the channel
    channel.Pump();
  };
  return landing;
}

// --- from the node's memory

absl::Status GetTask::OnLent(DataChannel& channel, uint64_t request, const LentFrame& lent) {
  const auto count = static_cast<uint32_t>(lent.items.size());
  auto loan = std::make_shared<Loan>(Loan{channel.session_id(), lent.lease, count});
  for (const LentFrame::Item& item : lent.items) {
    TERRACE_RETURN_IF_ERROR(OnPlace(channel, request, item, loan, count == 1));
  }
  return absl::OkStatus();
}

absl::Status GetTask::OnPlace(DataChannel& channel, uint64_t request, const LentFrame::Item& item,
                              const std::shared_ptr<Loan>& loan, bool alone) {
  const auto batch = batches_.find(request);
  if (batch == batches_.end() || item.index >= batch->second.positions.size() ||
      items_[batch->second.positions[item.index]].state != Item::kAsked) {
    return absl::DataLossError("a place that was not asked for");
  }
  const uint32_t position = batch->second.positions[item.index];
  if (item.status != WireStatus::kOk) {
    EndOfLoan(channel, loan.get());
    if (item.status == WireStatus::kOverloaded) {
      AskAgain(channel, request, position);
    } else {
      EndItem(channel, request, position, ToOutcome(item.status), ToString(item.status));
    }
    return absl::OkStatus();
  }
  const std::shared_ptr<const LocalMemory> memory = channel.memory();
  if (memory == nullptr || !memory->Holds(item.value, ns_.shape.length) ||
      !memory->HoldsEnvelope(item.envelope, ns_.shape.segments)) {
    return absl::DataLossError("a place outside the node's memory");
  }
  const ByteSpan shared = memory->EnvelopeAt(item.envelope, ns_.shape.segments);
  const std::vector<std::byte> own(shared.begin(), shared.end());
  const absl::StatusOr<EnvelopeView> envelope = EnvelopeView::Parse(own);
  if (!envelope.ok() || envelope->generation() != item.generation) {
    EndOfLoan(channel, loan.get());
    AskAgain(channel, request, position);  // the lease ended before we came
    return absl::OkStatus();
  }
  const GetRequest& wanted = requests_[items_[position].index];
  const absl::Status good = Judge(wanted, *envelope, RangeOf(wanted).length);
  if (!good.ok()) {
    EndOfLoan(channel, loan.get());
    EndItem(channel, request, position, Outcome::kCorrupt, std::string(good.message()));
    return absl::OkStatus();
  }
  auto copy = std::make_shared<LocalCopy>(Expect(position, *envelope));
  copy->memory = memory;
  copy->envelope = shared;
  copy->source = memory->bytes().subspan(
      item.value + uint64_t{wanted.first_segment} * ns_.shape.segment_bytes(),
      RangeOf(wanted).length);
  CopyOut(channel, request, position, std::move(copy), loan, alone);
  return absl::OkStatus();
}

// One block alone is copied here: another thread would be told of it for longer than that takes.
void GetTask::CopyOut(DataChannel& channel, uint64_t request, uint32_t position,
                      std::shared_ptr<LocalCopy> copy, const std::shared_ptr<Loan>& loan,
                      bool alone) {
  items_[position].state = Item::kLanding;
  copy->destination = std::move(requests_[items_[position].index].destination);
  copy->called_off = called_off_;
  if (alone) {
    copy->Run();
    EndOfLoan(channel, loan.get());
    return OnCopied(channel, request, position, *copy);
  }
  channel.Copy([copy] { copy->Run(); },
               [this, &channel, request, position, copy, loan] {
                 EndOfLoan(channel, loan.get());
                 OnCopied(channel, request, position, *copy);
                 channel.Settle(this);
                 channel.Pump();
               });
}

void GetTask::LocalCopy::Run() {
  // Each part is checked where it was copied to, still warm in the cache.
  constexpr size_t kPart = 32 << 10;
  for (MutableByteSpan piece : destination) {
    while (!piece.empty()) {
      if (*called_off) return;
      const MutableByteSpan part = piece.first(std::min(kPart, piece.size()));
      std::memcpy(part.data(), source.data(), part.size());
      checksummer->Update(part);
      source = source.subspan(part.size());
      piece = piece.subspan(part.size());
    }
  }
  whole = true;
}

void GetTask::OnCopied(DataChannel& channel, uint64_t request, uint32_t position, LocalCopy& copy) {
  if (!copy.whole) {
    return OnLanded(channel, request, position, copy, absl::CancelledError("given up"));
  }
  if (copy.expected != copy.computed && copy.stale()) {
    // Overwritten while it was read, since the lease had ended: nothing is wrong with the block.
    return EndItem(channel, request, position, Outcome::kMiss, "the block left");
  }
  Count(&channel.counters().local_bytes,
        copy.expected == copy.computed ? RangeOf(requests_[items_[position].index]).length : 0);
  OnLanded(channel, request, position, copy, absl::OkStatus());
}

void GetTask::EndOfLoan(DataChannel& channel, Loan* loan) {
  if (--loan->open == 0 && loan->lease != 0) channel.EndLease(loan->session, loan->lease);
}

void GetTask::AskAgain(DataChannel& channel, uint64_t request, uint32_t position) {
  items_[position].state = Item::kQueued;
  again_.push_back(position);
  GiveBack(channel, request, position);
  channel.WantTurn(this);
}

void GetTask::OnLanded(DataChannel& channel, uint64_t request, uint32_t position, Arrival& arrival,
                       const absl::Status& status) {
  if (!status.ok()) {
    EndItem(channel, request, position, why_, std::string(status.message()));
    return;
  }
  const auto [wrong, _] = std::ranges::mismatch(arrival.expected, arrival.computed);
  if (wrong != arrival.expected.end() ||
      arrival.checksummer->finished() != arrival.expected.size()) {
    const size_t segment = wrong - arrival.expected.begin();
    EndItem(channel, request, position, Outcome::kCorrupt,
            fmt::format("segment {} fails its checksum", segment));
    return;
  }
  BlockResult& result = state_->results[items_[position].index];
  result.generation = arrival.generation;
  result.metadata = std::move(arrival.metadata);
  Count(&channel.counters().get_bytes, arrival.expected.size() * ns_.shape.segment_bytes());
  EndItem(channel, request, position, Outcome::kOk);
}

void GetTask::EndItem(DataChannel& channel, uint64_t request, uint32_t position, Outcome outcome,
                      std::string message) {
  SetFinal(channel, position, outcome, std::move(message));
  GiveBack(channel, request, position);
}

void GetTask::GiveBack(DataChannel& channel, uint64_t request, uint32_t position) {
  auto it = batches_.find(request);
  if (it == batches_.end()) return;  // abandoned meanwhile
  channel.GiveBack(request, RangeOf(requests_[items_[position].index]).length, 0);
  if (--it->second.open == 0) {
    channel.EndRequest(request);
    batches_.erase(it);
  }
}

void GetTask::SetFinal(DataChannel& channel, uint32_t position, Outcome outcome,
                       std::string message) {
  Item& item = items_[position];
  item.state = Item::kFinal;
  --open_;
  if (outcome != Outcome::kOk) state_->results[item.index].message = std::move(message);
  state_->SetOutcome(item.index, outcome);
  ChannelCounters& counters = channel.counters();
  Count(&counters.gets);
  if (outcome == Outcome::kMiss) Count(&counters.misses);
  if (outcome == Outcome::kCorrupt) Count(&counters.corrupt);
  if (outcome == Outcome::kTimeout) Count(&counters.timeouts);
}

void GetTask::Abandon(DataChannel& channel, Outcome why) {
  why_ = why;
  called_off_->store(true);
  again_.clear();
  if (run_request_ != 0) channel.CancelRequest(std::exchange(run_request_, 0));
  for (const auto& [request, batch] : std::exchange(batches_, {})) channel.CancelRequest(request);
  for (uint32_t i = 0; i < items_.size(); ++i) {
    const auto state = items_[i].state;
    if (state == Item::kQueued || state == Item::kAsked) SetFinal(channel, i, why, {});
  }
  next_ = allowed_ = static_cast<uint32_t>(items_.size());
}

void GetTask::Complete(DataChannel& channel) {
  for (uint64_t lease : leases_) channel.Release(channel.session_id(), lease);
  if (mode_ == Mode::kLeadingRun) {
    // A block behind a gap is worth nothing to the caller: only the run counts.
    bool gap = false;
    size_t run = 0;
    for (BlockResult& result : state_->results) {
      gap = gap || result.outcome != Outcome::kOk;
      if (!gap) ++run;
      if (gap && result.outcome == Outcome::kOk) result.outcome = Outcome::kMiss;
    }
    state_->succeeded.store(run, std::memory_order_relaxed);
  }
  state_->Finish();
}

}  // namespace terrace
