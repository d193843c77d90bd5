#include <bit>
#include <filesystem>

#include "fmt/format.h"
#include "proto/log.h"
#include "storage/cold_folder.h"
#include "storage/cold_operation.h"

namespace terrace {
namespace {

constexpr absl::Duration kIdle = absl::Seconds(1);
// The catalogue is tried again this long after an error of its own.
constexpr absl::Duration kCataloguePause = absl::Seconds(1);
constexpr absl::Duration kSyncDeadline = absl::Seconds(60);
constexpr absl::Duration kNotesInterval = absl::Seconds(10);
constexpr absl::Duration kScoresInterval = absl::Minutes(10);
constexpr size_t kWriteBatch = 256;
constexpr size_t kFreeBatch = 256;
constexpr absl::Duration kTurn = absl::Microseconds(100);
// Entries looked at per round, so that all are within a minute.
constexpr uint32_t kExpireRounds = 600;
constexpr uint32_t kExpireLeast = 4096;
constexpr uint32_t kScoresPerNote = 4096;

std::string EncodeClock(double clock) {
  const auto bits = std::bit_cast<std::array<char, sizeof(clock)>>(clock);
  return std::string(bits.begin(), bits.end());
}

std::string ScoresNote(uint32_t number) { return fmt::format("{}{:08x}", kScoresNotes, number); }

}  // namespace

void ColdFolder::WritesFailedLocked(const absl::Status& why, absl::Duration pause) {
  const absl::Duration now = options_.clock->Now();
  writes_resume_ = now + pause;
  if (!trouble_) {
    Log(LogLevel::kWarning, "ssd", "{}: writes fail: {}; they are tried again each {}",
        options_.path, why.ToString(), absl::FormatDuration(pause));
    trouble_ = WriteTrouble{.since = now};
  }
  trouble_->puts = stats_.puts;
  trouble_->why = std::string(why.message());
}

// What was written before the error proves nothing.
void ColdFolder::CommittedLocked() {
  if (!trouble_ || stats_.puts == trouble_->puts) return;
  Log(LogLevel::kInfo, "ssd", "{}: writes go again after {}", options_.path,
      absl::FormatDuration(options_.clock->Now() - trouble_->since));
  trouble_.reset();
}

// A busy keeper comes by within the commit interval; waking it sooner would make small commits.
void ColdFolder::WakeKeeperLocked() {
  if (keeper_idle_ || ending_) keeper_wakes_.SignalAll();
}

void ColdFolder::UncommittedLocked() {
  if (!std::exchange(uncommitted_, true)) WakeKeeperLocked();
}

void ColdFolder::Write() {
  mutex_.Lock();
  while (!threads_end_ || !written_.empty()) {
    if (written_.empty()) {
      writer_wakes_.WaitWithTimeout(&mutex_, kIdle);
      continue;
    }
    const size_t count = std::min(written_.size(), kWriteBatch);
    const std::vector<ColdWrite*> writes(written_.begin(), written_.begin() + count);
    written_.erase(written_.begin(), written_.begin() + count);
    mutex_.Unlock();
    CommitWrites(writes);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void ColdFolder::CommitWrites(const std::vector<ColdWrite*>& writes) {
  CatalogueBatch batch;
  for (ColdWrite* write : writes) {
    if (write->index == ColdTable::kNone) continue;
    batch.Put(write->key, write->record, std::move(write->inline_block));
  }
  const absl::Status committed = batch.empty() ? absl::OkStatus() : catalogue_->Commit(&batch);
  std::vector<std::pair<ColdWrite*, absl::Status>> finished;
  std::vector<Departure> doomed;
  {
    MutexLock lock(&mutex_);
    if (!committed.ok()) WritesFailedLocked(committed, kCataloguePause);
    for (ColdWrite* write : writes) {
      const bool is_new = write->index != ColdTable::kNone;
      write->catalogued = true;
      if (!committed.ok()) {
        if (is_new) uncertain_.push_back({write->key, write->index});
        stats_.puts_failed += is_new ? 1 : 0;
        finished.emplace_back(write, committed);
        continue;
      }
      if (is_new) PublishLocked(*write);
      if (is_new && table_[write->index].doomed) {
        table_.BeginLeaving(write->index);
        doomed.push_back({write->key, write->index});
        finished.emplace_back(write, absl::CancelledError("ssd: deleted while it was written"));
      } else if (write->durable) {
        to_commit_.push_back(write);
      } else {
        finished.emplace_back(write, absl::OkStatus());
      }
    }
    UncommittedLocked();
  }
  // If this fails the block stays, as after any deletion that failed.
  DeleteHere(doomed, ColdLeave::kForgotten).IgnoreError();
  for (const auto& [write, status] : finished) Finish(write, status);
}

void ColdFolder::PublishLocked(const ColdWrite& write) {
  table_.Publish(write.index);
  stats_.puts += 1;
  stats_.user_bytes_written += write.record.length;
  stats_.value_bytes += write.record.length;
}

// The log may have the record of a block whose commit failed all the same. Until it has its
// deletion, too, key and slot stay taken: the next start would find two blocks in one slot.
void ColdFolder::DropUncertain() {
  CatalogueBatch batch;
  std::vector<Departure> uncertain;
  {
    MutexLock lock(&mutex_);
    if (writes_resume_ > options_.clock->Now()) return;
    uncertain = uncertain_;
    for (const Departure& one : uncertain) batch.Delete(one.key, table_[one.index].place());
  }
  if (batch.empty()) return;
  const absl::Status dropped = catalogue_->Commit(&batch);
  MutexLock lock(&mutex_);
  if (!dropped.ok()) return WritesFailedLocked(dropped, kCataloguePause);
  uncertain_.erase(uncertain_.begin(), uncertain_.begin() + uncertain.size());
  for (const Departure& one : uncertain) {
    const ColdEntry& entry = table_[one.index];
    if (entry.inlined) {
      stats_.inline_bytes -= uint64_t{entry.envelope_bytes} + entry.length;
      free_inline_.push_back(entry.number);
    } else {
      extents_.Quarantine({entry.number, SlotPages(entry.length)});
    }
    table_.Erase(one.index);
  }
  UncommittedLocked();
}

// False when the folder ends and nothing is left to do.
bool ColdFolder::WaitForWork() {
  MutexLock lock(&mutex_);
  keeper_idle_ =
      !uncommitted_ && commits_wanted_ == commits_done_ && suspects_.empty() && uncertain_.empty();
  if (!ending_ || !in_flight_.empty() || !headers_.empty()) {
    keeper_wakes_.WaitWithTimeout(&mutex_, keeper_idle_ ? kIdle : options_.commit_interval);
  }
  keeper_idle_ = false;
  return !ending_ || !in_flight_.empty() || !headers_.empty() || (uncommitted_ && !commit_failed_);
}

void ColdFolder::Keep() {
  absl::Duration next_notes = options_.clock->Now() + kNotesInterval;
  absl::Duration next_scores = options_.clock->Now() + kScoresInterval;
  bool more = false;  // extents to make, between which those who wait for a commit get theirs
  do {
    JudgeSuspects();
    DropUncertain();
    Commit();
    more = AddExtent();
    ExpireSome();
    MeasureCatalogue();
    const absl::Duration now = options_.clock->Now();
    if (now < next_notes) continue;
    next_notes = now + kNotesInterval;
    KeepNotes(/*scores=*/now >= next_scores);
    if (now >= next_scores) next_scores = now + kScoresInterval;
  } while (more || WaitForWork());
  KeepNotes(/*scores=*/true);
  if (const absl::Status synced = catalogue_->Sync(); !synced.ok()) {
    Log(LogLevel::kWarning, "ssd", "{}: last sync: {}", options_.path, synced.ToString());
  }
}

void ColdFolder::MeasureCatalogue() {
  const uint64_t disk = catalogue_->DiskBytes(), memory = catalogue_->MemoryBytes();
  MutexLock lock(&mutex_);
  stats_.catalogue_bytes = disk;
  stats_.memory_bytes = memory;
  catalogue_full_ = disk > CatalogueShare(options_.budget_bytes);
}

// Data of the extents first, then the log that names it, then what waited for both.
void ColdFolder::Commit() {
  std::vector<ColdWrite*> writes;
  std::vector<Slot> slots;
  std::vector<uint32_t> dirty;
  std::vector<int> files;
  uint64_t ticket;
  {
    MutexLock lock(&mutex_);
    if (!headers_.empty() || (!uncommitted_ && commits_wanted_ == commits_done_)) return;
    uncommitted_ = false;
    writes = std::exchange(to_commit_, {});
    slots = extents_.TakeQuarantined();
    dirty = extents_.TakeDirty();
    for (const uint32_t extent : dirty)
      files.push_back(extents_.FileOf(extents_.FirstPage(extent)));
    ticket = commits_wanted_;
  }
  const absl::Status data_synced = SyncFiles(options_.io.get(), files, kSyncDeadline);
  const absl::Status synced = data_synced.ok() ? catalogue_->Sync() : data_synced;
  if (!synced.ok()) catalogue_->Resume().IgnoreError();
  ReleaseQuarantined(slots, synced.ok());
  {
    MutexLock lock(&mutex_);
    stats_.syncs += 1;
    stats_.failed_syncs += synced.ok() ? 0 : 1;
    commit_failed_ = !synced.ok();
    data_sync_failed_ |= !data_synced.ok() && !options_.io->direct();
    if (synced.ok()) {
      commits_done_ = ticket;
      CommittedLocked();
    } else {
      for (const uint32_t extent : dirty) extents_.MarkDirty(extents_.FirstPage(extent));
      uncommitted_ = true;
      commits_failed_ = ticket;
      WritesFailedLocked(synced, kCataloguePause);
    }
    changed_.SignalAll();
  }
  for (ColdWrite* write : writes) Finish(write, synced);
}

// Many at a time after a large deletion: readers get their turn in between.
void ColdFolder::ReleaseQuarantined(std::span<const Slot> slots, bool committed) {
  while (!slots.empty()) {
    const auto some = slots.first(std::min(slots.size(), kFreeBatch));
    slots = slots.subspan(some.size());
    MutexLock lock(&mutex_);
    // Letting go of the lock alone would not do: who asks for it next is mostly this thread again.
    if (slots.size() >= kFreeBatch) changed_.WaitWithTimeout(&mutex_, kTurn);
    for (const Slot slot : some) {
      if (committed) {
        extents_.Free(slot);
      } else {
        extents_.Quarantine(slot);
      }
    }
  }
}

absl::Status ColdFolder::WaitForCommit(absl::Duration timeout) {
  const absl::Duration end = options_.clock->Now() + timeout;
  MutexLock lock(&mutex_);
  const uint64_t ticket = ++commits_wanted_;
  keeper_wakes_.SignalAll();
  while (commits_done_ < ticket) {
    if (commits_failed_ >= ticket) return absl::UnavailableError("ssd: the commit failed");
    const absl::Duration left = end - options_.clock->Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("ssd: no commit in time");
    changed_.WaitWithTimeout(&mutex_, left);
  }
  return absl::OkStatus();
}

// One more, while the budget has room and the disk keeps a share free for the catalogue. Returns
// whether to go on.
bool ColdFolder::AddExtent() {
  uint32_t number;
  {
    MutexLock lock(&mutex_);
    const absl::Duration now = options_.clock->Now();
    if (ending_ || extents_.count() >= max_extents_ || now < extents_resume_) return false;
    number = extents_.count();
    extents_resume_ = now + absl::Seconds(5);
  }
  std::error_code error;
  const auto space = std::filesystem::space(options_.path, error);
  const uint64_t reserve = DeviceReserve(space.capacity);
  if (error) return false;
  if (space.available < reserve + identity_.extent_bytes) {
    if (!std::exchange(reserve_told_, true)) {
      Log(LogLevel::kWarning, "ssd",
          "{}: stays at {} of {} extents: the device has {} bytes free, of which {} stay so",
          options_.path, number, max_extents_, space.available, reserve);
    }
    return false;
  }
  reserve_told_ = false;
  const absl::StatusOr<int> file = options_.io->Open(ExtentPath(number), identity_.extent_bytes);
  if (!file.ok()) {
    Log(LogLevel::kWarning, "ssd", "{}: extent {} of {}: {}", options_.path, number + 1,
        max_extents_, file.status().ToString());
    return false;
  }
  MutexLock lock(&mutex_);
  extents_.Add(*file, std::nullopt);
  extents_resume_ = absl::ZeroDuration();
  return true;
}

void ColdFolder::ExpireSome() {
  std::vector<ColdEntry> entries;
  const int64_t now = options_.unix_seconds();
  {
    MutexLock lock(&mutex_);
    const uint32_t round = std::max(kExpireLeast, table_.end() / kExpireRounds);
    for (uint32_t i = 0; i < std::min(round, table_.end()); ++i) {
      if (expire_cursor_ >= table_.end()) expire_cursor_ = 0;
      const ColdEntry& entry = table_[expire_cursor_++];
      if (entry.phase == ColdPhase::kHere && ExpiredLocked(entry, now)) {
        entries.push_back(entry);
      }
    }
  }
  if (entries.empty()) return;
  const auto keys = KeysOf(entries);
  if (!keys.ok()) return;
  std::vector<BlockKey> expired;
  for (const auto& key : *keys) {
    if (key) expired.push_back(*key);
  }
  Delete(expired, ColdLeave::kExpired).IgnoreError();  // tried again in the next round
}

// A read found other bytes than the table promised. If the catalogue promises them too, the block
// is lost; else another key has the same fingerprint. Those that leave meanwhile are suspects no
// more: their places may hold others that are well.
void ColdFolder::JudgeSuspects() {
  while (true) {
    Suspect suspect;
    {
      MutexLock lock(&mutex_);
      if (suspects_.empty()) return;
      suspect = suspects_.back();
    }
    const auto record = catalogue_->Find(suspect.key);
    const bool promised = record.ok() && *record && (*record)->place == suspect.place;
    Departure departure{suspect.key, ColdTable::kNone};
    {
      MutexLock lock(&mutex_);
      if (std::erase(suspects_, suspect) == 0 || !promised) continue;
      departure.index = table_.Find(table_.Fingerprint(suspect.key));
      if (departure.index == ColdTable::kNone ||
          table_[departure.index].phase != ColdPhase::kHere) {
        continue;
      }
      table_.BeginLeaving(departure.index);
    }
    Log(LogLevel::kWarning, "ssd", "{}: block {} fails its checks and is dropped", options_.path,
        ToString(suspect.key));
    DeleteHere({&departure, 1}, ColdLeave::kCorrupt).IgnoreError();  // the next read finds it again
  }
}

// What the folder remembers beside blocks: the policy's clock, and as runs of (fingerprint, score)
// the scores that have risen since the catalogue got them.
void ColdFolder::KeepNotes(bool scores) {
  CatalogueBatch batch;
  uint32_t end = 0;
  {
    MutexLock lock(&mutex_);
    if (policy_clock_ != kept_clock_) batch.PutMeta(kPolicyClockNote, EncodeClock(policy_clock_));
    kept_clock_ = policy_clock_;
    if (scores && loaded_) end = table_.end();
  }
  uint32_t notes = 0;
  for (uint32_t at = 0; at < end;) {
    const std::string note = NextScores(&at, end);
    if (note.empty()) continue;
    batch.PutMeta(ScoresNote(notes++), note);
    if (!CommitNotes(&batch)) return;
  }
  // Of a time when there were more.
  for (; end > 0; ++notes) {
    const auto older = catalogue_->FindMeta(ScoresNote(notes));
    if (!older.ok() || !*older) break;
    batch.DeleteMeta(ScoresNote(notes));
  }
  if (!batch.empty()) CommitNotes(&batch);
}

// One note's worth, from entry `*at` on.
std::string ColdFolder::NextScores(uint32_t* at, uint32_t end) {
  ByteWriter note(kScoresPerNote * kScoreNoteBytes);
  for (size_t room = kScoresPerNote; room > 0 && *at < end;) {
    MutexLock lock(&mutex_);  // anew for each few, so that readers get their turn
    const uint32_t stop = std::min(*at + kScoresPerNote, end);
    for (; *at < stop && room > 0; ++*at) {
      const ColdEntry& entry = table_[*at];
      if (entry.phase != ColdPhase::kHere || !entry.risen) continue;
      note.Write(entry.fingerprint_low);
      note.Write(entry.fingerprint_high);
      note.Write(std::bit_cast<uint32_t>(entry.score));
      --room;
    }
  }
  return std::string(AsText(std::move(note).Take()));
}

bool ColdFolder::CommitNotes(CatalogueBatch* batch) {
  const absl::Status kept = catalogue_->Commit(batch);
  MutexLock lock(&mutex_);
  if (!kept.ok()) WritesFailedLocked(kept, kCataloguePause);
  UncommittedLocked();
  return kept.ok();
}

}  // namespace terrace
