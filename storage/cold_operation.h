// Requests of a ColdFolder on their way, and its notes in the catalogue: part of its
// implementation.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "storage/blocking_io.h"
#include "storage/cold_folder.h"

namespace terrace {

// Names and sizes of what a folder notes in the catalogue's meta family: 8 bytes of the clock as a
// double; scores as runs of fingerprint (8) and score (4, IEEE single).
constexpr char kPolicyClockNote[] = "policy_clock";
constexpr char kScoresNotes[] = "scores/";
constexpr size_t kScoreNoteBytes = 12;

// Of a device, the part that extents leave free: the catalogue needs it, and the file system.
uint64_t DeviceReserve(uint64_t device_bytes);

// Lives from BeginLocked to Finish, which deletes it.
class ColdOperation : public IoRequest {
 public:
  ColdOperation(ColdFolder* folder, absl::AnyInvocable<void(absl::Status)> done,
                absl::AnyInvocable<void()> released)
      : done(std::move(done)), released(std::move(released)), folder(folder) {}

  // Goes on after a short read or write; every round moves a page at least.
  void Complete(int64_t result) final;
  void Release() {
    if (auto callback = std::exchange(released, nullptr)) callback();
  }

  absl::AnyInvocable<void(absl::Status)> done;
  absl::AnyInvocable<void()> released;
  ColdFolder* const folder;
  // The rest is guarded by the folder's mutex.
  absl::Duration started;
  std::list<ColdOperation*>::iterator at;
  bool answered = false;
  bool overdue = false;

 protected:
  virtual void Ended(absl::Status status) = 0;
};

// Header page, and the last page of a value that is no whole number of pages.
struct ColdPages {
  DiskPage header, tail;
};

class ColdRead : public ColdOperation {
 public:
  ColdRead(ColdFolder* folder, ColdGet get, ColdPlace place);

  const BlockKey key;
  const ColdPlace place;
  const MutableByteSpan envelope, value;
  bool left = false;  // the block has, since; guarded by the folder's mutex

 private:
  void Ended(absl::Status status) override;

  std::unique_ptr<ColdPages> pages_ = std::make_unique<ColdPages>();
};

class ColdWrite : public ColdOperation {
 public:
  // The block goes to `record.place`.
  ColdWrite(ColdFolder* folder, ColdPut put, const BlockRecord& record, ColdTable::Index index);

  // Copies the block into inline_block.
  void TakeInline();
  // Prepares the request for the block's slot.
  void Aim(int file, uint64_t offset, const SlotRecord& slot);

  const BlockKey key;
  const bool durable;
  const BlockRecord record;
  const ColdTable::Index index;
  std::string inline_block;
  bool catalogued = false;  // guarded by the folder's mutex: the entry may be another's by now

 private:
  void Ended(absl::Status status) override;

  const ByteSpan envelope_, value_;
  std::unique_ptr<ColdPages> pages_;
};

// Page 0 of an extent. Lives until OnHeaderWritten, which deletes it.
class HeaderWrite : public IoRequest {
 public:
  HeaderWrite(ColdFolder* folder, const ExtentHeader& header, int file);
  void Complete(int64_t result) override;

  const uint32_t extent;
  // The rest is guarded by the folder's mutex.
  absl::Duration started;
  std::list<HeaderWrite*>::iterator at;
  bool overdue = false;

 private:
  ColdFolder* const folder_;
  DiskPage page_;
};

}  // namespace terrace
