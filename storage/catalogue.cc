#include "storage/catalogue.h"

#include <algorithm>
#include <cstdarg>
#include <initializer_list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "fmt/format.h"
#include "proto/log.h"
#include "proto/mutex.h"
#include "proto/status.h"
#include "rocksdb/cache.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/sst_file_manager.h"
#include "rocksdb/table.h"
#include "rocksdb/write_batch.h"

namespace terrace {
namespace {

// Small memtables: recovery after a kill reads at most the log of these.
constexpr uint64_t kMostMemtableBytes = 16 << 20;
constexpr uint64_t kLeastMemtableBytes = 1 << 20;
// Of the disk space that the catalogue may take, one memtable and the log at most.
constexpr uint64_t kMemtableShare = 32;
constexpr uint64_t kLogMemtables = 4;
constexpr size_t kBlockCacheBytes = 16 << 20;
// How long a reopening waits for those who read.
constexpr int kReopenTries = 100;
constexpr absl::Duration kReopenPause = absl::Milliseconds(10);

using Family = CatalogueBatch::Family;
// In the order of the enumeration; RocksDB wants its own first.
constexpr const char* kFamilyNames[] = {"default", "blocks", "inline", "slots", "meta"};

// RocksDB's own log would take space on the device, and it aborts the process when that is full.
class InfoLog : public rocksdb::Logger {
 public:
  InfoLog() : Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}

  using Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    char line[512];
    vsnprintf(line, sizeof(line), format, arguments);
    Log(LogLevel::kDebug, "rocksdb", "{}", line);
  }
};

absl::Status ToStatus(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = fmt::format("catalogue: {}", status.ToString());
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  return absl::UnavailableError(message);
}

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

constexpr size_t kFamilies = std::size(kFamilyNames);

// One opening of the database.
struct Database {
  ~Database() {
    for (rocksdb::ColumnFamilyHandle* family : families) {
      db->DestroyColumnFamilyHandle(family).PermitUncheckedError();
    }
  }
  rocksdb::ColumnFamilyHandle* Of(Family family) const {
    return families[static_cast<size_t>(family)];
  }

  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
};

class RocksCatalogue : public Catalogue {
 public:
  using Keys = std::vector<std::optional<BlockKey>>;

  RocksCatalogue(std::string path, uint64_t disk_bytes, rocksdb::Env* env);

  absl::Status Start();
  absl::Status Commit(CatalogueBatch* batch) override;
  absl::Status Sync() override;
  absl::Status Resume() override;
  absl::StatusOr<std::optional<BlockRecord>> Find(const BlockKey& key) override;
  absl::StatusOr<std::optional<std::string>> FindInline(const BlockKey& key) override;
  absl::StatusOr<std::optional<std::string>> FindMeta(std::string_view name) override;
  absl::StatusOr<Keys> KeysAt(std::span<const ColdPlace> places) override;
  absl::Status Scan(std::optional<NamespaceId> ns, const std::optional<BlockKey>& after,
                    Visit visit) override;
  absl::Status ScanSlots(uint32_t begin, uint32_t end,
                         absl::FunctionRef<void(uint32_t, const BlockKey&)> visit) override;
  absl::Status ScanMeta(std::string_view prefix,
                        absl::FunctionRef<void(std::string_view, std::string_view)> visit) override;
  uint64_t EstimatedBlocks() const override;
  uint64_t DiskBytes() const override;
  uint64_t MemoryBytes() const override;

 private:
  using Use = std::shared_ptr<const Database>;

  // What is open now; Unavailable between two openings.
  absl::StatusOr<Use> Current() const;
  absl::Status Reopen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mutex_);
  absl::StatusOr<std::optional<std::string>> Get(Family family, const rocksdb::Slice& key);
  static std::unique_ptr<rocksdb::Iterator> Iterate(const Use& use, Family family);
  uint64_t Sum(std::initializer_list<std::string> properties) const;

  const std::string path_;
  const uint64_t memtable_bytes_;
  rocksdb::Env* const env_;
  const std::shared_ptr<rocksdb::Cache> cache_;

  // Writers go one at a time. RocksDB would queue them as well, but hands a writer's batch to
  // another thread there, which ThreadSanitizer cannot see through. Syncs wait for them, too: with
  // assertions on (as in Debian's build) a sync of a log that could not be written aborts.
  Mutex commit_mutex_;
  absl::Status failed_ ABSL_GUARDED_BY(commit_mutex_);  // of the log, until Resume succeeds
  mutable Mutex open_mutex_;
  CondVar closed_;  // never signalled: polled
  std::shared_ptr<Database> database_ ABSL_GUARDED_BY(open_mutex_);
};

