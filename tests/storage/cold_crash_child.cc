// Works on cold blocks until it is killed, and judges what a kill or a power cut has left.
//
//   cold_crash_child MODE AFTER PATH JOURNAL SEED
//
// MODE: check (judge all blocks and end), work (judge, then work), eager (work at once, while the
// store is loading). AFTER: kill, cut, or damage (check only: a block may be missing, but no byte
// may be wrong). The journal is that of tests/storage/cold_oracle.h; judging all blocks rewrites
// it as what was found. Prints "opened", "checked {json}" and "working"; exit code 2 after a line
// "wrong: ..." for a broken promise, 3 when the store does not open.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <random>
#include <thread>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "fmt/format.h"
#include "storage/cold_store.h"
#include "tests/storage/cold_oracle.h"
#include "tests/storage/cold_support.h"

namespace terrace::testing {
namespace {

constexpr uint64_t kBlocks = 1600;
constexpr int kThreads = 3;
constexpr int kExitWrong = 2, kExitClosed = 3;

// Most are small enough to live in the catalogue.
uint32_t LengthOf(uint64_t number) {
  if (number % 16 == 0) return 1 << 20;
  return number % 4 == 1 ? 65'536 : 4096;
}

[[noreturn]] void Wrong(const std::string& what) {
  std::printf("wrong: %s\n", what.c_str());
  std::fflush(stdout);
  ::_exit(kExitWrong);
}

void Say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

enum class After { kKill, kCut, kDamage };

class Child {
 public:
  Child(After after, std::string journal, uint64_t seed)
      : after_(after), journal_(std::move(journal)), seed_(seed), oracle_(kBlocks) {
    for (uint64_t number = 0; number < kBlocks; ++number) {
      keys_.push_back(KeyOf(number));
      numbers_[DigestStart(keys_.back())] = number;
    }
  }

  bool Open(const std::string& path) {
    if (!OpenStore(path)) return false;
    // A catalogue found broken while it was loaded is rebuilt by the next start.
    if (after_ == After::kDamage && !store_->WaitUntilLoaded(absl::Seconds(2)).ok()) {
      opened_twice_ = true;
      store_.reset();
      if (!OpenStore(path)) return false;
    }
    oracle_.Read(journal_);
    next_version_ = oracle_.latest() + 1;
    Say("opened");
    return true;
  }

  bool Judge();
  [[noreturn]] void Work(bool eager);

 private:
  bool OpenStore(const std::string& path) {
    std::vector<ColdFolderOptions> folders;
    for (const char* name : {"/a", "/b"}) {
      ColdFolderOptions options = SmallFolder(path + name);
      options.budget_bytes = 80 << 20;  // less than all blocks need: some have to go
      folders.push_back(std::move(options));
    }
    auto store = ColdStore::Open(std::move(folders));
    if (!store.ok()) {
      Say(absl::StrCat("cannot open: ", store.status().ToString()));
      return false;
    }
    store_ = *std::move(store);
    for (const ColdFolderStats& stats : store_->Stats()) rebuilt_ += stats.rebuilding ? 1 : 0;
    return true;
  }
  static uint64_t DigestStart(const BlockKey& key) {
    uint64_t start;
    std::memcpy(&start, key.digest.bytes.data(), sizeof(start));
    return start;
  }
  ColdOracle::After oracle_after() const {
    return after_ == After::kCut ? ColdOracle::After::kCut : ColdOracle::After::kKill;
  }

  uint64_t LostAtLoad() const {
    uint64_t sum = 0;
    for (const ColdFolderStats& stats : store_->Stats()) sum += stats.lost_at_load;
    return sum;
  }
  void RewriteJournal(const std::vector<uint64_t>& versions);
  void Note(const char* what, uint64_t number, uint64_t version) {
    oracle_.Apply(what, number, version);
    const std::string line = fmt::format("{} {} {}\n", what, number, version);
    if (::write(fd_, line.data(), line.size()) < 0) std::abort();
  }
  // One thread works on a block at a time.
  bool TryTake(uint64_t number) { return !busy_[number].exchange(true); }
  void GiveBack(uint64_t number) { busy_[number] = false; }

  void WorkOn(std::mt19937_64& random);
  void Put(uint64_t number, bool durable);
  void Delete(std::span<const BlockKey> keys, ColdLeave why);
  void Read(uint64_t number);
  void Evict(const absl::StatusOr<std::vector<ColdVictim>>& victims);

