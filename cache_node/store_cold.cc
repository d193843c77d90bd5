// The way of blocks between host memory and the ssd tier: fills and demotions.
//
// Both lend host memory to the device. It is taken back, published or given up only when the tier
// has answered and the device has let go of the memory, whichever comes last: a device that hangs
// answers by its deadline and may still write afterwards.
#include <algorithm>

#include "cache_node/store_impl.h"
#include "proto/clock.h"
#include "proto/status.h"

namespace terrace::internal {
namespace {

constexpr size_t kMostFills = 256;
constexpr size_t kMostWaiters = 64;  // of one fill
// How long a fill waits for the place of a block that has a copy; then any block gives way.
constexpr absl::Duration kLongestWait = absl::Milliseconds(200);
constexpr absl::Duration kLookForRoom = absl::Milliseconds(50);
// Host memory on its way to the device; while reads wait, half of it, so that they come first.
constexpr uint64_t kMostLeavingBytes = 64 << 20;
constexpr size_t kMostLeaving = 512;
constexpr uint64_t kLeavingShare = 8;  // at most this part of the tier
constexpr size_t kBatch = 32;

}  // namespace

// --- Fills

FillOutcome StoreImpl::Fill(const BlockKey& key, FillWaiter waiter) {
  if (cold_ == nullptr) return FillOutcome::kMiss;
  ColdBlock cold;
  cold_->Find({&key, 1}, {&cold, 1});
  if (cold.presence == Presence::kAskAgain) return FillOutcome::kAskAgain;
  std::shared_ptr<FillJob> job;
  bool waits = false;  // for room; then whoever makes it starts the job, perhaps at once
  {
    MutexLock lock(&fills_mutex_);
    if (const auto it = fills_.find(key); it != fills_.end()) {
      if (it->second->waiters.size() < kMostWaiters) {
        it->second->waiters.push_back(std::move(waiter));
        return FillOutcome::kComing;
      }
    } else if (fills_.size() < kMostFills) {
      job = std::make_shared<FillJob>();
      job->key = key;
      job->since = Clock::Real()->Now();
      const FillOutcome begun = BeginFill(key, cold, TierSpace::Victims::kCopied, &job->entry);
      if (begun != FillOutcome::kComing) return begun;
      job->waiters.push_back(std::move(waiter));
      fills_[key] = job;
      waits = job->entry == nullptr;
      if (waits) waiting_fills_.push_back(job);
    }
  }
  if (job == nullptr) {
    Add(&counters_.fills_refused, 1);
    return FillOutcome::kBusy;
  }
  waits ? TellRoomListener() : StartFill(job);
  return FillOutcome::kComing;
}

void StoreImpl::StartFill(const std::shared_ptr<FillJob>& job) {
  ColdGet get;
  get.key = job->key;
  job->envelope.resize(job->entry->envelope_bytes);
  get.envelope = job->envelope;
  get.value = ValueOf(*job->entry);
  get.done = [this, job](absl::Status status) {
    {
      MutexLock lock(&fills_mutex_);
      job->status = std::move(status);
    }
    OnFill(job);
  };
  get.released = [this, job] {
    {
      MutexLock lock(&fills_mutex_);
      job->released = true;
    }
    OnFill(job);
  };
  cold_->Load(std::move(get));
}

// Blocks that wait for room get it when others have left host memory, in the order in which they
// came.
void StoreImpl::StartWaitingFills() {
  while (true) {
    std::shared_ptr<FillJob> job;
    bool give_up = false;
    {
      MutexLock lock(&fills_mutex_);
      if (waiting_fills_.empty()) return;
      job = waiting_fills_.front();
      ColdBlock cold;
      cold_->Find({&job->key, 1}, {&cold, 1});
      using Victims = TierSpace::Victims;
      const bool any = Clock::Real()->Now() - job->since > kLongestWait;
      give_up = BeginFill(job->key, cold, any ? Victims::kAny : Victims::kCopied, &job->entry) !=
                FillOutcome::kComing;
      if (!give_up && job->entry == nullptr) return;
      waiting_fills_.pop_front();
      if (give_up) fills_.erase(job->key);
    }
    give_up ? EndWaitingFill(job) : StartFill(job);
  }
}

// It came by another way, or does not come.
void StoreImpl::EndWaitingFill(const std::shared_ptr<FillJob>& job) {
  std::vector<FillWaiter> waiters;
  {
    MutexLock lock(&fills_mutex_);
    waiters = std::move(job->waiters);
  }
  for (FillWaiter& waiter : waiters) waiter(Acquire(job->key));
}

absl::Duration StoreImpl::TidyAgainIn() const {
  if (cold_ == nullptr) return absl::InfiniteDuration();
  {
    MutexLock lock(&fills_mutex_);
    if (!waiting_fills_.empty()) return kLookForRoom;
  }
  const absl::Duration pause = cold_->DemotionPause();
  return pause > absl::ZeroDuration() ? pause : absl::InfiniteDuration();
}

// Fills take room as puts do; whoever tidies learns of puts from those who make them.
void StoreImpl::TellIfFull() {
  {
    MutexLock lock(&space_mutex_);
    if (BytesToFree(marks_, space_.occupied_bytes(), space_.arena().size()) == 0) return;
  }
  TellRoomListener();
}

void StoreImpl::TellRoomListener() {
  MutexLock lock(&demotions_mutex_);
  if (room_listener_) room_listener_();
}

FillOutcome StoreImpl::BeginFill(const BlockKey& key, const ColdBlock& cold,
                                 TierSpace::Victims victims, BlockEntry** entry) {
  MutexLock lock(&space_mutex_);
  FillOutcome present = FillOutcome::kComing;
  index_.Visit(key, [&](BlockEntry& found) {
    const bool resident = found.state.Load().phase == BlockPhase::kResident;
    present = resident ? FillOutcome::kHere : FillOutcome::kMiss;
  });
  if (present != FillOutcome::kComing) return present;
  if (cold.presence != Presence::kHere) return FillOutcome::kMiss;
  const uint32_t tenant = tenant_of_(key.ns);
  const PlaceClass size = ClassFor(cold.length, cold.envelope_bytes, tenant);
  const bool fits = tenant != 0 && space_.CanEverFit(size);
  BlockEntry* const taken = fits ? space_.Take(size, victims) : nullptr;
  if (taken == nullptr && fits && victims == TierSpace::Victims::kCopied) {
    return FillOutcome::kComing;  // when there is room
  }
  if (taken == nullptr) {
    Add(&counters_.fills_refused, 1);
    return FillOutcome::kMiss;
  }
  taken->key = key;
  taken->length = cold.length;
  taken->depth = cold.depth;
  taken->envelope_bytes = cold.envelope_bytes;
  taken->score.store(AddUse(space_.RecallScore(key), clock_.Moment()), std::memory_order_relaxed);
  taken->seen_again.store(true, std::memory_order_relaxed);
  taken->state.Apply(BlockEvent::kReserve);
  index_.Insert(taken);
  clock_.SetCapacity(space_.capacity_in_blocks());
  Add(&reserved_bytes_, size.bytes());
  *entry = taken;
  return FillOutcome::kComing;
}

// One of the two events that end a fill has come. They may come at once, on two threads: a deadline
// that passes, and the device that answers after all.
void StoreImpl::OnFill(const std::shared_ptr<FillJob>& job) {
  bool ended = false, good = false;
  std::vector<FillWaiter> waiters;
  {
    MutexLock lock(&fills_mutex_);
    if (!job->status) return;
    ended = job->released && !std::exchange(job->ended, true);
    good = job->status->ok();
    if (good && !ended) return;
    if (!good) {
      // They need not wait for a device that hangs.
      waiters = std::move(job->waiters);
      job->waiters.clear();
      const auto it = fills_.find(job->key);
      if (it != fills_.end() && it->second == job) fills_.erase(it);
    }
  }
  std::vector<BlockRef> refs;
  if (good) {
    MutexLock lock(&fills_mutex_);
    waiters = std::move(job->waiters);
    refs.resize(waiters.size());
    // A generation of its own: who still reads what lay here before, perhaps this very block, must
    // not take the one for the other. Only now, when the value is whole.
    SetGeneration(job->envelope, next_generation_.fetch_add(1, std::memory_order_relaxed));
    std::ranges::copy(job->envelope, EnvelopeOf(*job->entry).begin());
    MakeResident(job->entry, refs);
    fills_.erase(job->key);
  } else if (ended) {
    GiveUp(job->entry);
  }
  if (ended) Add(good ? &counters_.fills : &counters_.fills_failed, 1);
  refs.resize(waiters.size());
  for (size_t i = 0; i < waiters.size(); ++i) waiters[i](std::move(refs[i]));
  if (good) TellIfFull();
}

// --- Demotions

bool StoreImpl::DemoteSome(uint64_t to_free) {
  Leaving bound{kMostLeaving, std::min(kMostLeavingBytes, memory_bytes_.size() / kLeavingShare)};
  {
    MutexLock lock(&fills_mutex_);
    if (!fills_.empty()) bound = {bound.blocks / 2, bound.bytes / 2};
  }
  const auto leaving = [this] {
    MutexLock lock(&demotions_mutex_);
    return leaving_;
  };
  to_free -= std::min(to_free, leaving().bytes);
  bool any = false;
  // Over the rate, blocks stay as long as there is room for others.
  while (to_free > 0 && cold_->DemotionPause() == absl::ZeroDuration()) {
    const Leaving now = leaving();
    if (now.bytes >= bound.bytes || now.blocks >= bound.blocks) break;
    const auto jobs = ChooseLeaving(std::min(to_free, bound.bytes - now.bytes),
                                    std::min<size_t>(kBatch, bound.blocks - now.blocks));
    if (jobs.empty()) break;
    uint64_t bytes = 0;
    for (const auto& job : jobs) bytes += job->entry->size.bytes();
    to_free -= std::min(to_free, bytes);
    {
      MutexLock lock(&demotions_mutex_);
      leaving_.blocks += jobs.size();
      leaving_.bytes += bytes;
    }
    Demote(jobs);
    any = true;
  }
  return any;
}

std::vector<std::shared_ptr<StoreImpl::DemotionJob>> StoreImpl::ChooseLeaving(uint64_t to_free,
                                                                              size_t most) {
  std::vector<std::shared_ptr<DemotionJob>> jobs;
  MutexLock lock(&space_mutex_);
  for (uint64_t bytes = 0; bytes < to_free && jobs.size() < most;) {
    BlockState before;
    BlockEntry* const entry = space_.BeginLeaving(&before);
    if (entry == nullptr) break;
    if (before.references == 0) Add(&referenced_blocks_, 1);
    bytes += entry->size.bytes();
    BeginWriteOf(entry->key.ns);
    auto job = std::make_shared<DemotionJob>();
    job->entry = entry;
    job->score = entry->rank().score;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void StoreImpl::Demote(const std::vector<std::shared_ptr<DemotionJob>>& jobs) {
  std::vector<BlockKey> keys;
  for (const auto& job : jobs) keys.push_back(job->entry->key);
  std::vector<ColdBlock> cold(keys.size());
  cold_->Find(keys, cold);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const BlockEntry& entry = *jobs[i]->entry;
    if (cold[i].presence == Presence::kHere) {
      Add(&counters_.demoted_by_name, 1);
      EndDemotion(jobs[i].get(), /*drop=*/true);
      continue;
    }
    const auto envelope = EnvelopeView::Parse(EnvelopeOf(entry));
    if (!envelope.ok() || !IsRight(*jobs[i]->entry) ||
        !cold_->Admits(envelope->metadata().traffic_class, entry.seen_again.load())) {
      Add(&counters_.not_admitted, 1);
      EndDemotion(jobs[i].get(), /*drop=*/true);
      continue;
    }
    StartDemotion(jobs[i]);
  }
}

void StoreImpl::StartDemotion(const std::shared_ptr<DemotionJob>& job) {
  const BlockEntry& entry = *job->entry;
  ColdPut put;
  put.key = entry.key;
  put.envelope = EnvelopeOf(entry);
  put.value = ValueOf(entry);
  put.score = job->score - clock_.Now();
  put.done = [this, job](absl::Status status) {
    {
      MutexLock lock(&demotions_mutex_);
      job->status = std::move(status);
    }
    OnDemotion(job);
  };
  put.released = [this, job] {
    {
      MutexLock lock(&demotions_mutex_);
      job->released = true;
    }
    OnDemotion(job);
  };
  cold_->Store(std::move(put));
}

void StoreImpl::OnDemotion(const std::shared_ptr<DemotionJob>& job) {
  bool good = false, no_room = false;
  {
    MutexLock lock(&demotions_mutex_);
    if (!job->status || !job->released || std::exchange(job->ended, true)) return;
    good = job->status->ok();
    no_room = absl::IsResourceExhausted(*job->status);
  }
  if (good) {
    Add(&counters_.demoted, 1);
  } else {
    Add(no_room ? &counters_.demotions_no_room : &counters_.demotions_failed, 1);
  }
  // Room is needed whether or not the device takes the block. One that was used meanwhile stays;
  // when its turn comes again, it leaves by name.
  EndDemotion(job.get(), /*drop=*/!good || job->entry->rank().score == job->score);
}

void StoreImpl::EndDemotion(DemotionJob* job, bool drop) {
  const uint64_t bytes = job->entry->size.bytes();
  EndWriteOf(job->entry->key.ns);
  {
    MutexLock lock(&space_mutex_);
    const auto [before, outcome] = job->entry->state.Apply(BlockEvent::kRelease);
    if (before.references == 1) referenced_blocks_.fetch_sub(1, std::memory_order_relaxed);
    if (outcome == BlockOutcome::kLast) {
      space_.Reclaim(job->entry);
    } else if (before.phase == BlockPhase::kResident) {
      space_.EndLeaving(job->entry, drop);
    }
  }
  {
    MutexLock lock(&demotions_mutex_);
    leaving_.blocks -= 1;
    leaving_.bytes -= bytes;
    if (room_listener_) room_listener_();
  }
  StartWaitingFills();
}

void StoreImpl::BeginWriteOf(NamespaceId ns) {
  MutexLock lock(&writes_mutex_);
  ++writes_of_[ns.value];
}

void StoreImpl::EndWriteOf(NamespaceId ns) {
  MutexLock lock(&writes_mutex_);
  const auto it = writes_of_.find(ns.value);
  if (--it->second == 0) writes_of_.erase(it);
}

absl::StatusOr<uint64_t> StoreImpl::CountCold(NamespaceId ns) const {
  if (cold_ == nullptr) return 0;
  uint64_t writes = 0;
  {
    MutexLock space(&space_mutex_);  // whoever chooses blocks to leave has counted them
    MutexLock lock(&writes_mutex_);
    if (const auto it = writes_of_.find(ns.value); it != writes_of_.end()) writes = it->second;
  }
  TERRACE_ASSIGN_OR_RETURN(const uint64_t blocks, cold_->CountBlocks(ns));
  return writes + blocks;
}

void StoreImpl::SetRoomListener(std::function<void()> listener) {
  MutexLock lock(&demotions_mutex_);
  room_listener_ = std::move(listener);
}

// --- Durability

void StoreImpl::Persist(const BlockKey& key, PersistWaiter told) {
  if (cold_ == nullptr) {
    return told(Acquire(key) ? PersistOutcome::kNotDurable : PersistOutcome::kMiss);
  }
  BeginWriteOf(key.ns);
  PersistWaiter waiter = [this, ns = key.ns,
                          told = std::move(told)](PersistOutcome outcome) mutable {
    EndWriteOf(ns);
    told(outcome);
  };
  if (BlockRef block = Acquire(key)) return StoreDurably(key, std::move(block), std::move(waiter));
  // Nothing is said of a copy on the device before its bytes have been read.
  auto shared = std::make_shared<PersistWaiter>(std::move(waiter));
  const FillOutcome begun = Fill(key, [this, key, shared](BlockRef block) {
    if (!block) return (*shared)(PersistOutcome::kMiss);
    StoreDurably(key, std::move(block), std::move(*shared));
  });
  switch (begun) {
    case FillOutcome::kComing:
      return;
    case FillOutcome::kMiss:
      return (*shared)(PersistOutcome::kMiss);
    case FillOutcome::kHere:
    case FillOutcome::kAskAgain:
    case FillOutcome::kBusy:
      return (*shared)(PersistOutcome::kAskAgain);
  }
}

void StoreImpl::StoreDurably(const BlockKey& key, BlockRef block, PersistWaiter waiter) {
  const auto held = std::make_shared<BlockRef>(std::move(block));
  double score = 0;
  index_.Visit(key, [&](BlockEntry& entry) { score = entry.rank().score - clock_.Now(); });
  ColdPut put;
  put.key = key;
  put.envelope = held->envelope();
  put.value = held->value();
  put.score = score;
  put.durable = true;
  put.done = [waiter = std::move(waiter)](const absl::Status& status) mutable {
    if (status.ok()) return waiter(PersistOutcome::kDurable);
    const bool passes = absl::IsResourceExhausted(status) || absl::IsAborted(status);
    waiter(passes ? PersistOutcome::kAskAgain : PersistOutcome::kNotDurable);
  };
  put.released = [held] { held->Release(); };
  cold_->Store(std::move(put));
}

// --- The end

LastDemotions StoreImpl::CloseColdTier(absl::Duration timeout) {
  if (cold_ == nullptr) return {};
  const LastDemotions last = DemoteAll(timeout);
  // None begins any more; those that end now find nobody who waits for room.
  std::deque<std::shared_ptr<FillJob>> waiting;
  {
    MutexLock lock(&fills_mutex_);
    waiting.swap(waiting_fills_);
    for (const auto& job : waiting) fills_.erase(job->key);
  }
  for (const auto& job : waiting) EndWaitingFill(job);
  cold_->Close();  // those that wait for a fill may yet ask it for more
  cold_.reset();
  return last;
}

LastDemotions StoreImpl::DemoteAll(absl::Duration timeout) {
  const absl::Duration deadline = Clock::Real()->Now() + timeout;
  auto all = [](NamespaceId) { return true; };
  // Shared with callbacks, which may come after this returns.
  struct Window {
    Mutex mutex;
    CondVar changed;
    Leaving leaving ABSL_GUARDED_BY(mutex);
    LastDemotions last ABSL_GUARDED_BY(mutex);
  };
  const auto in_flight = std::make_shared<Window>();
  const auto wait_below = [&](uint64_t blocks, uint64_t bytes) {
    MutexLock lock(&in_flight->mutex);
    while (in_flight->leaving.blocks >= blocks || in_flight->leaving.bytes >= bytes) {
      const absl::Duration left = deadline - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) return false;
      in_flight->changed.WaitWithTimeout(&in_flight->mutex, left);
    }
    return true;
  };
  bool in_time = true;
  for (const ResidentBlock& block : Top(SIZE_MAX, all)) {
    ColdBlock cold;
    cold_->Find({&block.key, 1}, {&cold, 1});
    if (cold.presence == Presence::kHere) continue;
    auto ref = std::make_shared<BlockRef>(Acquire(block.key));
    if (!*ref) continue;
    const auto envelope = EnvelopeView::Parse(ref->envelope());
    if (!envelope.ok() || !cold_->Admits(envelope->metadata().traffic_class, true)) continue;
    const uint64_t bytes = block.bytes;
    in_time = in_time && wait_below(kMostLeaving, kMostLeavingBytes);
    {
      MutexLock lock(&in_flight->mutex);
      in_flight->last.lost += in_time ? 0 : 1;
      in_flight->leaving.blocks += in_time ? 1 : 0;
      in_flight->leaving.bytes += in_time ? bytes : 0;
    }
    if (!in_time) continue;  // counting
    ColdPut put;
    put.key = block.key;
    put.envelope = ref->envelope();
    put.value = ref->value();
    put.score = block.score;
    put.done = [in_flight, bytes](const absl::Status& status) {
      MutexLock lock(&in_flight->mutex);
      in_flight->leaving.blocks -= 1;
      in_flight->leaving.bytes -= bytes;
      in_flight->last.blocks += status.ok() ? 1 : 0;
      in_flight->last.bytes += status.ok() ? bytes : 0;
      in_flight->last.lost += status.ok() ? 0 : 1;
      in_flight->changed.SignalAll();
    };
    put.released = [ref] { ref->Release(); };
    cold_->Store(std::move(put));
  }
  wait_below(1, 1);
  MutexLock lock(&in_flight->mutex);
  in_flight->last.lost += in_flight->leaving.blocks;
  return in_flight->last;
}

// --- Seeing

std::vector<TierStats> StoreImpl::Tiers() const {
  std::vector<TierStats> tiers = {Stats()};
  if (cold_ == nullptr) return tiers;
  TierStats ssd;
  ssd.tier = Tier::kSsd;
  for (const ColdFolderStats& folder : cold_->FolderStats()) {
    ssd.capacity_bytes += folder.budget_bytes;
    ssd.value_bytes += folder.value_bytes;
    ssd.occupied_bytes += folder.occupied_bytes + folder.catalogue_bytes;
    ssd.blocks += folder.blocks;
    ssd.index_bytes += folder.memory_bytes;
    ssd.puts += folder.puts;
    ssd.puts_existing += folder.puts_existing;
    ssd.puts_no_space += folder.puts_no_space;
    ssd.puts_aborted += folder.puts_failed;
    ssd.evicted += folder.evicted;
    ssd.expired += folder.expired;
    ssd.forgotten += folder.forgotten;
    ssd.corrupt += folder.corrupt;
  }
  ssd.hits = cold_->hits();
  ssd.misses = cold_->misses();
  ssd.turnovers = cold_->turnovers();
  tiers.push_back(ssd);
  return tiers;
}

}  // namespace terrace::internal
