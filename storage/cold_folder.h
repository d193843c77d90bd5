// One folder (device) of the ssd tier: extents for values, the catalogue that knows them, and the
// table in memory that answers. storage/cold_store.h puts several together.
//
// A block arrives: slot -> value written -> catalogue entry (log not yet synced) -> visible. A
// hundred milliseconds later at most, the group commit: data sync of the extents, sync of the
// log; then `durable` is true of all that arrived before, and slots given up before are free.
// A block leaves: invisible -> catalogue entry deleted -> slot quarantined until that commit.
//
// Threads: `writer` adds what was written to the catalogue, many at a time; `reader` reads the
// blocks that the catalogue itself holds; `keeper` runs the group commit, expiry and repairs;
// `loader` fills the table after a start and ends. Other reads end on the thread of the FileIo,
// which verifies them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/clock.h"
#include "proto/mutex.h"
#include "storage/catalogue.h"
#include "storage/cold_request.h"
#include "storage/cold_table.h"
#include "storage/extents.h"
#include "storage/file_io.h"
#include "storage/folder_identity.h"

namespace terrace {

struct ColdFolderOptions {
  std::string path;
  uint64_t budget_bytes = 0;  // of values and catalogue together
  std::string cluster, node;
  uint64_t extent_bytes = 0;  // of a new folder; 0: 512 MiB, less where the budget is small
  absl::Duration commit_interval = absl::Milliseconds(100);
  absl::Duration deadline = absl::Seconds(5);         // of a request to the device
  absl::Duration start_deadline = absl::Seconds(60);  // the same at start and while rebuilding
  Clock* clock = Clock::Real();
  std::function<int64_t()> unix_seconds;  // empty: the system's
  // Told how long each block's read or write took, commit included; on any thread. Or empty.
  std::function<void(IoKind kind, absl::Duration took)> on_request;
  std::unique_ptr<FileIo> io;   // null: the real one
  rocksdb::Env* env = nullptr;  // null: the real one
};

// Page numbers have 32 bits.
constexpr uint64_t kMaxFolderBytes = uint64_t{kPageBytes} << 32;

// Of the budget, the part that the catalogue may take.
uint64_t CatalogueShare(uint64_t budget_bytes);
// 512 MiB, halved while fewer than eight would fit and 128 MiB is not reached.
uint64_t ExtentBytesFor(uint64_t budget_bytes);

class ColdOperation;
class ColdRead;
class ColdWrite;
class HeaderWrite;

// Thread-safe.
class ColdFolder {
 public:
  // Takes the folder into use; it is ready at once and loads in the background. Errors as of
  // FolderLock and ClaimFolder; InvalidArgument names an option that is out of bounds;
  // ResourceExhausted when not even one extent fits the disk.
  static absl::StatusOr<std::unique_ptr<ColdFolder>> Open(ColdFolderOptions options);
  ~ColdFolder();
  // Waits for requests in flight and a last commit; what was acknowledged is durable after it, if
  // the device lets it. New requests are refused from the call on. The second call does nothing.
  void Close();

  // `blocks` has room for each key. Holds a lock, reads no disk.
  void Find(std::span<const BlockKey> keys, std::span<ColdBlock> blocks);
  // After a data sync that failed without direct I/O, blocks that are here already are not called
  // durable any more (Unavailable) until the next start: no later sync speaks of them.
  void Put(ColdPut put);
  void Get(ColdGet get);
  // Blocks of these keys are invisible at once and not in the catalogue at return (those being
  // written then: when their writing ends). Blocks. On an error those of the failed batch may stay.
  absl::Status Delete(std::span<const BlockKey> keys, ColdLeave why);
  // New blocks of a namespace that are being written now, or whose commit failed and which may
  // therefore be in the catalogue; with `doom` the former leave when their writing ends.
  uint64_t CountWrites(NamespaceId ns, bool doom);
  // One more use at `moment` for each block that is here (storage/frequency.h).
  void Touch(std::span<const BlockKey> keys, double moment);

  // The next `count` blocks to give up. Reads the catalogue.
  absl::StatusOr<std::vector<ColdVictim>> NextVictims(size_t count);
  // All blocks of the extent that is worth least and is cut for another size than a value of
  // `length` bytes needs; once they are deleted it serves that size. None when there is none.
  absl::StatusOr<std::vector<ColdVictim>> VictimsForLength(uint32_t length);