rocksdb::ColumnFamilyOptions FamilyOptions(Family family, uint64_t memtable_bytes,
                                           const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.cache_index_and_filter_blocks = true;
  table.block_size = family == Family::kInline ? 64 << 10 : 16 << 10;
  table.checksum = rocksdb::kXXH3;  // Debian's CRC32C is the slow one
  table.format_version = 5;
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = memtable_bytes;
  options.compression = rocksdb::kNoCompression;
  options.level_compaction_dynamic_level_bytes = true;
  return options;
}

RocksCatalogue::RocksCatalogue(std::string path, uint64_t disk_bytes, rocksdb::Env* env)
    : path_(std::move(path)),
      memtable_bytes_(
          std::clamp(disk_bytes / kMemtableShare, kLeastMemtableBytes, kMostMemtableBytes)),
      env_(env != nullptr ? env : rocksdb::Env::Default()),
      cache_(rocksdb::NewLRUCache(kBlockCacheBytes)) {}

absl::Status RocksCatalogue::Start() {
  rocksdb::DBOptions options;
  options.env = env_;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.info_log = std::make_shared<InfoLog>();
  options.db_write_buffer_size = 2 * memtable_bytes_;
  options.max_total_wal_size = kLogMemtables * memtable_bytes_;
  options.max_open_files = 256;
  options.max_background_jobs = 2;
  options.paranoid_checks = true;
  options.avoid_flush_during_shutdown = true;
  // Notices by itself when a full disk has space again.
  options.sst_file_manager.reset(rocksdb::NewSstFileManager(env_, options.info_log));
  std::vector<rocksdb::ColumnFamilyDescriptor> wanted;
  for (size_t i = 0; i < kFamilies; ++i) {
    wanted.emplace_back(kFamilyNames[i],
                        FamilyOptions(static_cast<Family>(i), memtable_bytes_, cache_));
  }
  auto database = std::make_shared<Database>();
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened =
      rocksdb::DB::Open(options, path_, wanted, &database->families, &db);
  if (!opened.ok()) {
    // Files that are missing or make no sense are reported as all kinds of errors.
    if (opened.IsCorruption() || opened.IsInvalidArgument() || opened.IsNotFound() ||
        opened.IsPathNotFound()) {
      return absl::DataLossError(fmt::format("catalogue: {}", opened.ToString()));
    }
    return ToStatus(opened);
  }
  database->db.reset(db);
  MutexLock lock(&open_mutex_);
  database_ = std::move(database);
  return absl::OkStatus();
}

absl::StatusOr<RocksCatalogue::Use> RocksCatalogue::Current() const {
  MutexLock lock(&open_mutex_);
  if (database_ == nullptr) return absl::UnavailableError("catalogue: is being opened again");
  return database_;
}

absl::Status RocksCatalogue::Sync() {
  MutexLock lock(&commit_mutex_);
  TERRACE_RETURN_IF_ERROR(failed_);
  TERRACE_ASSIGN_OR_RETURN(const Use use, Current());
  return failed_ = ToStatus(use->db->SyncWAL());
}

absl::Status RocksCatalogue::Resume() {
  MutexLock lock(&commit_mutex_);
  auto use = Current();
  if (!use.ok()) return failed_ = Reopen();
  const rocksdb::Status resumed = (*use)->db->Resume();
  use->reset();
  if (resumed.severity() < rocksdb::Status::Severity::kFatalError) {
    if (resumed.ok()) failed_ = absl::OkStatus();
    return ToStatus(resumed);
  }
  // As long as nothing can be written, what is open still serves reads.
  const std::string probe = path_ + ".probe";
  TERRACE_RETURN_IF_ERROR(ToStatus(rocksdb::WriteStringToFile(env_, "probe", probe, true)));
  env_->DeleteFile(probe).PermitUncheckedError();
  return failed_ = Reopen();
}

// RocksDB gives up a log that it could not write to, for good; opened again it reads what is there.
absl::Status RocksCatalogue::Reopen() {
  {
    MutexLock lock(&open_mutex_);
    std::shared_ptr<Database> leaving = std::exchange(database_, nullptr);
    for (int i = 0; leaving.use_count() > 1 && i < kReopenTries; ++i) {
      closed_.WaitWithTimeout(&open_mutex_, kReopenPause);
    }
    if (leaving.use_count() > 1) {
      database_ = std::move(leaving);
      return absl::UnavailableError("catalogue: is in use and cannot be opened again");
    }
  }
  return Start();
}

