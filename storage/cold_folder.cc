#include "storage/cold_folder.h"

#include <algorithm>
#include <ctime>

#include "fmt/format.h"
#include "proto/status.h"
#include "storage/cold_operation.h"
#include "storage/frequency.h"

namespace terrace {
namespace {

constexpr size_t kMaxInFlight = 1024;
constexpr size_t kDeleteBatch = 256;
// A device that failed so many writes in a row is left alone for a while.
constexpr uint32_t kMaxWriteErrors = 3;
constexpr absl::Duration kDevicePause = absl::Seconds(5);
constexpr absl::Duration kPatience = absl::Seconds(1);

bool Aligned(ByteSpan memory) {
  return reinterpret_cast<uintptr_t>(memory.data()) % kIoAlignment == 0;
}

// For requests that end before they began.
template <typename Request>
void Answer(Request& request, const absl::Status& status) {
  if (request.released) request.released();
  request.done(status);
}

absl::Status CheckPut(const ColdPut& put, const absl::StatusOr<EnvelopeView>& envelope) {
  if (!envelope.ok()) return absl::InvalidArgumentError(envelope.status().ToString());
  if (envelope->key() != put.key || envelope->shape().length != put.value.size()) {
    return absl::InvalidArgumentError("put: envelope, key and value are not of one block");
  }
  if (!Aligned(put.value)) return absl::InvalidArgumentError("put: value is not aligned to 4 KiB");
  return absl::OkStatus();
}

uint64_t InlineBytes(const ColdEntry& entry) {
  return uint64_t{entry.envelope_bytes} + entry.length;
}

Slot SlotOf(const ColdEntry& entry) { return {entry.number, SlotPages(entry.length)}; }

}  // namespace

// A device that hangs in a write may still read.
absl::Status ColdFolder::AdmitLocked(IoKind kind) const {
  if (ending_) return absl::UnavailableError("ssd: the folder is being closed");
  if ((kind == IoKind::kRead ? overdue_reads_ : stats_.overdue) > 0) {
    return absl::UnavailableError("ssd: the device hangs");
  }
  if (in_flight_.size() >= kMaxInFlight) {
    return absl::AbortedError("ssd: too many requests in flight");
  }
  return absl::OkStatus();
}

void ColdFolder::BeginLocked(ColdOperation* operation) {
  operation->started = options_.clock->Now();
  operation->at = in_flight_.insert(in_flight_.end(), operation);
}

void ColdFolder::Finish(ColdOperation* operation, const absl::Status& status) {
  bool answer;
  {
    MutexLock lock(&mutex_);
    answer = !std::exchange(operation->answered, true);
  }
  if (options_.on_request) {
    options_.on_request(operation->kind, options_.clock->Now() - operation->started);
  }
  if (answer) operation->done(status);
  operation->Release();
  {
    MutexLock lock(&mutex_);
    if (operation->overdue) stats_.overdue -= 1;
    if (operation->overdue && operation->kind == IoKind::kRead) overdue_reads_ -= 1;
    in_flight_.erase(operation->at);
    changed_.SignalAll();
    if (ending_) keeper_wakes_.SignalAll();
  }
  delete operation;
}

void ColdFolder::CheckDeadlines() {
  std::vector<absl::AnyInvocable<void(absl::Status)>> late;
  {
    MutexLock lock(&mutex_);
    const absl::Duration now = options_.clock->Now();
    for (ColdOperation* operation : in_flight_) {
      if (now - operation->started < options_.deadline) break;
      if (std::exchange(operation->answered, true)) continue;
      operation->overdue = true;
      stats_.overdue += 1;
      overdue_reads_ += operation->kind == IoKind::kRead ? 1 : 0;
      late.push_back(std::move(operation->done));
    }
    for (HeaderWrite* header : headers_) {
      if (now - header->started < options_.deadline) break;
      stats_.overdue += std::exchange(header->overdue, true) ? 0 : 1;
    }
  }
  for (auto& done : late) {
    done(absl::DeadlineExceededError("ssd: the device did not answer in time"));
  }
}

void ColdFolder::Find(std::span<const BlockKey> keys, std::span<ColdBlock> blocks) {
  const int64_t now = options_.unix_seconds();
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    blocks[i] = {};
    const uint64_t fingerprint = table_.Fingerprint(keys[i]);
    const Index index = table_.Find(fingerprint);
    if (index == ColdTable::kNone) {
      const bool unknown = LoadingLocked() && !deleted_while_loading_.contains(fingerprint);
      if (unknown) blocks[i].presence = Presence::kAskAgain;
      continue;
    }
    const ColdEntry& entry = table_[index];
    if (entry.phase != ColdPhase::kHere || ExpiredLocked(entry, now)) continue;
    blocks[i] = {Presence::kHere, entry.length, entry.envelope_bytes, entry.depth, entry.score};
  }
}