  // Blocks of a namespace or of all from the catalogue, in the order of keys, after `after`.
  absl::Status Scan(std::optional<NamespaceId> ns, const std::optional<BlockKey>& after,
                    Catalogue::Visit visit) {
    return catalogue_->Scan(ns, after, visit);
  }
  // OK when all that was acknowledged before the call is durable. DeadlineExceeded.
  absl::Status WaitForCommit(absl::Duration timeout);
  // OK when the table is loaded, DeadlineExceeded while it is not, DataLoss when that failed: then
  // what was loaded is here, the rest is a miss, and nothing is written until the next start.
  absl::Status WaitUntilLoaded(absl::Duration timeout);

  // Kept with the folder: written within ten seconds and at the end.
  void SetPolicyClock(double now);
  double policy_clock() const;

  bool AcceptsWrites() const;
  const std::string& path() const { return options_.path; }
  uint64_t budget_bytes() const { return options_.budget_bytes; }
  ColdFolderStats Stats() const;

  // Answers DeadlineExceeded for requests that have waited too long. Called now and then by the
  // owner, on a thread that nothing here can stop.
  void CheckDeadlines();

 private:
  friend class ColdOperation;
  friend class ColdRead;
  friend class ColdWrite;
  friend class HeaderWrite;
  using Index = ColdTable::Index;
  struct Suspect {  // read and found wrong
    BlockKey key;
    ColdPlace place;
    bool operator==(const Suspect&) const = default;
  };
  struct Departure {
    BlockKey key;
    Index index;
  };
  struct WriteTrouble {
    absl::Duration since;  // by the clock
    uint64_t puts = 0;     // had succeeded by the last error
    std::string why;
  };

  ColdFolder(ColdFolderOptions options, FolderLock lock, const FolderIdentity& identity);

