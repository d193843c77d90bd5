#include "client/match_task.h"

#include <algorithm>

#include "client/data_channel.h"
#include "client/operation.h"

namespace terrace {

MatchTask::MatchTask(uint64_t id, const Chain* chain, const MatchOptions& options,
                     std::shared_ptr<IoHandle> io, Waiter<MatchResult>* waiter,
                     absl::Duration deadline)
    : Task(id, deadline),
      chain_(chain),
      options_(options),
      io_(std::move(io)),
      waiter_(waiter),
      shards_(chain->shards().size()),
      open_(chain->blocks() == 0 ? 0 : shards_.size()),
      blocks_(chain->blocks()) {}

Turn MatchTask::SendRequest(DataChannel& channel) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = shards_[i];
    if (shard.done || shard.request != 0) continue;
    Ask(channel, &shard, i);
  }
  return Turn::kNothing;
}

void MatchTask::Ask(DataChannel& channel, Shard* shard, size_t index) {
  MatchFrame frame{chain_->ns().id, options_.count_use, 0, {}};
  if (options_.lease > absl::ZeroDuration()) {
    frame.lease_ms = static_cast<uint32_t>(std::max<int64_t>(
        1, absl::ToInt64Milliseconds(std::min(options_.lease, channel.limits().max_lease))));
  }
  const size_t begin = shard->tiers.size();
  const size_t end =
      std::min<size_t>(chain_->blocks(), begin + channel.limits().max_keys_per_frame);
  frame.keys.reserve(end - begin);
  for (size_t block = begin; block < end; ++block) {
    const BlockKey key = chain_->key(block, index);
    frame.keys.push_back({key.digest, key.shard});
  }
  shard->asked = end - begin;
  shard->request = channel.OpenRequest(this, 0, 0);
  channel.Send(shard->request, frame);
}

absl::Status MatchTask::OnReply(DataChannel& channel, uint64_t request, FrameBody& reply,
                                uint64_t /*payload_bytes*/, Landing* /*landing*/) {
  Shard& shard = *std::ranges::find(shards_, request, &Shard::request);
  const auto* match = std::get_if<MatchReplyFrame>(&reply);
  if (match == nullptr || match->tiers.size() > shard.asked) {
    return absl::DataLossError("a Match was answered by a frame that does not fit");
  }
  channel.EndRequest(request);
  shard.request = 0;
  shard.tiers.insert(shard.tiers.end(), match->tiers.begin(), match->tiers.end());
  if (match->lease != 0) {
    leases_.push_back(match->lease);
  } else if (options_.lease > absl::ZeroDuration() &&
             std::ranges::any_of(match->tiers, [](Tier tier) { return tier < Tier::kSsd; })) {
    // There were copies in memory to lease.
    lease_refused_ = true;
  }
  if (match->status == WireStatus::kAskAgain || match->status == WireStatus::kOverloaded ||
      match->status == WireStatus::kStopping) {
    ask_again_ = true;
  }
  if (match->tiers.size() < shard.asked) blocks_ = std::min(blocks_, shard.tiers.size());
  for (Shard& each : shards_) {
    if (!each.done && each.request == 0 && each.tiers.size() >= blocks_) {
      each.done = true;
      --open_;
    }
  }
  if (!shard.done) channel.WantTurn(this);
  return absl::OkStatus();
}

void MatchTask::Abandon(DataChannel& channel, Outcome /*why*/) {
  for (Shard& shard : shards_) {
    if (shard.done) continue;
    if (shard.request != 0) channel.CancelRequest(std::exchange(shard.request, 0));
    shard.done = true;
    blocks_ = std::min(blocks_, shard.tiers.size());
  }
  open_ = 0;
  ask_again_ = true;
}

void MatchTask::Complete(DataChannel& channel) {
  MatchResult result;
  result.ask_again = ask_again_;
  result.blocks = blocks_;
  result.tiers.resize(blocks_, Tier::kNone);
  for (const Shard& shard : shards_) {
    for (size_t i = 0; i < blocks_; ++i)
      result.tiers[i] = std::max(result.tiers[i], shard.tiers[i]);
  }
  // A lease covers all of the match or is none.
  if (lease_refused_) {
    for (uint64_t lease : leases_) channel.Release(channel.session_id(), lease);
  } else if (!leases_.empty()) {
    result.lease = TakeLeases(channel);
  }
  waiter_->Finish(std::move(result));
}

Lease MatchTask::TakeLeases(DataChannel& channel) {
  const uint64_t session = channel.session_id();
  absl::Duration duration = options_.lease;
  if (session != 0) duration = std::min(duration, channel.limits().max_lease);
  return Lease(
      [io = io_, session, leases = std::move(leases_)] {
        io->Post([session, leases](DataChannel& on) {
          for (uint64_t lease : leases) on.Release(session, lease);
        });
      },
      duration);
}

}  // namespace terrace