void ColdFolder::Put(ColdPut put) {
  const auto envelope = EnvelopeView::Parse(put.envelope);
  if (const absl::Status fits = CheckPut(put, envelope); !fits.ok()) return Answer(put, fits);
  std::unique_ptr<HeaderWrite> header;
  absl::StatusOr<std::unique_ptr<ColdWrite>> begun;
  {
    MutexLock lock(&mutex_);
    begun = BeginPutLocked(&put, *envelope, &header);
    if (!begun.ok()) {
      stats_.puts_failed += 1;
    } else if (*begun == nullptr) {
      stats_.puts_existing += 1;
    } else {
      BeginLocked(begun->get());
    }
  }
  if (!begun.ok() || *begun == nullptr) return Answer(put, begun.status());
  ColdWrite* write = begun->release();
  if (write->index == ColdTable::kNone) return ProveExisting(write);
  if (write->record.place.inlined) {
    write->Release();
    return OnWritten(write, absl::OkStatus());
  }
  IoRequest* const requests[] = {write, header.release()};
  options_.io->Submit({requests, requests[1] == nullptr ? size_t{1} : size_t{2}});
}

// A power cut may have left the entry of a block without its bytes: nobody is told that a block is
// durable which cannot be read.
void ColdFolder::ProveExisting(ColdWrite* write) {
  struct Copy {
    std::vector<std::byte> envelope;
    std::unique_ptr<DiskPage[]> value;
  };
  auto copy = std::make_unique<Copy>();
  ColdBlock found;
  Find({&write->key, 1}, {&found, 1});
  copy->envelope.resize(found.envelope_bytes);
  // Of no length: it has just left.
  copy->value =
      std::make_unique_for_overwrite<DiskPage[]>(std::max(SlotPages(found.length) - 1, 1u));
  write->Release();
  ColdGet get;
  get.key = write->key;
  get.envelope = copy->envelope;
  get.value = {copy->value[0].bytes, found.length};
  get.done = [this, write](absl::Status status) {
    if (status.ok()) return OnWritten(write, status);
    if (absl::IsDataLoss(status) || absl::IsNotFound(status)) {
      status = absl::AbortedError("ssd: the key is being deleted");
    }
    Finish(write, status);
  };
  // After an answer that came too late the device may still write here.
  get.released = [copy = std::move(copy)] {};
  Get(std::move(get));
}

absl::StatusOr<std::unique_ptr<ColdWrite>> ColdFolder::BeginPutLocked(
    ColdPut* put, const EnvelopeView& envelope, std::unique_ptr<HeaderWrite>* header) {
  TERRACE_RETURN_IF_ERROR(AdmitLocked(IoKind::kWrite));
  if (load_failed_) return absl::UnavailableError("ssd: loading failed");
  if (!loaded_) return absl::AbortedError("ssd: the folder is loading");
  const uint64_t fingerprint = table_.Fingerprint(put->key);
  BlockRecord record;
  if (const Index index = table_.Find(fingerprint); index != ColdTable::kNone) {
    const bool expired = ExpiredLocked(table_[index], options_.unix_seconds());
    if (expired) expire_cursor_ = index;
    if (expired || table_[index].phase != ColdPhase::kHere) {
      return absl::AbortedError("ssd: the key is being written or deleted");
    }
    if (!put->durable) return nullptr;
    if (data_sync_failed_) return absl::UnavailableError("ssd: a sync failed since the start");
    // Nothing to write, but the block to look at and the commit to wait for.
    return std::make_unique<ColdWrite>(this, std::move(*put), record, ColdTable::kNone);
  }
  if (writes_resume_ > options_.clock->Now()) {
    return absl::UnavailableError("ssd: writes fail at present");
  }
  const uint32_t length = envelope.shape().length;
  const auto place = TakePlaceLocked(put->envelope.size(), length);
  if (!place) {
    stats_.puts_no_space += 1;
    if (!extents_.CanEverFit(length)) {
      return absl::FailedPreconditionError("ssd: larger than an extent");
    }
    return absl::ResourceExhaustedError("ssd: no free slot of this size");
  }
  const Index index = table_.Insert(fingerprint);
  ColdEntry& entry = table_[index];
  entry.inlined = place->inlined;
  entry.number = place->number;
  entry.length = length;
  entry.envelope_bytes = envelope.bytes().size();
  entry.depth = static_cast<uint16_t>(std::min<uint32_t>(envelope.depth(), UINT16_MAX));
  entry.expires_at = put->expires_at;
  entry.score = static_cast<float>(put->score);
  record = {
      *place,           length,          entry.envelope_bytes, envelope.metadata().traffic_class,
      envelope.depth(), put->expires_at, entry.score,          envelope.generation()};
  auto write = std::make_unique<ColdWrite>(this, std::move(*put), record, index);
  if (place->inlined) {
    write->TakeInline();
  } else {
    AimLocked(write.get(), header);
  }
  return write;
}

