#include "cache_node/scrubber.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "proto/clock.h"
#include "proto/log.h"

namespace terrace {
namespace {

constexpr size_t kKeysAtATime = 256;
constexpr size_t kReadsAtATime = 2;  // beside the readers, who come first
// Who watches ends the scrub by the answer: for so long nobody waits for that.
constexpr absl::Duration kTellEvery = absl::Milliseconds(100);
constexpr size_t kAlignment = 4096;

struct FreeDeleter {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// A read in progress and the memory for it, which the device may hold longer than the read lasts.
struct Read {
  std::vector<std::byte> envelope;
  std::unique_ptr<std::byte[], FreeDeleter> value;
  size_t size = 0;

  Mutex mutex;
  CondVar changed;
  std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);
};

std::shared_ptr<Read> StartRead(ColdTier* tier, const BlockKey& key, const ColdBlock& block) {
  auto read = std::make_shared<Read>();
  read->envelope.resize(block.envelope_bytes);
  read->size = block.length;
  const size_t room = (block.length + kAlignment - 1) / kAlignment * kAlignment;
  read->value.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, room)));
  ColdGet get;
  get.key = key;
  get.envelope = read->envelope;
  get.value = {read->value.get(), read->size};
  get.done = [read](absl::Status status) {
    MutexLock lock(&read->mutex);
    read->status = std::move(status);
    read->changed.SignalAll();
  };
  get.released = [read] {};  // keeps the memory
  tier->Load(std::move(get));
  return read;
}

absl::Status Await(Read* read) {
  MutexLock lock(&read->mutex);
  while (!read->status) {
    read->changed.WaitWithTimeout(&read->mutex, absl::Seconds(1));  // the tier has a deadline
  }
  return *read->status;
}

void Count(const absl::Status& status, uint64_t bytes, ScrubProgress* progress) {
  progress->blocks += 1;
  if (status.ok()) {
    progress->bytes += bytes;
  } else if (absl::IsDataLoss(status)) {
    progress->corrupt += 1;
  } else if (absl::IsNotFound(status)) {
    progress->left += 1;
  } else {
    progress->unreadable += 1;
  }
}

// Of a block that the catalogue has listed and the tier does not show.
absl::Status WhyNotRead(Presence presence) {
  return presence == Presence::kAskAgain ? absl::AbortedError("the tier is still loading")
                                         : absl::NotFoundError("it left meanwhile");
}

}  // namespace

Scrubber::~Scrubber() {
  std::thread thread;
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.SignalAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

absl::Status Scrubber::Start(uint64_t bytes_per_second, Observer observer) {
  if (tier_ == nullptr) {
    return absl::FailedPreconditionError("the node has no ssd tier (terraced --ssd)");
  }
  MutexLock lock(&mutex_);
  if (running_ || ending_) return absl::ResourceExhaustedError("a scrub is running already");
  if (thread_.joinable()) thread_.join();  // it has ended
  running_ = true;
  thread_ = std::thread([this, bytes_per_second, observer = std::move(observer)] {
    Run(bytes_per_second, observer);
    MutexLock done(&mutex_);
    running_ = false;
  });
  return absl::OkStatus();
}

void Scrubber::Run(uint64_t bytes_per_second, const Observer& observer) {
  ScrubProgress progress;
  for (const ColdFolderStats& folder : tier_->FolderStats()) progress.blocks_total += folder.blocks;
  const absl::Duration begin = Clock::Real()->Now();
  absl::Duration told = begin;
  const auto tell = [&] {
    const absl::Duration now = Clock::Real()->Now();
    if (now - told < kTellEvery) return true;
    told = now;
    return observer(progress);
  };
  bool wanted = true;
  for (size_t i = 0; i < tier_->store().folders() && wanted && progress.status.ok(); ++i) {
    std::optional<BlockKey> after;
    std::vector<BlockKey> keys;
    do {
      keys.clear();
      progress.status = tier_->store().folder(i).Scan(std::nullopt, after,
                                                      [&](const BlockKey& key, const BlockRecord&) {
                                                        keys.push_back(key);
                                                        return keys.size() < kKeysAtATime;
                                                      });
      if (!progress.status.ok() || keys.empty()) break;
      after = keys.back();
      std::vector<ColdBlock> blocks(keys.size());
      tier_->Find(keys, blocks);
      for (size_t k = 0; k < keys.size() && wanted; k += kReadsAtATime) {
        std::vector<std::shared_ptr<Read>> reads;
        for (size_t j = k; j < std::min(keys.size(), k + kReadsAtATime); ++j) {
          if (blocks[j].presence == Presence::kHere) {
            reads.push_back(StartRead(tier_, keys[j], blocks[j]));
          } else {
            Count(WhyNotRead(blocks[j].presence), 0, &progress);
          }
        }
        for (const auto& read : reads) Count(Await(read.get()), read->size, &progress);
        absl::Duration due = begin;
        if (bytes_per_second > 0) {
          due += absl::Seconds(static_cast<double>(progress.bytes) /
                               static_cast<double>(bytes_per_second));
        }
        wanted = WaitUntil(due, tell);
      }
    } while (wanted);
  }
  progress.done = wanted;
  if (!wanted) progress.status.Update(absl::CancelledError("stopped"));
  if (progress.corrupt > 0) {
    Log(LogLevel::kError, "ssd", "scrub: {} of {} blocks failed their checks", progress.corrupt,
        progress.blocks);
  }
  observer(progress);
}

bool Scrubber::WaitUntil(absl::Duration due, absl::FunctionRef<bool()> tell) {
  while (tell()) {
    MutexLock lock(&mutex_);
    if (ending_) return false;
    const absl::Duration left = due - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return true;
    changed_.WaitWithTimeout(&mutex_, std::min(left, kTellEvery));
  }
  return false;
}

}  // namespace terrace