// Adding to RocksDB's batch fails only beyond 4 GiB, which no caller comes near.
absl::Status RocksCatalogue::Commit(CatalogueBatch* batch) {
  MutexLock lock(&commit_mutex_);
  auto use = failed_.ok() ? Current() : failed_;
  if (!use.ok()) {
    batch->Clear();
    return use.status();
  }
  rocksdb::WriteBatch writes;
  for (const CatalogueBatch::Change& change : batch->changes()) {
    if (change.value) {
      writes.Put((*use)->Of(change.family), change.key, *change.value).PermitUncheckedError();
    } else {
      writes.Delete((*use)->Of(change.family), change.key).PermitUncheckedError();
    }
  }
  batch->Clear();
  return failed_ = ToStatus((*use)->db->Write(rocksdb::WriteOptions(), &writes));
}

absl::StatusOr<std::optional<std::string>> RocksCatalogue::Get(Family family,
                                                               const rocksdb::Slice& key) {
  TERRACE_ASSIGN_OR_RETURN(const Use use, Current());
  std::string value;
  const rocksdb::Status found = use->db->Get(rocksdb::ReadOptions(), use->Of(family), key, &value);
  if (found.IsNotFound()) return std::nullopt;
  if (!found.ok()) return ToStatus(found);
  return value;
}

absl::StatusOr<std::optional<BlockRecord>> RocksCatalogue::Find(const BlockKey& key) {
  TERRACE_ASSIGN_OR_RETURN(const auto value, Get(Family::kBlocks, EncodeCatalogueKey(key)));
  if (!value) return std::nullopt;
  return DecodeBlockRecord(*value);
}

absl::StatusOr<std::optional<std::string>> RocksCatalogue::FindInline(const BlockKey& key) {
  return Get(Family::kInline, EncodeCatalogueKey(key));
}

absl::StatusOr<std::optional<std::string>> RocksCatalogue::FindMeta(std::string_view name) {
  return Get(Family::kMeta, ToSlice(name));
}

absl::StatusOr<RocksCatalogue::Keys> RocksCatalogue::KeysAt(std::span<const ColdPlace> places) {
  TERRACE_ASSIGN_OR_RETURN(const Use use, Current());
  std::vector<std::string> names;
  for (const ColdPlace& place : places) names.push_back(EncodeColdPlace(place));
  const std::vector<rocksdb::Slice> slices(names.begin(), names.end());
  const std::vector<rocksdb::ColumnFamilyHandle*> family(names.size(), use->Of(Family::kSlots));
  std::vector<std::string> values;
  const auto found = use->db->MultiGet(rocksdb::ReadOptions(), family, slices, &values);
  Keys keys(places.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].IsNotFound()) continue;
    TERRACE_RETURN_IF_ERROR(ToStatus(found[i]));
    TERRACE_ASSIGN_OR_RETURN(keys[i], DecodeCatalogueKey(values[i]));
  }
  return keys;
}

std::unique_ptr<rocksdb::Iterator> RocksCatalogue::Iterate(const Use& use, Family family) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.readahead_size = 1 << 20;
  return std::unique_ptr<rocksdb::Iterator>(use->db->NewIterator(options, use->Of(family)));
}

absl::Status RocksCatalogue::Scan(std::optional<NamespaceId> ns,
                                  const std::optional<BlockKey>& after, Visit visit) {
  TERRACE_ASSIGN_OR_RETURN(const Use use, Current());
  const auto records = Iterate(use, Family::kBlocks);
  const BlockKey first{ns.value_or(NamespaceId{})};
  const std::string from = EncodeCatalogueKey(after ? *after : first);
  records->Seek(from);
  if (after && records->Valid() && ToView(records->key()) == from) records->Next();
  for (; records->Valid(); records->Next()) {
    TERRACE_ASSIGN_OR_RETURN(const BlockKey key, DecodeCatalogueKey(ToView(records->key())));
    if (ns && key.ns != *ns) break;
    TERRACE_ASSIGN_OR_RETURN(const BlockRecord record, DecodeBlockRecord(ToView(records->value())));
    if (!visit(key, record)) break;
  }
  return ToStatus(records->status());
}