std::optional<ColdPlace> ColdFolder::TakePlaceLocked(uint32_t envelope_bytes, uint32_t length) {
  if (catalogue_full_) return std::nullopt;
  if (length <= kMaxInlineBytes &&
      stats_.inline_bytes + envelope_bytes + length <= inline_budget_) {
    stats_.inline_bytes += envelope_bytes + length;
    if (free_inline_.empty()) return ColdPlace{true, next_inline_++};
    const ColdPlace place{true, free_inline_.back()};
    free_inline_.pop_back();
    return place;
  }
  const auto slot = extents_.Allocate(length);
  if (!slot) return std::nullopt;
  return ColdPlace{false, slot->page};
}

void ColdFolder::AimLocked(ColdWrite* write, std::unique_ptr<HeaderWrite>* header) {
  const Slot slot{write->record.place.number, SlotPages(write->record.length)};
  const int file = extents_.FileOf(slot.page);
  if (extents_.NeedsHeader(slot)) {
    *header = std::make_unique<HeaderWrite>(this, extents_.NewHeader(slot), file);
    (*header)->started = options_.clock->Now();
    (*header)->at = headers_.insert(headers_.end(), header->get());
  }
  SlotRecord record = extents_.RecordFor(slot);
  record.expires_at = write->record.expires_at;
  record.score = write->record.score;
  write->Aim(file, extents_.OffsetOf(slot.page), record);
}

void ColdFolder::OnHeaderWritten(HeaderWrite* header, bool ok) {
  const std::unique_ptr<HeaderWrite> ended(header);
  MutexLock lock(&mutex_);
  headers_.erase(header->at);
  if (header->overdue) stats_.overdue -= 1;
  if (!ok) extents_.ForgetHeader(header->extent);
  extents_.MarkDirty(extents_.FirstPage(header->extent));
  if (ending_) keeper_wakes_.SignalAll();
}

void ColdFolder::OnWritten(ColdWrite* write, const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (status.ok()) {
      if (!write->record.place.inlined && write->index != ColdTable::kNone) {
        write_errors_ = 0;
        extents_.MarkDirty(write->record.place.number);
        stats_.device_bytes_written += uint64_t{SlotPages(write->record.length)} * kPageBytes;
      }
      written_.push_back(write);
      writer_wakes_.SignalAll();
      return;
    }
    const Slot slot = SlotOf(table_[write->index]);
    if (absl::IsResourceExhausted(status)) {
      extents_.Free(slot);
    } else {
      extents_.SetAside(slot);
    }
    table_.Erase(write->index);
    stats_.puts_failed += 1;
    if (++write_errors_ >= kMaxWriteErrors) WritesFailedLocked(status, kDevicePause);
  }
  Finish(write, status);
}

