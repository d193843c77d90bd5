#include "storage/blocking_io.h"

#include <cerrno>
#include <cstring>

#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/mutex.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Requests and their memory together. It lives until the last has completed, whether or not
// anybody waits still.
class Group {
 public:
  class Member : public IoRequest {
   public:
    void Complete(int64_t result) override { group->OnComplete(this, result); }

    Group* group = nullptr;
    int64_t result = 0;
  };

  explicit Group(size_t count) : members(count), remaining_(count) {
    for (Member& member : members) member.group = this;
  }

  static absl::Status Run(const std::shared_ptr<Group>& group, FileIo* io, absl::Duration timeout) {
    std::vector<IoRequest*> requests;
    for (Member& member : group->members) requests.push_back(&member);
    if (requests.empty()) return absl::OkStatus();
    group->self_ = group;
    io->Submit(requests);
    return group->Wait(timeout);
  }

  std::vector<Member> members;
  std::vector<DiskPage> pages;

 private:
  absl::Status Wait(absl::Duration timeout) {
    const absl::Duration end = Clock::Real()->Now() + timeout;
    MutexLock lock(&mutex_);
    while (remaining_ > 0) {
      const absl::Duration left = end - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            fmt::format("ssd: {} requests did not come back", remaining_));
      }
      done_.WaitWithTimeout(&mutex_, left);
    }
    return absl::OkStatus();
  }

  void OnComplete(Member* member, int64_t result) {
    std::shared_ptr<Group> keep;  // let go after the lock
    MutexLock lock(&mutex_);
    member->result = result;
    if (--remaining_ > 0) return;
    keep = std::move(self_);
    done_.SignalAll();
  }

  Mutex mutex_;
  CondVar done_;
  size_t remaining_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Group> self_;
};

}  // namespace

absl::Status IoStatus(int64_t result) {
  if (result >= 0) return absl::OkStatus();
  const std::string message = fmt::format("ssd: {}", std::strerror(static_cast<int>(-result)));
  if (result == -ENOSPC || result == -EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

absl::StatusOr<std::vector<DiskPage>> ReadPages(FileIo* io, std::span<const PageAddress> addresses,
                                                absl::Duration timeout) {
  const auto group = std::make_shared<Group>(addresses.size());
  group->pages.resize(addresses.size());
  for (size_t i = 0; i < addresses.size(); ++i) {
    Group::Member& member = group->members[i];
    member.kind = IoKind::kRead;
    member.file = addresses[i].file;
    member.offset = addresses[i].offset;
    member.AddPiece(MutableByteSpan(group->pages[i].bytes));
  }
  TERRACE_RETURN_IF_ERROR(Group::Run(group, io, timeout));
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (group->members[i].result != kPageBytes) group->pages[i] = {};
  }
  return std::move(group->pages);
}

absl::Status SyncFiles(FileIo* io, std::span<const int> files, absl::Duration timeout) {
  const auto group = std::make_shared<Group>(files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    group->members[i].kind = IoKind::kDataSync;
    group->members[i].file = files[i];
  }
  TERRACE_RETURN_IF_ERROR(Group::Run(group, io, timeout));
  for (const Group::Member& member : group->members) {
    TERRACE_RETURN_IF_ERROR(IoStatus(member.result));
  }
  return absl::OkStatus();
}

}  // namespace terrace
