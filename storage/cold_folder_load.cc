#include <algorithm>
#include <bit>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "fmt/format.h"
#include "proto/log.h"
#include "proto/status.h"
#include "proto/units.h"
#include "storage/cold_folder.h"
#include "storage/cold_operation.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kGiB = 1 << 30;
constexpr uint64_t kUsualExtentBytes = 512 << 20;
constexpr uint64_t kLeastExtentBytes = 128 << 20;
constexpr uint64_t kLeastExtents = 8;
constexpr uint64_t kLeastBudget = 64 << 20;
constexpr uint32_t kIoDepth = 128;
constexpr size_t kRecordsPerStep = 512;
constexpr size_t kReadyChunks = 2;
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr absl::Duration kLastPatience = absl::Seconds(1);
// Present while the catalogue is being rebuilt from the extents.
constexpr char kRebuildMark[] = "rebuild";
constexpr char kBrokenCatalogue[] = "catalogue.broken";

absl::Status Validate(const ColdFolderOptions& options) {
  const uint64_t extent = options.extent_bytes;
  if (options.budget_bytes < kLeastBudget) {
    return absl::InvalidArgumentError(fmt::format("ssd: budget_bytes is {}; at least {} is needed",
                                                  options.budget_bytes, kLeastBudget));
  }
  if (extent % kPageBytes != 0 || extent > kGiB) {
    return absl::InvalidArgumentError("ssd: extent_bytes must be pages, at most 1 GiB");
  }
  if (options.budget_bytes > kMaxFolderBytes) {
    return absl::InvalidArgumentError(
        fmt::format("ssd: budget_bytes is {}; at most {} is possible in one folder",
                    options.budget_bytes, kMaxFolderBytes));
  }
  return absl::OkStatus();
}

uint64_t ExtentsIn(uint64_t budget_bytes, uint64_t extent_bytes) {
  return (budget_bytes - CatalogueShare(budget_bytes)) / extent_bytes;
}

uint64_t RandomId() {
  const std::vector<uint8_t> drawn = RandomBytes(sizeof(uint64_t));
  uint64_t id;
  std::memcpy(&id, drawn.data(), sizeof(id));
  return id;
}

// Records on their way from the thread that reads the catalogue to the one that enters them.
class LoadSteps {
 public:
  using Records = std::vector<std::pair<BlockKey, BlockRecord>>;

  // Takes `records` and leaves it empty; waits while many are on their way. False: no more.
  bool Add(Records* records) {
    MutexLock lock(&mutex_);
    while (steps_.size() >= kMost && !refused_) changed_.WaitWithTimeout(&mutex_, kPatience);
    if (refused_) return false;
    steps_.push_back(std::exchange(*records, {}));
    records->reserve(kRecordsPerStep);
    changed_.SignalAll();
    return true;
  }
  void End() {
    MutexLock lock(&mutex_);
    ended_ = true;
    changed_.SignalAll();
  }
  // Nothing after the last one.
  std::optional<Records> Next() {
    MutexLock lock(&mutex_);
    while (steps_.empty() && !ended_) changed_.WaitWithTimeout(&mutex_, kPatience);
    if (steps_.empty()) return std::nullopt;
    Records records = std::move(steps_.front());
    steps_.pop_front();
    changed_.SignalAll();
    return records;
  }
  void Refuse() {
    MutexLock lock(&mutex_);
    refused_ = true;
    changed_.SignalAll();
  }

 private:
  static constexpr size_t kMost = 16;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Records> steps_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;
};

BlockRecord RecordOf(const HeaderPage& page) {
  BlockRecord record;
  record.place = {false, page.record.page};
  record.length = page.envelope.shape().length;
  record.envelope_bytes = static_cast<uint16_t>(page.envelope.bytes().size());
  record.traffic_class = page.envelope.metadata().traffic_class;
  record.depth = page.envelope.depth();
  record.expires_at = page.record.expires_at;
  record.score = page.record.score;
  record.generation = page.envelope.generation();
  return record;
}

}  // namespace

uint64_t CatalogueShare(uint64_t budget_bytes) {
  return std::max(std::min(kGiB, budget_bytes / 8), budget_bytes / 50);
}

uint64_t ExtentBytesFor(uint64_t budget_bytes) {
  uint64_t bytes = kUsualExtentBytes;
  while (bytes > kLeastExtentBytes && ExtentsIn(budget_bytes, bytes) < kLeastExtents) bytes /= 2;
  return bytes;
}