void ColdFolder::Get(ColdGet get) {
  absl::Status status;
  std::unique_ptr<ColdRead> read;
  {
    MutexLock lock(&mutex_);
    status = AdmitLocked(IoKind::kRead);
    stats_.gets += 1;
    const Index index = table_.Find(table_.Fingerprint(get.key));
    if (!status.ok()) {
      stats_.gets_failed += 1;
    } else if (index == ColdTable::kNone && LoadingLocked()) {
      status = absl::UnavailableError("ssd: the folder is loading; ask again");
    } else if (index == ColdTable::kNone || table_[index].phase != ColdPhase::kHere ||
               ExpiredLocked(table_[index], options_.unix_seconds())) {
      stats_.gets_missed += 1;
      status = absl::NotFoundError("ssd: no such block");
    } else if (table_[index].length != get.value.size() || !Aligned(get.value) ||
               table_[index].envelope_bytes != get.envelope.size()) {
      status = absl::InvalidArgumentError("get: memory does not fit the block");
    } else {
      const ColdPlace place = table_[index].place();
      read = std::make_unique<ColdRead>(this, std::move(get), place);
      if (!place.inlined) {
        read->file = extents_.FileOf(place.number);
        read->offset = extents_.OffsetOf(place.number);
      }
      BeginLocked(read.get());
      if (place.inlined) {
        inline_reads_.push_back(read.release());
        reader_wakes_.SignalAll();
        return;
      }
    }
  }
  if (read == nullptr) return Answer(get, status);
  IoRequest* const request = read.release();
  options_.io->Submit({&request, 1});
}

