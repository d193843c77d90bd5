// The database that knows every cold block of one folder. RocksDB, four column families:
//
//   blocks  key -> BlockRecord        metadata alone, so that a scan reads no values
//   inline  key -> envelope, value    blocks of at most kMaxInlineBytes
//   slots   place -> key              the way back, for eviction by place
//   meta    name -> bytes             marks, policy clock, scores
//
// A key is 42 bytes: namespace id (8, big-endian, so that a namespace is one range), digest (32),
// shard (2, big-endian). A place is 5 bytes: 0 for a slot or 1 for an inline block, then its
// number (4, big-endian).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "proto/block.h"
#include "proto/block_key.h"
#include "proto/bytes.h"
#include "proto/envelope.h"

namespace rocksdb {
class Env;
}

namespace terrace {

constexpr uint32_t kMaxInlineBytes = 32 << 10;

// Where a block lies: the first page of its slot, or the number of an inline block.
struct ColdPlace {
  bool inlined = false;
  uint32_t number = 0;
  auto operator<=>(const ColdPlace&) const = default;
};

// Format 1, 36 bytes, little-endian: version (1), place kind (1), traffic class (1), zero (1),
// place number (4), length (4), envelope bytes (2), zero (2), depth (4), expiry (4), score (4, IEEE
// single), generation (8). Codec and layout are known to the envelope alone.
struct BlockRecord {
  ColdPlace place;
  uint32_t length = 0;
  uint16_t envelope_bytes = 0;
  TrafficClass traffic_class = TrafficClass::kUnspecified;
  uint32_t depth = 0;
  uint32_t expires_at = 0;  // Unix seconds, 0: never
  float score = 0;          // when it was written
  uint64_t generation = 0;
  auto operator<=>(const BlockRecord&) const = default;
};

std::string EncodeBlockRecord(const BlockRecord& record);
// DataLoss when it is not one, a later version included.
absl::StatusOr<BlockRecord> DecodeBlockRecord(std::string_view bytes);

std::string EncodeCatalogueKey(const BlockKey& key);
absl::StatusOr<BlockKey> DecodeCatalogueKey(std::string_view bytes);

std::string EncodeColdPlace(const ColdPlace& place);
absl::StatusOr<ColdPlace> DecodeColdPlace(std::string_view bytes);

// Changes that take effect together. Reusable after Commit.
class CatalogueBatch {
 public:
  // `inline_block`: envelope and value of an inline block, else empty.
  void Put(const BlockKey& key, const BlockRecord& record, std::string inline_block = {});
  void Delete(const BlockKey& key, const ColdPlace& place);
  void DeleteRecord(const BlockKey& key);  // without its place
  void PutMeta(std::string_view name, std::string value);
  void DeleteMeta(std::string_view name);

  size_t size() const { return changes_.size(); }
  bool empty() const { return changes_.empty(); }

  enum class Family : uint8_t { kBlocks = 1, kInline, kSlots, kMeta };
  struct Change {
    Family family;
    std::string key;
    std::optional<std::string> value;  // nothing: a deletion
  };
  const std::vector<Change>& changes() const { return changes_; }
  void Clear() { changes_.clear(); }

 private:
  std::vector<Change> changes_;
};

// Thread-safe. All calls may read or write the disk and block.
class Catalogue {
 public:
  // Creates what is absent. DataLoss when the database is broken, ResourceExhausted when the disk
  // is full, Unavailable for other errors. Buffers are sized for a database of up to `disk_bytes`.
  // `env` is null but for tests and outlives the object.
  static absl::StatusOr<std::unique_ptr<Catalogue>> Open(const std::string& path,
                                                         uint64_t disk_bytes, rocksdb::Env* env);
  virtual ~Catalogue() = default;  // writes nothing: what is in the log is recovered

  // In the log of this process's files afterwards: survives a kill, not a power cut. Errors as of
  // Open; the batch is emptied.
  virtual absl::Status Commit(CatalogueBatch* batch) = 0;
  // What was committed before the call survives a power cut.
  virtual absl::Status Sync() = 0;
  // After an error that stopped writes, tries whether they go again.
  virtual absl::Status Resume() = 0;

  virtual absl::StatusOr<std::optional<BlockRecord>> Find(const BlockKey& key) = 0;
  // Envelope and value.
  virtual absl::StatusOr<std::optional<std::string>> FindInline(const BlockKey& key) = 0;
  virtual absl::StatusOr<std::optional<std::string>> FindMeta(std::string_view name) = 0;
  // The keys at these places, nothing where there is none.
  virtual absl::StatusOr<std::vector<std::optional<BlockKey>>> KeysAt(
      std::span<const ColdPlace> places) = 0;

  using Visit = absl::FunctionRef<bool(const BlockKey&, const BlockRecord&)>;
  // Calls `visit` in the order of keys, beginning after `after`, for one namespace or for all,
  // until it returns false. Sees a state of one moment. DataLoss when a record is broken.
  virtual absl::Status Scan(std::optional<NamespaceId> ns, const std::optional<BlockKey>& after,
                            Visit visit) = 0;
  // Places and keys of the slots in [begin, end) of page numbers.
  virtual absl::Status ScanSlots(uint32_t begin, uint32_t end,
                                 absl::FunctionRef<void(uint32_t, const BlockKey&)> visit) = 0;
  virtual absl::Status ScanMeta(
      std::string_view prefix,
      absl::FunctionRef<void(std::string_view name, std::string_view value)> visit) = 0;

  virtual uint64_t EstimatedBlocks() const = 0;
  // Bytes on disk, log included, about.
  virtual uint64_t DiskBytes() const = 0;
  virtual uint64_t MemoryBytes() const = 0;
};

}  // namespace terrace