uint64_t DeviceReserve(uint64_t device_bytes) {
  return std::max(std::min(kGiB, device_bytes / 16), device_bytes / 50);
}

absl::StatusOr<std::unique_ptr<ColdFolder>> ColdFolder::Open(ColdFolderOptions options) {
  TERRACE_RETURN_IF_ERROR(Validate(options));
  if (!options.unix_seconds) options.unix_seconds = [] { return int64_t{std::time(nullptr)}; };
  TERRACE_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::Take(options.path));
  FolderIdentity wanted{options.cluster, options.node, RandomId(), options.extent_bytes};
  if (wanted.extent_bytes == 0) wanted.extent_bytes = ExtentBytesFor(options.budget_bytes);
  TERRACE_ASSIGN_OR_RETURN(const FolderIdentity identity, ClaimFolder(options.path, wanted));
  if (ExtentsIn(options.budget_bytes, identity.extent_bytes) == 0) {
    return absl::InvalidArgumentError(
        fmt::format("ssd: budget_bytes of {} has no room for one extent of {} bytes", options.path,
                    identity.extent_bytes));
  }
  if (options.io == nullptr) {
    TERRACE_ASSIGN_OR_RETURN(options.io, CreateFileIo(kIoDepth));
  }
  std::unique_ptr<ColdFolder> folder(new ColdFolder(std::move(options), std::move(lock), identity));
  TERRACE_RETURN_IF_ERROR(folder->OpenCatalogue());
  TERRACE_RETURN_IF_ERROR(folder->OpenExtents());
  {
    MutexLock lock(&folder->mutex_);
    Log(LogLevel::kInfo, "ssd", "{}: {}, {} of {} extents of {}, budget {}", folder->options_.path,
        identity.folder_id == wanted.folder_id ? "a new folder" : "found", folder->extents_.count(),
        folder->max_extents_, FormatBytes(identity.extent_bytes),
        FormatBytes(folder->options_.budget_bytes));
  }
  ColdFolder* const self = folder.get();
  self->reader_ = std::thread([self] { self->ReadInlines(); });
  self->writer_ = std::thread([self] { self->Write(); });
  self->keeper_ = std::thread([self] { self->Keep(); });
  self->loader_ = std::thread([self] { self->Load(); });
  return folder;
}

ColdFolder::ColdFolder(ColdFolderOptions options, FolderLock lock, const FolderIdentity& identity)
    : options_(std::move(options)),
      lock_(std::move(lock)),
      identity_(identity),
      max_extents_(static_cast<uint32_t>(ExtentsIn(options_.budget_bytes, identity.extent_bytes))),
      inline_budget_(CatalogueShare(options_.budget_bytes) / 4),
      table_(identity.folder_id, &stock_),
      extents_(options_.io.get(), identity.folder_id, identity.extent_bytes) {}

ColdFolder::~ColdFolder() {
  Close();
  if (options_.io->WaitIdle(kLastPatience)) return;
  // Requests that somebody has stopped waiting for: when the device answers after all, whoever it
  // answers has to be there.
  Log(LogLevel::kError, "ssd", "{}: the device hangs", options_.path);
  (void)options_.io.release();
}

void ColdFolder::Close() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    keeper_wakes_.SignalAll();
    changed_.SignalAll();
  }
  if (loader_.joinable()) loader_.join();
  if (keeper_.joinable()) keeper_.join();
  {
    MutexLock lock(&mutex_);
    threads_end_ = true;
    reader_wakes_.SignalAll();
    writer_wakes_.SignalAll();
  }
  if (reader_.joinable()) reader_.join();
  if (writer_.joinable()) writer_.join();
}

bool ColdFolder::Ending() const {
  MutexLock lock(&mutex_);
  return ending_;
}