// RocksDB may read the disk, for which whoever asks does not wait.
void ColdFolder::ReadInlines() {
  mutex_.Lock();
  while (!threads_end_ || !inline_reads_.empty()) {
    if (inline_reads_.empty()) {
      reader_wakes_.WaitWithTimeout(&mutex_, kPatience);
      continue;
    }
    ColdRead* const read = inline_reads_.front();
    inline_reads_.pop_front();
    mutex_.Unlock();
    ReadInline(read);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void ColdFolder::ReadInline(ColdRead* read) {
  const auto found = catalogue_->FindInline(read->key);
  absl::Status status = found.status();
  if (found.ok()) {
    const ByteSpan block = *found ? AsBytes(**found) : ByteSpan();
    const auto envelope = EnvelopeView::Parse(block);
    status = absl::DataLossError("ssd: the catalogue holds another block");
    if (envelope.ok() && envelope->key() == read->key &&
        envelope->bytes().size() == read->envelope.size() &&
        block.size() == read->envelope.size() + read->value.size()) {
      status = VerifyValue(*envelope, block.subspan(read->envelope.size()));
    }
    if (status.ok()) {
      std::ranges::copy(envelope->bytes(), read->envelope.begin());
      std::ranges::copy(block.subspan(read->envelope.size()), read->value.begin());
    }
  }
  read->Release();
  OnRead(read, status);
}

void ColdFolder::OnRead(ColdRead* read, absl::Status status) {
  {
    MutexLock lock(&mutex_);
    if (absl::IsDataLoss(status) && read->left) {
      status = absl::NotFoundError("ssd: the block left while it was read");
      stats_.gets_missed += 1;
    } else if (!status.ok()) {
      stats_.gets_failed += 1;
    }
    if (absl::IsDataLoss(status)) {
      suspects_.push_back({read->key, read->place});
      WakeKeeperLocked();
    }
  }
  Finish(read, status);
}

absl::Status ColdFolder::JudgeRead(const BlockKey& key, ColdPlace place, ByteSpan header_page,
                                   ByteSpan value, MutableByteSpan envelope) const {
  TERRACE_ASSIGN_OR_RETURN(const HeaderPage header, ParseHeaderPage(header_page));
  if (header.record.folder_id != identity_.folder_id || header.record.page != place.number ||
      header.envelope.key() != key || header.envelope.bytes().size() != envelope.size()) {
    return absl::DataLossError("ssd: the slot holds another block");
  }
  TERRACE_RETURN_IF_ERROR(VerifyValue(header.envelope, value));
  std::ranges::copy(header.envelope.bytes(), envelope.begin());
  return absl::OkStatus();
}

void ColdFolder::LeaveLocked(Index index, ColdLeave why) {
  const ColdEntry& entry = table_[index];
  // Whoever reads it may find what comes after it, even under the same key.
  for (ColdOperation* const operation : in_flight_) {
    if (operation->kind != IoKind::kRead) continue;
    auto* const read = static_cast<ColdRead*>(operation);
    if (read->place == entry.place()) read->left = true;
  }
  std::erase_if(suspects_, [&](const Suspect& one) { return one.place == entry.place(); });
  if (entry.inlined) {
    stats_.inline_bytes -= InlineBytes(entry);
    free_inline_.push_back(entry.number);
  } else if (why == ColdLeave::kCorrupt) {
    extents_.SetAside(SlotOf(entry));
  } else {
    extents_.Quarantine(SlotOf(entry));
  }
  stats_.value_bytes -= entry.length;
  switch (why) {
    case ColdLeave::kEvicted:
      stats_.evicted += 1;
      break;
    case ColdLeave::kExpired:
      stats_.expired += 1;
      break;
    case ColdLeave::kForgotten:
      stats_.forgotten += 1;
      break;
    case ColdLeave::kCorrupt:
      stats_.corrupt += 1;
      break;
  }
  table_.Erase(index);
}

absl::Status ColdFolder::Delete(std::span<const BlockKey> keys, ColdLeave why) {
  absl::Status status;
  while (!keys.empty() && status.ok()) {
    const auto some = keys.first(std::min(keys.size(), kDeleteBatch));
    keys = keys.subspan(some.size());
    std::vector<Departure> leaving;
    std::vector<BlockKey> unloaded;
    {
      MutexLock lock(&mutex_);
      while (load_ends_ && LoadingLocked() && !ending_) {
        changed_.WaitWithTimeout(&mutex_, kPatience);
      }
      for (const BlockKey& key : some) {
        const uint64_t fingerprint = table_.Fingerprint(key);
        const Index index = table_.Find(fingerprint);
        if (index == ColdTable::kNone) {
          if (loaded_) continue;
          if (LoadingLocked()) deleted_while_loading_.insert(fingerprint);
          unloaded.push_back(key);
        } else if (table_[index].phase == ColdPhase::kWriting) {
          table_[index].doomed = 1;
        } else if (table_[index].phase == ColdPhase::kHere) {
          table_.BeginLeaving(index);
          leaving.push_back({key, index});
        }
      }
      if (!unloaded.empty()) unloaded_deletions_ += 1;
    }
    status = DeleteHere(leaving, why);
    if (unloaded.empty()) continue;
    const absl::Status deleted = DeleteUnloaded(unloaded);
    status.Update(deleted);
    MutexLock lock(&mutex_);
    unloaded_deletions_ -= 1;
    // The loader passes them by already.
    if (!deleted.ok()) undeleted_.insert(undeleted_.end(), unloaded.begin(), unloaded.end());
    changed_.SignalAll();
  }
  return status;
}

uint64_t ColdFolder::CountWrites(NamespaceId ns, bool doom) {
  uint64_t count = 0;
  MutexLock lock(&mutex_);
  for (const ColdOperation* operation : in_flight_) {
    if (operation->kind != IoKind::kWrite) continue;
    const auto* write = static_cast<const ColdWrite*>(operation);
    if (write->key.ns != ns || write->index == ColdTable::kNone || write->catalogued) continue;
    if (doom) table_[write->index].doomed = 1;
    ++count;
  }
  for (const Departure& one : uncertain_) count += one.key.ns == ns ? 1 : 0;
  return count;
}

absl::Status ColdFolder::DeleteHere(std::span<const Departure> leaving, ColdLeave why) {
  if (leaving.empty()) return absl::OkStatus();
  CatalogueBatch batch;
  {
    MutexLock lock(&mutex_);
    for (const Departure& one : leaving) batch.Delete(one.key, table_[one.index].place());
  }
  const absl::Status deleted = catalogue_->Commit(&batch);
  MutexLock lock(&mutex_);
  for (const Departure& one : leaving) {
    if (deleted.ok()) {
      LeaveLocked(one.index, why);
    } else {
      table_.Stay(one.index);
    }
  }
  UncommittedLocked();
  return deleted;
}

// Their slots were never taken from the arena: they are free once the loader is done.
absl::Status ColdFolder::DeleteUnloaded(std::span<const BlockKey> keys) {
  CatalogueBatch batch;
  for (const BlockKey& key : keys) {
    TERRACE_ASSIGN_OR_RETURN(const auto record, catalogue_->Find(key));
    if (record) batch.Delete(key, record->place);
  }
  if (batch.empty()) return absl::OkStatus();
  return catalogue_->Commit(&batch);
}

void ColdFolder::Touch(std::span<const BlockKey> keys, double moment) {
  MutexLock lock(&mutex_);
  for (const BlockKey& key : keys) {
    const Index index = table_.Find(table_.Fingerprint(key));
    if (index == ColdTable::kNone || table_[index].phase != ColdPhase::kHere) continue;
    table_.SetScore(index, AddUse(table_[index].score, moment));
  }
}

absl::StatusOr<std::vector<std::optional<BlockKey>>> ColdFolder::KeysOf(
    std::span<const ColdEntry> entries) {
  std::vector<ColdPlace> places;
  for (const ColdEntry& entry : entries) places.push_back(entry.place());
  TERRACE_ASSIGN_OR_RETURN(auto keys, catalogue_->KeysAt(places));
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] && !table_.Names(*keys[i], entries[i])) keys[i].reset();
  }
  return keys;
}

