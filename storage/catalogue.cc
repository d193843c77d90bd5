#include "storage/catalogue.h"

#include <algorithm>
#include <cstdarg>

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

class RocksCatalogue : public Catalogue {
 public:
  ~RocksCatalogue() override;

  absl::Status Start(const std::string& path, uint64_t disk_bytes, rocksdb::Env* env);
  absl::Status Commit(CatalogueBatch* batch) override;
  absl::Status Sync() override { return ToStatus(db_->SyncWAL()); }
  absl::Status Resume() override { return ToStatus(db_->Resume()); }
  absl::StatusOr<std::optional<BlockRecord>> Find(const BlockKey& key) override;
  absl::StatusOr<std::optional<std::string>> FindInline(const BlockKey& key) override;
  absl::StatusOr<std::optional<std::string>> FindMeta(std::string_view name) override;
  absl::StatusOr<std::vector<std::optional<BlockKey>>> KeysAt(
      std::span<const ColdPlace> places) override;
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
  rocksdb::ColumnFamilyHandle* HandleOf(Family family) const {
    return families_[static_cast<size_t>(family)];
  }
  absl::StatusOr<std::optional<std::string>> Get(Family family, const rocksdb::Slice& key);
  std::unique_ptr<rocksdb::Iterator> Iterate(Family family) const;

  // Writers go one at a time. RocksDB would queue them as well, but hands a writer's batch to
  // another thread there, which ThreadSanitizer cannot see through.
  Mutex commit_mutex_;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
  std::shared_ptr<rocksdb::Cache> cache_;
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

absl::Status RocksCatalogue::Start(const std::string& path, uint64_t disk_bytes,
                                   rocksdb::Env* env) {
  const uint64_t memtable_bytes =
      std::clamp(disk_bytes / kMemtableShare, kLeastMemtableBytes, kMostMemtableBytes);
  if (env == nullptr) env = rocksdb::Env::Default();
  cache_ = rocksdb::NewLRUCache(kBlockCacheBytes);
  rocksdb::DBOptions options;
  options.env = env;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.info_log = std::make_shared<InfoLog>();
  options.db_write_buffer_size = 2 * memtable_bytes;
  options.max_total_wal_size = kLogMemtables * memtable_bytes;
  options.max_open_files = 256;
  options.max_background_jobs = 2;
  options.paranoid_checks = true;
  options.avoid_flush_during_shutdown = true;
  // Notices by itself when a full disk has space again.
  options.sst_file_manager.reset(rocksdb::NewSstFileManager(env, options.info_log));
  std::vector<rocksdb::ColumnFamilyDescriptor> wanted;
  for (size_t i = 0; i < std::size(kFamilyNames); ++i) {
    wanted.emplace_back(kFamilyNames[i],
                        FamilyOptions(static_cast<Family>(i), memtable_bytes, cache_));
  }
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened = rocksdb::DB::Open(options, path, wanted, &families_, &db);
  if (!opened.ok()) {
    // Files that are missing or make no sense are reported as all kinds of errors.
    if (opened.IsCorruption() || opened.IsInvalidArgument() || opened.IsNotFound() ||
        opened.IsPathNotFound()) {
      return absl::DataLossError(fmt::format("catalogue: {}", opened.ToString()));
    }
    return ToStatus(opened);
  }
  db_.reset(db);
  return absl::OkStatus();
}

RocksCatalogue::~RocksCatalogue() {
  for (rocksdb::ColumnFamilyHandle* family : families_) db_->DestroyColumnFamilyHandle(family);
}

// Adding to RocksDB's batch fails only beyond 4 GiB, which no caller comes near.
absl::Status RocksCatalogue::Commit(CatalogueBatch* batch) {
  rocksdb::WriteBatch writes;
  for (const CatalogueBatch::Change& change : batch->changes()) {
    if (change.value) {
      writes.Put(HandleOf(change.family), change.key, *change.value).PermitUncheckedError();
    } else {
      writes.Delete(HandleOf(change.family), change.key).PermitUncheckedError();
    }
  }
  batch->Clear();
  MutexLock lock(&commit_mutex_);
  return ToStatus(db_->Write(rocksdb::WriteOptions(), &writes));
}

absl::StatusOr<std::optional<std::string>> RocksCatalogue::Get(Family family,
                                                               const rocksdb::Slice& key) {
  std::string value;
  const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), HandleOf(family), key, &value);
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

absl::StatusOr<std::vector<std::optional<BlockKey>>> RocksCatalogue::KeysAt(
    std::span<const ColdPlace> places) {
  std::vector<std::string> names;
  for (const ColdPlace& place : places) names.push_back(EncodeColdPlace(place));
  const std::vector<rocksdb::Slice> slices(names.begin(), names.end());
  const std::vector<rocksdb::ColumnFamilyHandle*> family(names.size(), HandleOf(Family::kSlots));
  std::vector<std::string> values;
  const auto found = db_->MultiGet(rocksdb::ReadOptions(), family, slices, &values);
  std::vector<std::optional<BlockKey>> keys(places.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].IsNotFound()) continue;
    TERRACE_RETURN_IF_ERROR(ToStatus(found[i]));
    TERRACE_ASSIGN_OR_RETURN(keys[i], DecodeCatalogueKey(values[i]));
  }
  return keys;
}

std::unique_ptr<rocksdb::Iterator> RocksCatalogue::Iterate(Family family) const {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.readahead_size = 1 << 20;
  return std::unique_ptr<rocksdb::Iterator>(db_->NewIterator(options, HandleOf(family)));
}

absl::Status RocksCatalogue::Scan(std::optional<NamespaceId> ns,
                                  const std::optional<BlockKey>& after, Visit visit) {
  const auto records = Iterate(Family::kBlocks);
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
  const auto places = Iterate(Family::kSlots);
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
  const auto entries = Iterate(Family::kMeta);
  for (entries->Seek(ToSlice(prefix)); entries->Valid(); entries->Next()) {
    if (!ToView(entries->key()).starts_with(prefix)) break;
    visit(ToView(entries->key()), ToView(entries->value()));
  }
  return ToStatus(entries->status());
}

uint64_t RocksCatalogue::EstimatedBlocks() const {
  uint64_t keys = 0;
  db_->GetIntProperty(HandleOf(Family::kBlocks), rocksdb::DB::Properties::kEstimateNumKeys, &keys);
  return keys;
}

uint64_t RocksCatalogue::DiskBytes() const {
  uint64_t sum = 0;
  for (rocksdb::ColumnFamilyHandle* family : families_) {
    uint64_t files = 0, memtables = 0;
    db_->GetIntProperty(family, rocksdb::DB::Properties::kTotalSstFilesSize, &files);
    // The log holds about what the memtables hold.
    db_->GetIntProperty(family, rocksdb::DB::Properties::kCurSizeAllMemTables, &memtables);
    sum += files + memtables;
  }
  return sum;
}

uint64_t RocksCatalogue::MemoryBytes() const {
  uint64_t sum = cache_->GetUsage();
  for (rocksdb::ColumnFamilyHandle* family : families_) {
    uint64_t memtables = 0, readers = 0;
    db_->GetIntProperty(family, rocksdb::DB::Properties::kSizeAllMemTables, &memtables);
    db_->GetIntProperty(family, rocksdb::DB::Properties::kEstimateTableReadersMem, &readers);
    sum += memtables + readers;
  }
  return sum;
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
  auto catalogue = std::make_unique<RocksCatalogue>();
  TERRACE_RETURN_IF_ERROR(catalogue->Start(path, disk_bytes, env));
  return catalogue;
}

}  // namespace terrace