// A catalogue that is lost or broken is put aside and begun anew, empty; the mark makes sure that
// a crash before it is rebuilt begins this again.
absl::Status ColdFolder::OpenCatalogue() {
  const fs::path top(options_.path), mark = top / kRebuildMark, path = top / "catalogue";
  const std::string name = path.string();
  std::error_code error;
  const bool there = fs::exists(path / "CURRENT", error);
  if (error) {
    return absl::UnavailableError(fmt::format("ssd: {}: {}", name, error.message()));
  }
  const bool lost = !there && options_.io->FileBytes(ExtentPath(0)).ok();
  absl::StatusOr<std::unique_ptr<Catalogue>> opened = absl::DataLossError("ssd: it is lost");
  const uint64_t share = CatalogueShare(options_.budget_bytes);
  if (!lost && !fs::exists(mark, error)) opened = Catalogue::Open(name, share, options_.env);
  if (absl::IsDataLoss(opened.status())) {
    Log(LogLevel::kWarning, "ssd", "{}: the catalogue is rebuilt from the extents: {}",
        options_.path, opened.status().ToString());
    TERRACE_RETURN_IF_ERROR(MarkForRebuild());
    const fs::path aside = top / kBrokenCatalogue;
    fs::remove_all(aside, error);
    fs::rename(path, aside, error);
    rebuild_ = true;
    opened = Catalogue::Open(name, share, options_.env);
  }
  TERRACE_RETURN_IF_ERROR(opened.status());
  catalogue_ = *std::move(opened);
  TERRACE_ASSIGN_OR_RETURN(const auto clock, catalogue_->FindMeta(kPolicyClockNote));
  MutexLock lock(&mutex_);
  stats_.rebuilding = rebuild_;
  if (clock && clock->size() == sizeof(policy_clock_)) {
    std::memcpy(&policy_clock_, clock->data(), sizeof(policy_clock_));
    kept_clock_ = policy_clock_;
  }
  return absl::OkStatus();
}

absl::Status ColdFolder::MarkForRebuild() { return ReplaceFile(options_.path, kRebuildMark, ""); }

std::string ColdFolder::ExtentPath(size_t extent) const {
  return fmt::format("{}/extents/{:08}.extent", options_.path, extent);
}

// Those that are there; a folder without any gets its first, so that it can be used at once.
absl::Status ColdFolder::OpenExtents() {
  std::error_code error;
  fs::create_directories(options_.path + "/extents", error);
  std::vector<int> files;
  std::vector<PageAddress> pages;
  while (files.size() < max_extents_) {
    const std::string path = ExtentPath(files.size());
    if (!files.empty() && !options_.io->FileBytes(path).ok()) break;
    absl::StatusOr<int> file = options_.io->Open(path, identity_.extent_bytes);
    if (!file.ok()) {
      for (const int open : files) options_.io->Close(open);
      return file.status();
    }
    files.push_back(*file);
    pages.push_back({*file, 0});
  }
  const auto headers = ReadPages(options_.io.get(), pages, options_.start_deadline);
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < files.size(); ++i) {
    std::optional<ExtentHeader> header;
    if (headers.ok()) {
      const auto parsed = ParseExtentHeader(ByteSpan((*headers)[i].bytes));
      if (parsed.ok()) header = *parsed;
    }
    extents_.Add(files[i], header);
  }
  return headers.status();
}

void ColdFolder::Load() {
  const absl::Duration begin = options_.clock->Now();
  absl::Status loaded = rebuild_ ? Rebuild() : LoadTable();
  if (loaded.ok() && !Ending()) loaded = LoadScores();
  if (loaded.ok() && !Ending()) loaded = EndDeletions();
  if (Ending()) return;
  if (!loaded.ok()) {
    Log(LogLevel::kError, "ssd", "{}: loading failed, no writes until the next start: {}",
        options_.path, loaded.ToString());
    if (absl::IsDataLoss(loaded)) MarkForRebuild().IgnoreError();
    MutexLock lock(&mutex_);
    load_failed_ = true;
    stats_.load_error = std::string(loaded.message());
    changed_.SignalAll();
    return;
  }
  std::error_code error;
  fs::remove(options_.path + "/" + kRebuildMark, error);
  fs::remove_all(options_.path + "/" + kBrokenCatalogue, error);
  uint64_t extra = max_extents_;
  while (options_.io->Remove(ExtentPath(extra)).ok()) ++extra;
  TellLoaded(options_.clock->Now() - begin);
  MutexLock lock(&mutex_);
  loaded_ = true;
  stats_.rebuilding = false;
  stats_.load_progress = 1;
  deleted_while_loading_.clear();
  changed_.SignalAll();
}

void ColdFolder::TellLoaded(absl::Duration took) const {
  MutexLock lock(&mutex_);
  if (table_.here() == 0 && !rebuild_ && stats_.lost_at_load == 0) return;  // a new folder
  Log(LogLevel::kInfo, "ssd", "{}: {} blocks {}, {}, in {}", options_.path,
      FormatCount(table_.here()), rebuild_ ? "found in the extents" : "loaded",
      FormatBytes(stats_.value_bytes),
      absl::FormatDuration(absl::Trunc(took, absl::Milliseconds(1))));
  if (stats_.lost_at_load > 0) {
    Log(LogLevel::kWarning, "ssd",
        "{}: {} blocks of the catalogue lay in no extent and are gone (a budget that shrank?)",
        options_.path, FormatCount(stats_.lost_at_load));
  }
}

