// Blocks whose bytes follow from their key, and calls to the ssd tier that wait for the answer.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "proto/checksum.h"
#include "proto/clock.h"
#include "proto/envelope.h"
#include "proto/mutex.h"
#include "storage/cold_folder.h"
#include "storage/cold_store.h"
#include "tests/support/stop.h"
#include "tests/support/temp_folder.h"

namespace terrace::testing {

class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size)
      : size_(size),
        data_(static_cast<std::byte*>(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096))) {}
  MutableByteSpan span() { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  size_t size_;
  std::unique_ptr<std::byte[], Free> data_;
};

inline BlockKey KeyOf(uint64_t number, uint64_t ns = 7) {
  BlockKey key{NamespaceId{ns}};
  key.digest = Sha256(std::as_bytes(std::span(&number, 1)));
  return key;
}

// The version is the generation in the block's envelope.
inline void FillFor(const BlockKey& key, MutableByteSpan value, uint64_t version = 1) {
  uint64_t state;
  std::memcpy(&state, key.digest.bytes.data(), sizeof(state));
  state ^= version * 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i + sizeof(state) <= value.size(); i += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(value.data() + i, &state, sizeof(state));
  }
}

struct TestBlock {
  TestBlock(const BlockKey& key, uint32_t length, uint32_t segments = 4, uint32_t depth = 0,
            uint64_t version = 1)
      : key(key), value(length) {
    FillFor(key, value.span(), version);
    Envelope content{.key = key, .generation = version, .shape = {length, segments}};
    content.metadata.depth = depth;
    for (uint32_t i = 0; i < segments; ++i) {
      const size_t part = length / segments;
      content.checksums.push_back(Crc32c(value.span().subspan(i * part, part)));
    }
    envelope.resize(EnvelopeBytes(segments, 0));
    content.EncodeTo(envelope);
  }

  BlockKey key;
  AlignedBytes value;
  std::vector<std::byte> envelope;
};

// An answer that somebody waits for.
class Answer {
 public:
  auto Done() {
    return [this](absl::Status status) {
      MutexLock lock(&mutex_);
      status_ = std::move(status);
      done_ = true;
      changed_.SignalAll();
    };
  }
  auto Released() {
    return [this] {
      MutexLock lock(&mutex_);
      released_ = true;
      changed_.SignalAll();
    };
  }
  // Of `done`; DeadlineExceeded with a text of its own when there is none in time.
  absl::Status Wait() {
    MutexLock lock(&mutex_);
    if (!WaitForLocked(done_)) return absl::DeadlineExceededError("no answer");
    return status_;
  }
  bool WaitReleased() {
    MutexLock lock(&mutex_);
    return WaitForLocked(released_);
  }
  bool released() {
    MutexLock lock(&mutex_);
    return released_;
  }

 private:
  bool WaitForLocked(const bool& flag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int i = 0; !flag && i < 3000; ++i) {
      changed_.WaitWithTimeout(&mutex_, absl::Milliseconds(10));
    }
    return flag;
  }

  Mutex mutex_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// A store as one folder is asked: one request at a time.
class OneByOne {
 public:
  explicit OneByOne(ColdStore& store) : store_(store) {}
  void Put(ColdPut put) {
    std::vector<ColdPut> puts;
    puts.push_back(std::move(put));
    store_.Put(std::move(puts));
  }
  void Get(ColdGet get) {
    std::vector<ColdGet> gets;
    gets.push_back(std::move(get));
    store_.Get(std::move(gets));
  }
  void Find(std::span<const BlockKey> keys, std::span<ColdBlock> blocks) {
    store_.Find(keys, blocks);
  }

 private:
  ColdStore& store_;
};

inline ColdPut PutOf(TestBlock& block, bool durable = false, double score = 0,
                     uint32_t expires_at = 0) {
  ColdPut put;
  put.key = block.key;
  put.envelope = block.envelope;
  put.value = block.value.span();
  put.durable = durable;
  put.score = score;
  put.expires_at = expires_at;
  return put;
}

template <typename Store>
absl::Status PutAndWait(Store& store, TestBlock& block, bool durable = false, double score = 0,
                        uint32_t expires_at = 0) {
  Answer answer;
  ColdPut put = PutOf(block, durable, score, expires_at);
  put.done = answer.Done();
  put.released = answer.Released();
  store.Put(std::move(put));
  absl::Status status = answer.Wait();
  if (!answer.WaitReleased()) return absl::InternalError("never released");
  return status;
}

// Reads the block and compares it with what its key and version say: OK means the right bytes,
// NotFound that Find did not see it, Unavailable that it is not known yet.
template <typename Store>
absl::Status GetAndCheck(Store& store, const BlockKey& key, uint64_t* version = nullptr) {
  ColdBlock found;
  store.Find({&key, 1}, {&found, 1});
  if (found.presence == Presence::kAskAgain) return absl::UnavailableError("ask again");
  if (found.presence != Presence::kHere) return absl::NotFoundError("not here");
  AlignedBytes value(found.length), expected(found.length);
  std::vector<std::byte> envelope(found.envelope_bytes);
  Answer answer;
  ColdGet get;
  get.key = key;
  get.envelope = envelope;
  get.value = value.span();
  get.done = answer.Done();
  get.released = answer.Released();
  store.Get(std::move(get));
  absl::Status status = answer.Wait();
  if (!answer.WaitReleased()) return absl::InternalError("never released");
  if (!status.ok()) return status;
  const auto parsed = EnvelopeView::Parse(envelope);
  if (!parsed.ok() || parsed->key() != key) return absl::InternalError("another block");
  FillFor(key, expected.span(), parsed->generation());
  if (std::memcmp(value.span().data(), expected.span().data(), found.length) != 0) {
    return absl::InternalError("wrong bytes");
  }
  if (version != nullptr) *version = parsed->generation();
  return status;
}

inline ColdFolderOptions SmallFolder(const std::string& path) {
  ColdFolderOptions options;
  options.path = path;
  options.budget_bytes = 96 << 20;
  options.extent_bytes = 4 << 20;
  options.cluster = "test";
  options.node = "n1";
  options.commit_interval = absl::Milliseconds(20);
  return options;
}

inline std::unique_ptr<ColdFolder> OpenLoaded(ColdFolderOptions options) {
  auto folder = ColdFolder::Open(std::move(options));
  if (!folder.ok() || !(*folder)->WaitUntilLoaded(absl::Seconds(30)).ok()) return nullptr;
  return *std::move(folder);
}

// Waits until `condition` holds; false after ten seconds without. For what background threads do
// at their own pace.
template <typename Condition>
bool Eventually(const Condition& condition) {
  Mutex mutex;
  CondVar never;
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    MutexLock lock(&mutex);
    never.WaitWithTimeout(&mutex, absl::Milliseconds(10));
  }
  return condition();
}

}  // namespace terrace::testing