  const After after_;
  const std::string journal_;
  const uint64_t seed_;
  ColdOracle oracle_;
  std::vector<BlockKey> keys_;
  std::unordered_map<uint64_t, uint64_t> numbers_;
  std::array<std::atomic<bool>, kBlocks> busy_{};
  std::atomic<uint64_t> next_version_ = 1;
  int fd_ = -1;
  uint64_t rebuilt_ = 0;  // folders
  bool opened_twice_ = false;
  std::unique_ptr<ColdStore> store_;
};

bool Child::Judge() {
  if (const absl::Status loaded = store_->WaitUntilLoaded(absl::Seconds(60)); !loaded.ok()) {
    Say(absl::StrCat("cannot load: ", loaded.ToString()));
    return false;
  }
  uint64_t here = 0, lost = 0, corrupt = 0;
  OneByOne store(*store_);
  std::vector<uint64_t> versions(kBlocks, ColdOracle::kAbsent);
  for (uint64_t number = 0; number < kBlocks; ++number) {
    const absl::Status got = GetAndCheck(store, keys_[number], &versions[number]);
    const bool spoilt = absl::IsDataLoss(got);
    if (!got.ok() && !absl::IsNotFound(got) && (!spoilt || after_ == After::kKill)) {
      Wrong(fmt::format("block {}: {}", number, got.ToString()));
    }
    here += got.ok() ? 1 : 0;
    corrupt += spoilt ? 1 : 0;
    const bool allowed = oracle_.Allows(number, versions[number], oracle_after());
    lost += allowed ? 0 : 1;
    if (!allowed && after_ != After::kDamage) {
      Wrong(fmt::format("block {} of {} bytes is at version {} ({}), not {}", number,
                        LengthOf(number), versions[number], got.ToString(),
                        oracle_.Expected(number, oracle_after())) +
            fmt::format("; {} records named no slot", LostAtLoad()));
    }
  }
  const auto dropped = [&] {
    uint64_t sum = 0;
    for (const ColdFolderStats& stats : store_->Stats()) sum += stats.corrupt;
    return sum == corrupt;
  };
  if (!Eventually(dropped)) Wrong("a spoilt block is not dropped");
  if (after_ != After::kDamage) RewriteJournal(versions);
  Say(fmt::format(R"(checked {{"here": {}, "lost": {}, "corrupt": {}, "lost_at_load": {}, )"
                  R"("rebuilt": {}, "opened_twice": {}}})",
                  here, lost, corrupt, LostAtLoad(), rebuilt_, opened_twice_));
  return true;
}

void Child::RewriteJournal(const std::vector<uint64_t>& versions) {
  const std::string beside = journal_ + ".new";
  std::ofstream file(beside, std::ios::trunc);
  file << fmt::format("last 0 {}\n", next_version_ - 1);
  for (uint64_t number = 0; number < kBlocks; ++number) {
    file << fmt::format("is {} {}\n", number, versions[number]);
    oracle_.Apply("is", number, versions[number]);
  }
  file.close();
  if (!file.good()) std::abort();
  std::filesystem::rename(beside, journal_);
}

void Child::Work(bool eager) {
  fd_ = ::open(journal_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (eager && after_ == After::kCut) Note("cut", 0, 0);
  Say("working");
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] {
      std::mt19937_64 random(seed_ * kThreads + i);
      while (true) WorkOn(random);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::abort();
}

void Child::WorkOn(std::mt19937_64& random) {
  const uint64_t number = random() % kBlocks, dice = random() % 40;
  if (dice == 0) return Evict(store_->folder(random() % 2).NextVictims(8));
  if (!TryTake(number)) return;
  if (dice < 6) {
    Note("del", number, 0);
    if (store_->Delete({&keys_[number], 1}, ColdLeave::kForgotten).ok()) Note("gone", number, 0);
  } else if (dice < 16) {
    Read(number);
  } else {
    Put(number, /*durable=*/dice < 20);
  }
  GiveBack(number);
}

// A store that does not know yet whether the block is here is not given another version of it.
void Child::Put(uint64_t number, bool durable) {
  ColdBlock found;
  store_->Find({&keys_[number], 1}, {&found, 1});
  if (found.presence == Presence::kAskAgain) return;
  const uint64_t version = next_version_++;
  TestBlock block(keys_[number], LengthOf(number), 4, 0, version);
  Note("put", number, version);
  OneByOne store(*store_);
  const absl::Status put = PutAndWait(store, block, durable);
  if (put.ok()) Note(durable ? "durable" : "ok", number, version);
  if (!absl::IsResourceExhausted(put)) return;
  for (size_t i = 0; i < store_->folders(); ++i) {
    Evict(store_->folder(i).VictimsForLength(block.value.span().size()));
  }
  Evict(store_->folder(0).NextVictims(4));
  Evict(store_->folder(1).NextVictims(4));
}

void Child::Read(uint64_t number) {
  uint64_t version = ColdOracle::kAbsent;
  OneByOne store(*store_);
  const absl::Status got = GetAndCheck(store, keys_[number], &version);
  if (absl::IsInternal(got)) Wrong(fmt::format("block {}: {}", number, got.ToString()));
  if (absl::IsDataLoss(got) && after_ == After::kKill) Wrong(got.ToString());
  if (!got.ok() && !absl::IsNotFound(got) && !absl::IsDataLoss(got)) return;
  if (!oracle_.Allows(number, version, ColdOracle::After::kKill)) {
    Wrong(fmt::format("block {} is at version {} ({}) in the run, not {}", number, version,
                      got.ToString(), oracle_.Expected(number, ColdOracle::After::kKill)));
  }
}

void Child::Evict(const absl::StatusOr<std::vector<ColdVictim>>& victims) {
  if (!victims.ok()) return;
  for (const ColdVictim& victim : *victims) {
    const auto known = numbers_.find(DigestStart(victim.key));
    if (known == numbers_.end()) Wrong("a victim that nobody put");
    const uint64_t number = known->second;
    if (!TryTake(number)) continue;
    Note("del", number, 0);
    if (store_->Delete({&victim.key, 1}, ColdLeave::kEvicted).ok()) Note("gone", number, 0);
    GiveBack(number);
  }
}

int Run(std::string_view mode, std::string_view after, const char* path, const char* journal,
        uint64_t seed) {
  Child child(after == "cut"      ? After::kCut
              : after == "damage" ? After::kDamage
                                  : After::kKill,
              journal, seed);
  if (!child.Open(path)) return kExitClosed;
  if (mode != "eager" && !child.Judge()) return kExitClosed;
  if (mode == "check") return 0;
  child.Work(mode == "eager");
}

}  // namespace
}  // namespace terrace::testing

int main(int argc, char** argv) {
  if (argc != 6) return 64;
  return terrace::testing::Run(argv[1], argv[2], argv[3], argv[4], std::stoull(argv[5]));
}