absl::Status RocksCatalogue::ScanSlots(uint32_t begin, uint32_t end,
                                       absl::FunctionRef<void(uint32_t, const BlockKey&)> visit) {
  TERRACE_ASSIGN_OR_RETURN(const Use use, Current());
  const auto places = Iterate(use, Family::kSlots);
  for (places->Seek(EncodeColdPlace({false, begin})); places->Valid(); places->Next()) {
    TERRACE_ASSIGN_OR_RETURN(const ColdPlace place, DecodeColdPlace(ToView(places->key())));
    if (place.inlined || place.number >= end) break;
    TERRACE_ASSIGN_OR_RETURN(const BlockKey key, DecodeCatalogueKey(ToView(places->value())));
    visit(place.number, key);
  }
  return ToStatus(places->status());
}

absl::Status RocksCatalogue::ScanMeta(
    std::string_view prefix, absl::FunctionRef<void(std::string_view, std::string_view)> visit) {
  TERRACE_ASSIGN_OR_RETURN(const Use use, Current());
  const auto entries = Iterate(use, Family::kMeta);
  for (entries->Seek(ToSlice(prefix)); entries->Valid(); entries->Next()) {
    if (!ToView(entries->key()).starts_with(prefix)) break;
    visit(ToView(entries->key()), ToView(entries->value()));
  }
  return ToStatus(entries->status());
}

uint64_t RocksCatalogue::EstimatedBlocks() const {
  const auto use = Current();
  uint64_t keys = 0;
  if (use.ok()) {
    (*use)->db->GetIntProperty((*use)->Of(Family::kBlocks),
                               rocksdb::DB::Properties::kEstimateNumKeys, &keys);
  }
  return keys;
}

// Over all families.
uint64_t RocksCatalogue::Sum(std::initializer_list<std::string> properties) const {
  const auto use = Current();
  if (!use.ok()) return 0;
  uint64_t sum = 0;
  for (rocksdb::ColumnFamilyHandle* family : (*use)->families) {
    for (const std::string& property : properties) {
      uint64_t value = 0;
      (*use)->db->GetIntProperty(family, property, &value);
      sum += value;
    }
  }
  return sum;
}

uint64_t RocksCatalogue::DiskBytes() const {
  // The log holds about what the memtables hold.
  return Sum(
      {rocksdb::DB::Properties::kTotalSstFilesSize, rocksdb::DB::Properties::kCurSizeAllMemTables});
}

uint64_t RocksCatalogue::MemoryBytes() const {
  return cache_->GetUsage() + Sum({rocksdb::DB::Properties::kSizeAllMemTables,
                                   rocksdb::DB::Properties::kEstimateTableReadersMem});
}

}  // namespace

void CatalogueBatch::Put(const BlockKey& key, const BlockRecord& record, std::string inline_block) {
  std::string name = EncodeCatalogueKey(key);
  changes_.push_back({Family::kBlocks, name, EncodeBlockRecord(record)});
  if (record.place.inlined) changes_.push_back({Family::kInline, name, std::move(inline_block)});
  changes_.push_back({Family::kSlots, EncodeColdPlace(record.place), std::move(name)});
}

void CatalogueBatch::Delete(const BlockKey& key, const ColdPlace& place) {
  std::string name = EncodeCatalogueKey(key);
  changes_.push_back({Family::kSlots, EncodeColdPlace(place), std::nullopt});
  if (place.inlined) changes_.push_back({Family::kInline, name, std::nullopt});
  changes_.push_back({Family::kBlocks, std::move(name), std::nullopt});
}

void CatalogueBatch::DeleteRecord(const BlockKey& key) {
  changes_.push_back({Family::kBlocks, EncodeCatalogueKey(key), std::nullopt});
}

void CatalogueBatch::PutMeta(std::string_view name, std::string value) {
  changes_.push_back({Family::kMeta, std::string(name), std::move(value)});
}

void CatalogueBatch::DeleteMeta(std::string_view name) {
  changes_.push_back({Family::kMeta, std::string(name), std::nullopt});
}

absl::StatusOr<std::unique_ptr<Catalogue>> Catalogue::Open(const std::string& path,
                                                           uint64_t disk_bytes, rocksdb::Env* env) {
  auto catalogue = std::make_unique<RocksCatalogue>(path, disk_bytes, env);
  TERRACE_RETURN_IF_ERROR(catalogue->Start());
  return catalogue;
}

}  // namespace terrace