absl::StatusOr<std::vector<ColdVictim>> ColdFolder::NextVictims(size_t count) {
  std::vector<ColdEntry> entries;
  {
    MutexLock lock(&mutex_);
    for (const Index index : table_.First(count)) entries.push_back(table_[index]);
  }
  TERRACE_ASSIGN_OR_RETURN(const auto keys, KeysOf(entries));
  std::vector<ColdVictim> victims;
  for (size_t i = 0; i < keys.size(); ++i) {
    const ColdEntry& entry = entries[i];
    if (keys[i]) victims.push_back({*keys[i], entry.length, entry.score, entry.depth});
  }
  return victims;
}

absl::StatusOr<std::vector<ColdVictim>> ColdFolder::VictimsForLength(uint32_t length) {
  std::vector<uint32_t> candidates;
  uint32_t pages;
  {
    MutexLock lock(&mutex_);
    candidates = extents_.CandidatesToRecut(length);
    pages = extents_.pages_per_extent();
  }
  std::vector<ColdVictim> best;
  double least_worth = std::numeric_limits<double>::infinity();
  uint32_t chosen = 0;
  for (const uint32_t extent : candidates) {
    std::vector<BlockKey> keys;
    TERRACE_RETURN_IF_ERROR(
        catalogue_->ScanSlots(extent * pages, (extent + 1) * pages,
                              [&](uint32_t, const BlockKey& key) { keys.push_back(key); }));
    std::vector<ColdVictim> victims;
    double worth = kNoScore;
    MutexLock lock(&mutex_);
    for (const BlockKey& key : keys) {
      const Index index = table_.Find(table_.Fingerprint(key));
      if (index == ColdTable::kNone || table_[index].phase != ColdPhase::kHere) continue;
      const ColdEntry& entry = table_[index];
      victims.push_back({key, entry.length, entry.score, entry.depth});
      worth = LogSum(worth, Worth(entry.score, entry.length));
    }
    if (victims.empty()) continue;
    // One that was begun and could not be emptied then is emptied first.
    if (extents_.draining(extent)) worth = kNoScore;
    if (worth >= least_worth) continue;
    least_worth = worth;
    chosen = extent;
    best = std::move(victims);
  }
  if (best.empty()) return best;
  {
    MutexLock lock(&mutex_);
    extents_.Drain(chosen);
  }
  std::ranges::sort(best, [](const ColdVictim& a, const ColdVictim& b) {
    return GivenUpBefore({a.score, a.depth}, {b.score, b.depth});
  });
  return best;
}

void ColdFolder::SetPolicyClock(double now) {
  MutexLock lock(&mutex_);
  policy_clock_ = now;
}

double ColdFolder::policy_clock() const {
  MutexLock lock(&mutex_);
  return policy_clock_;
}

bool ColdFolder::AcceptsWrites() const {
  MutexLock lock(&mutex_);
  return stats_.overdue == 0 && writes_resume_ <= options_.clock->Now() && loaded_ &&
         !catalogue_full_;
}

ColdFolderStats ColdFolder::Stats() const {
  MutexLock lock(&mutex_);
  ColdFolderStats stats = stats_;
  stats.path = options_.path;
  stats.loaded = loaded_;
  stats.budget_bytes = options_.budget_bytes;
  stats.slot_budget_bytes = max_extents_ * extents_.extent_bytes();
  stats.extents = extents_.Stats();
  stats.capacity_bytes = extents_.bytes();
  stats.occupied_bytes = extents_.used_bytes();
  stats.blocks = table_.here();
  stats.in_flight = in_flight_.size();
  stats.memory_bytes += table_.bytes() + extents_.bookkeeping_bytes();
  if (catalogue_full_) {
    stats.writes_error = "the catalogue takes more than its share of the budget";
  } else if (trouble_) {
    stats.writes_error = trouble_->why;
  }
  if (stats.overdue > 0) {
    stats.health = FolderHealth::kHangs;
  } else if (load_failed_ || catalogue_full_ || writes_resume_ > options_.clock->Now()) {
    stats.health = FolderHealth::kWritesFail;
  }
  return stats;
}

}  // namespace terrace