  // cold_folder.cc: requests.
  absl::Status AdmitLocked(IoKind kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes place and entry for the block; null when it is here already. `header` is set when the
  // header of its extent has to be written too.
  absl::StatusOr<std::unique_ptr<ColdWrite>> BeginPutLocked(ColdPut* put,
                                                            const EnvelopeView& envelope,
                                                            std::unique_ptr<HeaderWrite>* header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<ColdPlace> TakePlaceLocked(uint32_t envelope_bytes, uint32_t length)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ProveExisting(ColdWrite* write);
  void AimLocked(ColdWrite* write, std::unique_ptr<HeaderWrite>* header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginLocked(ColdOperation* operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(ColdOperation* operation, const absl::Status& status);
  void OnWritten(ColdWrite* write, const absl::Status& status);
  void OnRead(ColdRead* read, absl::Status status);
  void OnHeaderWritten(HeaderWrite* header, bool ok);
  void ReadInlines();
  void ReadInline(ColdRead* read);
  absl::Status JudgeRead(const BlockKey& key, ColdPlace place, ByteSpan header_page, ByteSpan value,
                         MutableByteSpan envelope) const;
  // The keys of entries copied from the table; nothing for one whose place has changed hands since.
  absl::StatusOr<std::vector<std::optional<BlockKey>>> KeysOf(std::span<const ColdEntry> entries);
  absl::Status DeleteHere(std::span<const Departure> leaving, ColdLeave why);
  absl::Status DeleteUnloaded(std::span<const BlockKey> keys);
  void LeaveLocked(Index index, ColdLeave why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ExpiredLocked(const ColdEntry& entry, int64_t now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entry.expires_at != 0 && entry.expires_at <= now;
  }

  // cold_folder_keeper.cc: background work.
  void Write();
  void CommitWrites(const std::vector<ColdWrite*>& writes);
  void PublishLocked(const ColdWrite& write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropUncertain();
  void Keep();
  bool WaitForWork();
  void Commit();
  void ReleaseQuarantined(std::span<const Slot> slots, bool committed);
  bool AddExtent();
  void ExpireSome();
  void JudgeSuspects();
  void MeasureCatalogue();
  void KeepNotes(bool scores);
  std::string NextScores(uint32_t* at, uint32_t end);
  bool CommitNotes(CatalogueBatch* batch);
  void WakeKeeperLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UncommittedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WritesFailedLocked(const absl::Status& why, absl::Duration pause)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CommittedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // cold_folder_load.cc: start.
  absl::Status OpenCatalogue();
  absl::Status OpenExtents();
  void Load();
  void TellLoaded(absl::Duration took) const;
  absl::Status LoadTable();
  absl::Status LoadRecords(std::span<const std::pair<BlockKey, BlockRecord>> records);
  absl::Status LoadScores();
  absl::Status EndDeletions();
  absl::Status MarkForRebuild();
  std::string ExtentPath(size_t extent) const;
  absl::Status Rebuild();
  absl::Status AddFound(std::span<const std::pair<BlockKey, BlockRecord>> found);
  absl::Status RebuildExtent(uint32_t extent, const ExtentHeader& header);
  bool Ending() const;
  // A key that is not in the table may yet come.
  bool LoadingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !loaded_ && !load_failed_;
  }

  ColdFolderOptions options_;
  const FolderLock lock_;
  const FolderIdentity identity_;
  const uint32_t max_extents_;
  const uint64_t inline_budget_;
  std::unique_ptr<Catalogue> catalogue_;

  mutable Mutex mutex_;
  CondVar reader_wakes_, writer_wakes_, keeper_wakes_, changed_;
  ChunkStock stock_;  // of table_
  ColdTable table_ ABSL_GUARDED_BY(mutex_);
  Extents extents_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_inline_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_inline_ ABSL_GUARDED_BY(mutex_) = 0;
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
  bool load_failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool rebuild_ = false;  // before the threads start, and by the loader
  absl::flat_hash_set<uint64_t> deleted_while_loading_ ABSL_GUARDED_BY(mutex_);
  uint32_t unloaded_deletions_ ABSL_GUARDED_BY(mutex_) = 0;  // on their way to the catalogue
  std::vector<BlockKey> undeleted_ ABSL_GUARDED_BY(mutex_);  // the catalogue refused; tried again
  bool load_ends_ ABSL_GUARDED_BY(mutex_) = false;           // deletions wait until it has
  std::list<ColdOperation*> in_flight_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::list<HeaderWrite*> headers_ ABSL_GUARDED_BY(mutex_);      // in flight, oldest first
  std::deque<ColdRead*> inline_reads_ ABSL_GUARDED_BY(mutex_);   // for the reader
  std::vector<ColdWrite*> written_ ABSL_GUARDED_BY(mutex_);      // for the writer
  std::vector<ColdWrite*> to_commit_ ABSL_GUARDED_BY(mutex_);    // durable, for the keeper
  std::vector<Suspect> suspects_ ABSL_GUARDED_BY(mutex_);        // for the keeper
  std::vector<Departure> uncertain_ ABSL_GUARDED_BY(mutex_);     // their commit failed; the same
  uint64_t commits_wanted_ ABSL_GUARDED_BY(mutex_) = 0;          // WaitForCommit's tickets
  uint64_t commits_done_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t commits_failed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool commit_failed_ ABSL_GUARDED_BY(mutex_) = false;     // the last one
  bool data_sync_failed_ ABSL_GUARDED_BY(mutex_) = false;  // ever
  bool keeper_idle_ ABSL_GUARDED_BY(mutex_) = false;
  bool uncommitted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration writes_resume_ ABSL_GUARDED_BY(mutex_);         // by the clock; before: not tried
  std::optional<WriteTrouble> trouble_ ABSL_GUARDED_BY(mutex_);  // until a write succeeds again
  uint32_t write_errors_ ABSL_GUARDED_BY(mutex_) = 0;            // in a row
  bool catalogue_full_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration extents_resume_ ABSL_GUARDED_BY(mutex_);
  double policy_clock_ ABSL_GUARDED_BY(mutex_) = 0;
  double kept_clock_ ABSL_GUARDED_BY(mutex_) = 0;
  Index expire_cursor_ ABSL_GUARDED_BY(mutex_) = 0;
  ColdFolderStats stats_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool threads_end_ ABSL_GUARDED_BY(mutex_) = false;    // reader and writer
  uint64_t overdue_reads_ ABSL_GUARDED_BY(mutex_) = 0;  // of stats_.overdue

  bool reserve_told_ = false;  // of the keeper: that the device has no room for more extents
  std::thread loader_, reader_, writer_, keeper_;
};

}  // namespace terrace