// Slots of blocks deleted while loading are free once it has ended, so by then their deletion is
// on disk, and none comes later. Those that failed are tried once more.
absl::Status ColdFolder::EndDeletions() {
  std::vector<BlockKey> undeleted;
  {
    MutexLock lock(&mutex_);
    load_ends_ = true;
    while (unloaded_deletions_ > 0) changed_.WaitWithTimeout(&mutex_, kPatience);
    undeleted = std::exchange(undeleted_, {});
  }
  TERRACE_RETURN_IF_ERROR(DeleteUnloaded(undeleted));
  return catalogue_->Sync();
}

// One thread reads records while another enters those before.
absl::Status ColdFolder::LoadTable() {
  const uint64_t estimated = catalogue_->EstimatedBlocks();
  {
    MutexLock lock(&mutex_);
    table_.Reserve(estimated);
  }
  LoadSteps steps;
  absl::Status entered;
  std::thread enters([&] {
    uint64_t seen = 0;
    for (auto records = steps.Next(); records; records = steps.Next()) {
      stock_.Prepare(kReadyChunks);
      entered = LoadRecords(*records);
      seen += records->size();
      MutexLock lock(&mutex_);
      const uint64_t expected = std::max({seen, estimated, uint64_t{1}});
      stats_.load_progress = static_cast<double>(seen) / static_cast<double>(expected);
      if (!entered.ok() || ending_) break;
    }
    steps.Refuse();
    stock_.Prepare(0);
  });
  LoadSteps::Records records;
  const absl::Status scanned = catalogue_->Scan(
      std::nullopt, std::nullopt, [&](const BlockKey& key, const BlockRecord& record) {
        records.emplace_back(key, record);
        return records.size() < kRecordsPerStep || steps.Add(&records);
      });
  if (scanned.ok() && !records.empty()) steps.Add(&records);
  steps.End();
  enters.join();
  return scanned.ok() ? entered : scanned;
}

// Into the table and the arena. A record that names no slot of ours (of an extent beyond a budget
// that has shrunk, say) is removed. Nobody else inserts meanwhile and keys come once, so that none
// is looked for first: that would be half the time of loading.
absl::Status ColdFolder::LoadRecords(std::span<const std::pair<BlockKey, BlockRecord>> records) {
  CatalogueBatch lost;
  {
    std::vector<uint64_t> fingerprints;
    fingerprints.reserve(records.size());
    MutexLock lock(&mutex_);
    for (const auto& [key, record] : records) fingerprints.push_back(table_.Fingerprint(key));
    table_.PrefetchBuckets(fingerprints);
    for (const auto& [key, record] : records) extents_.PrefetchForRestore(record.place.number);
    for (size_t i = 0; i < records.size(); ++i) {
      const auto& [key, record] = records[i];
      const uint64_t fingerprint = fingerprints[i];
      if (deleted_while_loading_.contains(fingerprint)) continue;
      if (!record.place.inlined &&
          !extents_.Restore({record.place.number, SlotPages(record.length)})) {
        lost.DeleteRecord(key);  // its place may be another's
        stats_.lost_at_load += 1;
        continue;
      }
      if (record.place.inlined) {
        stats_.inline_bytes += uint64_t{record.envelope_bytes} + record.length;
        next_inline_ = std::max(next_inline_, record.place.number + 1);
      }
      const Index index = table_.Insert(fingerprint);
      ColdEntry& entry = table_[index];
      entry.inlined = record.place.inlined;
      entry.number = record.place.number;
      entry.length = record.length;
      entry.envelope_bytes = record.envelope_bytes;
      entry.depth = static_cast<uint16_t>(std::min<uint32_t>(record.depth, UINT16_MAX));
      entry.expires_at = record.expires_at;
      entry.score = record.score;
      table_.Publish(index);
      stats_.value_bytes += record.length;
    }
  }
  return lost.empty() ? absl::OkStatus() : catalogue_->Commit(&lost);
}

