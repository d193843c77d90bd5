// Millions of catalogued blocks without their bytes: the extents are a twin that stores nothing, so
// what is exercised is catalogue, table, loading and deletion. Prints one JSON line.
//
//   fill   puts the blocks through ColdFolder::Put
//   scan   times a bare scan of the catalogue's metadata
//   load   opens and loads; then a namespace of an eighth of the blocks is deleted under a reader
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <deque>
#include <fstream>
#include <random>
#include <thread>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "proto/flags.h"
#include "storage/catalogue.h"
#include "storage/cold_store.h"
#include "tests/storage/cold_support.h"

namespace terrace::testing {
namespace {

constexpr uint32_t kLength = 36 << 10;  // more than is kept in the catalogue
constexpr uint64_t kExtentBytes = 512 << 20;
// Blocks that have bytes, for the reader.
uint64_t InlineOf(uint64_t blocks) { return blocks / 400; }
constexpr uint64_t kInlineBase = uint64_t{1} << 40;
constexpr uint64_t kMostInFlight = 768;
constexpr uint64_t kKeptNamespace = 1, kForgottenNamespace = 2;
constexpr absl::Duration kLoadLimit = absl::Minutes(10);

// Files that take everything and give nothing back.
class EmptyFileIo : public FileIo {
 public:
  explicit EmptyFileIo(bool exists) : exists_(exists), thread_([this] { Serve(); }) {}
  ~EmptyFileIo() override {
    {
      MutexLock lock(&mutex_);
      ending_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }
  absl::StatusOr<uint64_t> FileBytes(const std::string& path) override {
    if (exists_) return kExtentBytes;
    return absl::NotFoundError(path);
  }
  absl::StatusOr<int> Open(const std::string&, uint64_t) override { return next_file_++; }
  void Close(int) override {}
  absl::Status Remove(const std::string& path) override { return absl::NotFoundError(path); }
  void Submit(std::span<IoRequest* const> requests) override {
    MutexLock lock(&mutex_);
    waiting_.insert(waiting_.end(), requests.begin(), requests.end());
    changed_.SignalAll();
  }
  bool direct() const override { return true; }
  bool WaitIdle(absl::Duration) override { return true; }  // its destructor serves them all

 private:
  void Serve() {
    mutex_.Lock();
    while (!ending_ || !waiting_.empty()) {
      if (waiting_.empty()) changed_.WaitWithTimeout(&mutex_, absl::Seconds(1));
      std::deque<IoRequest*> some = std::exchange(waiting_, {});
      mutex_.Unlock();
      for (IoRequest* request : some) {
        const auto bytes = static_cast<int64_t>(request->bytes());
        request->Complete(request->kind == IoKind::kRead    ? -EIO
                          : request->kind == IoKind::kWrite ? bytes
                                                            : 0);
      }
      mutex_.Lock();
    }
    mutex_.Unlock();
  }

  const bool exists_;
  std::atomic<int> next_file_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::deque<IoRequest*> waiting_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

double Seconds(absl::Time start) { return absl::ToDoubleSeconds(absl::Now() - start); }

// User and system time of this process.
double CpuSeconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

uint64_t BudgetFor(uint64_t blocks) {
  const uint64_t per_extent = (kExtentBytes / kPageBytes - 1) / SlotPages(kLength);
  const uint64_t extents = blocks / per_extent + 2;
  uint64_t budget = extents * kExtentBytes;
  while ((budget - CatalogueShare(budget)) / kExtentBytes < extents) budget += kExtentBytes;
  return budget;
}

ColdFolderOptions OptionsFor(const std::string& path, uint64_t blocks, bool exists) {
  ColdFolderOptions options;
  options.path = path;
  options.budget_bytes = BudgetFor(blocks);
  options.extent_bytes = kExtentBytes;
  options.cluster = "soak";
  options.node = "n1";
  options.io = std::make_unique<EmptyFileIo>(exists);
  return options;
}

BlockKey KeyOfBlock(uint64_t number) {
  return KeyOf(number, number % 8 == 0 ? kForgottenNamespace : kKeptNamespace);
}

// Puts many at a time.
class Filler {
 public:
  explicit Filler(ColdFolder& folder) : folder_(folder), bytes_(kLength) {
    FillFor(KeyOf(0), bytes_.span());
    checksum_ = Crc32c(bytes_.span());
  }
  void Put(uint64_t number) {
    Envelope content{.key = KeyOfBlock(number), .generation = 1, .shape = {kLength, 1}};
    content.checksums.push_back(checksum_);
    std::vector<std::byte> envelope(EnvelopeBytes(1, 0));
    content.EncodeTo(envelope);
    {
      MutexLock lock(&mutex_);
      while (in_flight_ >= kMostInFlight) changed_.WaitWithTimeout(&mutex_, absl::Seconds(1));
      in_flight_ += 1;
    }
    ColdPut put;
    put.key = content.key;
    put.envelope = envelope;
    put.value = bytes_.span();
    put.done = [this](const absl::Status& status) {
      MutexLock lock(&mutex_);
      in_flight_ -= 1;
      if (!status.ok()) failed_ += 1;
      if (!status.ok()) first_error_.Update(status);
      changed_.SignalAll();
    };
    folder_.Put(std::move(put));
  }
  nlohmann::json Wait() {
    MutexLock lock(&mutex_);
    while (in_flight_ > 0) changed_.WaitWithTimeout(&mutex_, absl::Seconds(1));
    return {{"failed", failed_}, {"first_error", first_error_.ToString()}};
  }

 private:
  ColdFolder& folder_;
  AlignedBytes bytes_;
  uint32_t checksum_ = 0;
  Mutex mutex_;
  CondVar changed_;
  uint64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

int Print(const nlohmann::json& result) {
  fmt::print("{}\n", result.dump());
  std::fflush(stdout);
  return 0;
}

int Fail(const absl::Status& status) {
  fmt::print("{{\"error\": \"{}\"}}\n", status.ToString());
  return 1;
}

int Fill(const std::string& path, uint64_t blocks) {
  auto folder = ColdFolder::Open(OptionsFor(path, blocks, /*exists=*/false));
  if (!folder.ok()) return Fail(folder.status());
  if (const auto loaded = (*folder)->WaitUntilLoaded(kLoadLimit); !loaded.ok()) {
    return Fail(loaded);
  }
  const absl::Time start = absl::Now();
  Filler filler(**folder);
  for (uint64_t i = 0; i < InlineOf(blocks); ++i) {
    TestBlock block(KeyOf(kInlineBase + i, kKeptNamespace), 4096);
    if (const absl::Status put = PutAndWait(**folder, block); !put.ok()) return Fail(put);
  }
  for (uint64_t number = 0; number < blocks; ++number) {
    if (number % 1'000'000 == 0) fmt::print(stderr, "{} blocks put\n", number);
    if (number % 10'000 == 0) {  // the keeper adds extents at its own pace
      Eventually([&] {
        const ColdFolderStats stats = (*folder)->Stats();
        return stats.capacity_bytes > stats.occupied_bytes + kExtentBytes;
      });
    }
    filler.Put(number);
  }
  nlohmann::json result = filler.Wait();
  result["fill_s"] = Seconds(start);
  result["memory_bytes"] = (*folder)->Stats().memory_bytes;
  const absl::Time close = absl::Now();
  folder->reset();
  result["close_s"] = Seconds(close);
  return Print(result);
}

int Scan(const std::string& path, uint64_t blocks) {
  auto catalogue = Catalogue::Open(path + "/catalogue", CatalogueShare(BudgetFor(blocks)), nullptr);
  if (!catalogue.ok()) return Fail(catalogue.status());
  const absl::Time start = absl::Now();
  uint64_t seen = 0;
  const absl::Status scanned =
      (*catalogue)->Scan(std::nullopt, std::nullopt, [&](const BlockKey&, const BlockRecord&) {
        return ++seen > 0;
      });
  if (!scanned.ok()) return Fail(scanned);
  return Print({{"scan_s", Seconds(start)}, {"cpu_s", CpuSeconds()}, {"seen", seen}});
}

// Asks without pause for blocks that stay, and keeps how long each answer took.
class Reader {
 public:
  Reader(ColdStore& store, uint64_t blocks, uint64_t seed)
      : store_(store), blocks_(blocks), random_(seed), thread_([this] { Read(); }) {}
  nlohmann::json End() {
    ending_ = true;
    thread_.join();
    std::ranges::sort(took_ms_);
    const auto at = [&](double part) {
      return took_ms_[static_cast<size_t>(part * static_cast<double>(took_ms_.size() - 1))];
    };
    return {{"requests", took_ms_.size()},
            {"p50_ms", at(0.5)},
            {"p99_ms", at(0.99)},
            {"p999_ms", at(0.999)},
            {"longest_ms", at(1)},
            {"longest_find_ms", longest_find_ms_},
            {"failed", failed_}};
  }

 private:
  void Read() {
    OneByOne store(store_);
    while (!ending_) {
      const uint64_t number = random_() % blocks_ / 8 * 8 + 1;  // of the namespace that stays
      const BlockKey inlined = KeyOf(kInlineBase + random_() % InlineOf(blocks_), kKeptNamespace);
      const BlockKey cold = KeyOfBlock(number);
      absl::Time start = absl::Now();
      ColdBlock found;
      store.Find({&cold, 1}, {&found, 1});
      failed_ += found.presence == Presence::kHere ? 0 : 1;
      absl::Time end = absl::Now();
      took_ms_.push_back(absl::ToDoubleMilliseconds(end - start));
      longest_find_ms_ = std::max(longest_find_ms_, took_ms_.back());
      start = end;
      failed_ += GetAndCheck(store, inlined).ok() ? 0 : 1;
      took_ms_.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
    }
  }

  ColdStore& store_;
  const uint64_t blocks_;
  std::mt19937_64 random_;
  std::atomic<bool> ending_ = false;
  std::vector<double> took_ms_;
  double longest_find_ms_ = 0;
  uint64_t failed_ = 0;
  std::thread thread_;
};

int Load(const std::string& path, uint64_t blocks, uint64_t seed) {
  nlohmann::json result;
  std::vector<ColdFolderOptions> options;
  options.push_back(OptionsFor(path, blocks, /*exists=*/true));
  const uint64_t resident = ResidentBytes();
  const absl::Time start = absl::Now();
  auto opened = ColdStore::Open(std::move(options));
  if (!opened.ok()) return Fail(opened.status());
  ColdStore& store = **opened;
  result["open_s"] = Seconds(start);
  if (const absl::Status loaded = store.WaitUntilLoaded(kLoadLimit); !loaded.ok()) {
    return Fail(loaded);
  }
  result["loaded_s"] = Seconds(start);
  result["loaded_cpu_s"] = CpuSeconds();
  result["resident_bytes"] = ResidentBytes() - resident;
  ColdFolderStats stats = store.Stats()[0];
  result["blocks"] = stats.blocks;
  result["lost_at_load"] = stats.lost_at_load;
  result["memory_bytes"] = stats.memory_bytes;
  result["catalogue_bytes"] = stats.catalogue_bytes;
  {
    Reader reader(store, blocks, seed);
    Stop stop;
    stop.Wait(absl::Seconds(2));
    result["reader_alone"] = reader.End();
  }
  Reader reader(store, blocks, seed + 1);
  const absl::Time forget = absl::Now();
  const absl::Status forgotten =
      store.DeleteNamespace(NamespaceId{kForgottenNamespace}, [](uint64_t) { return true; });
  result["forget_s"] = Seconds(forget);
  result["reader"] = reader.End();
  if (!forgotten.ok()) return Fail(forgotten);
  result["blocks_after"] = store.Stats()[0].blocks;
  result["resident_bytes_after"] = ResidentBytes() - resident;
  return Print(result);
}

int Main(int argc, char** argv) {
  std::string mode, path;
  uint64_t blocks = 0, seed = 1;
  Flags flags("soak_scale", "Millions of catalogued blocks without their bytes.");
  flags.AddChoice("MODE", &mode, "what to do", {"fill", "scan", "load"});
  flags.Required();
  flags.AddString("--folder", &path, "the ssd folder");
  flags.Required();
  flags.AddUint("--blocks", &blocks, "how many", 1000, uint64_t{1} << 26);
  flags.Required();
  flags.AddUint("--seed", &seed, "of the reader", 0, UINT64_MAX);
  if (const auto code = flags.Parse(argc, argv)) return *code;
  if (mode == "fill") return Fill(path, blocks);
  if (mode == "scan") return Scan(path, blocks);
  return Load(path, blocks, seed);
}

}  // namespace
}  // namespace terrace::testing

int main(int argc, char** argv) { return terrace::testing::Main(argc, argv); }