absl::Status ColdFolder::LoadScores() {
  return catalogue_->ScanMeta(kScoresNotes, [&](std::string_view, std::string_view note) {
    std::vector<uint64_t> fingerprints;
    std::vector<float> scores;
    ByteReader reader(AsBytes(note));
    while (reader.remaining() >= kScoreNoteBytes) {
      fingerprints.push_back(reader.Read<uint64_t>());
      scores.push_back(std::bit_cast<float>(reader.Read<uint32_t>()));
    }
    for (size_t begin = 0; begin < scores.size(); begin += kRecordsPerStep) {
      const size_t end = std::min(begin + kRecordsPerStep, scores.size());
      MutexLock lock(&mutex_);
      table_.Prefetch(std::span(fingerprints).subspan(begin, end - begin));
      for (size_t i = begin; i < end; ++i) {
        const Index index = table_.Find(fingerprints[i]);
        if (index == ColdTable::kNone || table_[index].phase != ColdPhase::kHere) continue;
        if (scores[i] > table_[index].score) table_.SetScore(index, scores[i]);
      }
    }
  });
}

absl::Status ColdFolder::Rebuild() {
  uint32_t extents;
  {
    MutexLock lock(&mutex_);
    extents = extents_.count();
  }
  for (uint32_t extent = 0; extent < extents && !Ending(); ++extent) {
    std::optional<ExtentHeader> header;
    {
      MutexLock lock(&mutex_);
      header = extents_.header(extent);
      stats_.load_progress = static_cast<double>(extent) / extents;
    }
    if (header) TERRACE_RETURN_IF_ERROR(RebuildExtent(extent, *header));
  }
  return absl::OkStatus();
}

// Values are not read: who reads one verifies it.
absl::Status ColdFolder::RebuildExtent(uint32_t extent, const ExtentHeader& header) {
  constexpr uint32_t kPagesPerStep = 64;
  const uint32_t end = static_cast<uint32_t>(identity_.extent_bytes / kPageBytes);
  if (header.slot_pages < 2) return absl::OkStatus();
  for (uint32_t page = 1; page + header.slot_pages <= end && !Ending();) {
    std::vector<PageAddress> addresses;
    uint32_t first;
    {
      MutexLock lock(&mutex_);
      first = extents_.FirstPage(extent) + page;
      for (; page + header.slot_pages <= end && addresses.size() < kPagesPerStep;
           page += header.slot_pages) {
        const uint32_t number = extents_.FirstPage(extent) + page;
        addresses.push_back({extents_.FileOf(number), extents_.OffsetOf(number)});
      }
    }
    TERRACE_ASSIGN_OR_RETURN(const auto pages,
                             ReadPages(options_.io.get(), addresses, options_.start_deadline));
    std::vector<std::pair<BlockKey, BlockRecord>> found;
    for (size_t i = 0; i < pages.size(); ++i) {
      const auto number = static_cast<uint32_t>(first + i * header.slot_pages);
      const auto parsed = ParseHeaderPage(ByteSpan(pages[i].bytes));
      if (!parsed.ok() || parsed->record.folder_id != identity_.folder_id ||
          parsed->record.page != number || parsed->record.cut != header.cut ||
          SlotPages(parsed->envelope.shape().length) != header.slot_pages) {
        continue;
      }
      found.emplace_back(parsed->envelope.key(), RecordOf(*parsed));
    }
    TERRACE_RETURN_IF_ERROR(AddFound(found));
  }
  return absl::OkStatus();
}

// Of several copies of one key, which are the same bytes, the first is kept.
absl::Status ColdFolder::AddFound(std::span<const std::pair<BlockKey, BlockRecord>> found) {
  CatalogueBatch batch;
  std::vector<std::pair<BlockKey, BlockRecord>> kept;
  {
    MutexLock lock(&mutex_);
    absl::flat_hash_set<uint64_t> seen;
    for (const auto& [key, record] : found) {
      const uint64_t fingerprint = table_.Fingerprint(key);
      if (table_.Find(fingerprint) != ColdTable::kNone || !seen.insert(fingerprint).second ||
          deleted_while_loading_.contains(fingerprint)) {
        continue;
      }
      batch.Put(key, record);
      kept.emplace_back(key, record);
    }
  }
  if (!batch.empty()) TERRACE_RETURN_IF_ERROR(catalogue_->Commit(&batch));
  return LoadRecords(kept);
}

absl::Status ColdFolder::WaitUntilLoaded(absl::Duration timeout) {
  const absl::Duration end = options_.clock->Now() + timeout;
  MutexLock lock(&mutex_);
  while (!loaded_) {
    if (load_failed_) return absl::DataLossError("ssd: loading failed; the log says why");
    const absl::Duration left = end - options_.clock->Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("ssd: still loading");
    changed_.WaitWithTimeout(&mutex_, left);
  }
  return absl::OkStatus();
}

}  // namespace terrace
