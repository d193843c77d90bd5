// Load on an ssd store of two folders, of which one is made sick: from outside (a full, frozen or
// dead file system) or by the twin of the disk (--twin). Per folder one thread reads, one puts and
// one deletes; every byte is judged, every answer timed.
//
// Takes commands line by line and answers each with one line:
//   measure SECONDS   what happened in that time, as JSON, per folder
//   fault KIND        eio, short, torn, slow, hang, gone (of the twin); heal
//   verify            reads all blocks acknowledged as durable and not deleted since, as JSON
//   end               closes the store
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "proto/flags.h"
#include "storage/cold_store.h"
#include "storage/faulty_file_io.h"
#include "tests/storage/cold_support.h"
#include "tests/storage/failing_env.h"

namespace terrace::testing {
namespace {

constexpr uint64_t kLiveBlocks = 240;
constexpr absl::Duration kDeadline = absl::Seconds(1);
// Between two requests of a thread: a steady load, so that the rates of two times compare.
constexpr absl::Duration kPause = absl::Milliseconds(5);
constexpr absl::Duration kSlow = absl::Milliseconds(50);

uint32_t LengthOf(uint64_t number) {
  if (number % 16 == 0) return 1 << 20;
  return number % 4 == 1 ? 4096 : 65'536;
}

struct Outcomes {
  std::map<std::string, uint64_t> by_code;
  double slowest_ms = 0;

  void Count(const absl::Status& status, absl::Duration took) {
    by_code[absl::StatusCodeToString(status.code())] += 1;
    slowest_ms = std::max(slowest_ms, absl::ToDoubleMilliseconds(took));
  }
  nlohmann::json ToJson() const { return {{"by_code", by_code}, {"slowest_ms", slowest_ms}}; }
};

// The threads of one folder.
class Load {
 public:
  Load(ColdFolder& folder, uint64_t seed, const std::string& ledger)
      : folder_(folder), ledger_path_(ledger), random_(seed) {
    std::ifstream file(ledger);
    for (uint64_t number; file >> number;) {
      blocks_[number] = true;
      next_ = std::max(next_, number + 1);
    }
  }
  void Start() {
    threads_.emplace_back([this] { Repeat([this] { ReadOne(); }); });
    threads_.emplace_back([this] { Repeat([this] { PutOne(); }); });
    threads_.emplace_back([this] { Repeat([this] { DeleteOne(); }); });
  }
  void End() {
    stop_.Now();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    std::ofstream file(ledger_path_, std::ios::trunc);
    MutexLock lock(&mutex_);
    for (const auto& [number, durable] : blocks_) {
      if (durable) file << number << "\n";
    }
  }
  void BeginMeasure() {
    MutexLock lock(&mutex_);
    reads_ = puts_ = deletes_ = {};
  }
  nlohmann::json Measured() {
    const ColdFolderStats stats = folder_.Stats();
    MutexLock lock(&mutex_);
    return {{"reads", reads_.ToJson()},
            {"puts", puts_.ToJson()},
            {"deletes", deletes_.ToJson()},
            {"wrong_bytes", wrong_},
            {"blocks", stats.blocks},
            {"corrupt", stats.corrupt},
            {"health", static_cast<int>(stats.health)},
            {"extents", stats.extents.extents}};
  }
  // A lying device's blocks are not held against the store.
  void SetTrusted(bool trusted) { trusted_ = trusted; }
  nlohmann::json Verify();

 private:
  template <typename Step>
  void Repeat(const Step& step) {
    while (stop_.Wait(kPause)) step();
  }
  void ReadOne();
  void PutOne();
  void DeleteOne();

  ColdFolder& folder_;
  const std::string ledger_path_;
  Stop stop_;
  std::atomic<bool> trusted_ = true;
  std::vector<std::thread> threads_;
  Mutex mutex_;
  std::map<uint64_t, bool> blocks_ ABSL_GUARDED_BY(mutex_);  // acknowledged -> durable
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t wrong_ ABSL_GUARDED_BY(mutex_) = 0;
  Outcomes reads_ ABSL_GUARDED_BY(mutex_), puts_ ABSL_GUARDED_BY(mutex_),
      deletes_ ABSL_GUARDED_BY(mutex_);
};

void Load::ReadOne() {
  uint64_t number;
  {
    MutexLock lock(&mutex_);
    if (blocks_.empty()) return;
    number = std::next(blocks_.begin(), random_() % blocks_.size())->first;
  }
  const absl::Time start = absl::Now();
  const absl::Status got = GetAndCheck(folder_, KeyOf(number));
  MutexLock lock(&mutex_);
  if (absl::IsNotFound(got) && !blocks_.contains(number)) return;  // deleted meanwhile
  reads_.Count(got, absl::Now() - start);
  wrong_ += absl::IsInternal(got) ? 1 : 0;
}

void Load::PutOne() {
  uint64_t number;
  bool durable;
  {
    MutexLock lock(&mutex_);
    if (blocks_.size() >= kLiveBlocks + kLiveBlocks / 4) return;
    number = next_++;
    durable = random_() % 4 == 0;
  }
  TestBlock block(KeyOf(number), LengthOf(number));
  Answer answer;
  ColdPut put = PutOf(block, durable);
  put.done = answer.Done();
  put.released = answer.Released();
  const absl::Time start = absl::Now();
  folder_.Put(std::move(put));
  const absl::Status status = answer.Wait();
  {
    MutexLock lock(&mutex_);
    puts_.Count(status, absl::Now() - start);
    if (status.ok()) blocks_[number] = durable && trusted_;
  }
  answer.WaitReleased();  // long after the answer when the device hangs
}

void Load::DeleteOne() {
  BlockKey key;
  {
    MutexLock lock(&mutex_);
    if (blocks_.size() < kLiveBlocks) return;
    const uint64_t number = blocks_.begin()->first;
    key = KeyOf(number);
    blocks_.erase(number);  // of unknown fate from now on
  }
  const absl::Time start = absl::Now();
  const absl::Status deleted = folder_.Delete({&key, 1}, ColdLeave::kForgotten);
  MutexLock lock(&mutex_);
  deletes_.Count(deleted, absl::Now() - start);
}

nlohmann::json Load::Verify() {
  std::vector<uint64_t> durable;
  {
    MutexLock lock(&mutex_);
    for (const auto& [number, is_durable] : blocks_) {
      if (is_durable) durable.push_back(number);
    }
  }
  uint64_t lost = 0;
  std::string first;
  for (const uint64_t number : durable) {
    absl::Status got;
    Eventually([&] {
      got = GetAndCheck(folder_, KeyOf(number));
      return !absl::IsUnavailable(got);
    });
    MutexLock lock(&mutex_);
    if (got.ok() || !blocks_.contains(number)) continue;
    lost += 1;
    if (first.empty()) first = fmt::format("block {}: {}", number, got.ToString());
  }
  return {{"durable", durable.size()}, {"lost", lost}, {"first_lost", first}};
}

// The device of the twin, and what is done to it.
class SickDevice {
 public:
  SickDevice() : system_(std::make_shared<FailingFileSystem>()) {
    env_ = rocksdb::NewCompositeEnv(system_);
  }
  ~SickDevice() { Heal(); }
  void Attach(ColdFolderOptions* options) {
    auto io = std::make_unique<FaultyFileIo>();
    io_ = io.get();
    options->io = std::move(io);
    options->env = env_.get();
  }
  bool Begin(const std::string& kind);
  void Heal() {
    if (slow_ != nullptr) {
      slow_->Now();
      releaser_.join();
      slow_.reset();
    }
    system_->fails = false;
    if (io_ != nullptr) io_->Release();
    if (io_ != nullptr) io_->SetScript(nullptr);
  }
  void Detach() {  // before the store ends
    Heal();
    io_ = nullptr;
  }

 private:
  std::shared_ptr<FailingFileSystem> system_;
  std::unique_ptr<rocksdb::Env> env_;
  FaultyFileIo* io_ = nullptr;
  std::unique_ptr<Stop> slow_;
  std::thread releaser_;
};

bool SickDevice::Begin(const std::string& kind) {
  const auto hold = [](const IoRequest&) { return IoFault{IoFault::kHold}; };
  auto turn = std::make_shared<uint64_t>(0);
  if (kind == "eio") {
    io_->SetScript([turn](const IoRequest&) {
      return ++*turn % 3 == 0 ? IoFault{IoFault::kError, EIO} : IoFault{};
    });
  } else if (kind == "short") {
    io_->SetScript([turn](const IoRequest& request) {
      const uint64_t part = ++*turn % 4 * kIoAlignment;
      return request.kind == IoKind::kDataSync
                 ? IoFault{}
                 : IoFault{.kind = IoFault::kShort, .bytes = kIoAlignment + part};
    });
  } else if (kind == "torn") {
    io_->SetScript([turn](const IoRequest& request) {
      return request.kind == IoKind::kWrite && ++*turn % 4 == 0
                 ? IoFault{.kind = IoFault::kTorn, .bytes = *turn % 8 * kIoAlignment}
                 : IoFault{};
    });
  } else if (kind == "slow") {
    slow_ = std::make_unique<Stop>();
    io_->SetScript(hold);
    releaser_ = std::thread([this, hold] {
      while (slow_->Wait(kSlow)) {
        io_->Release();  // forgets the script once it has let go of all
        slow_->Wait(absl::Milliseconds(2));
        io_->SetScript(hold);
      }
    });
  } else if (kind == "hang") {
    io_->SetScript(hold);
  } else if (kind == "gone") {
    system_->fails = true;
    io_->SetScript([](const IoRequest&) { return IoFault{IoFault::kError, ENODEV}; });
  } else {
    return false;
  }
  return true;
}

class Session {
 public:
  absl::Status Open(const std::string& sick, const std::string& well, bool twin) {
    std::vector<ColdFolderOptions> folders;
    for (const std::string& path : {sick, well}) {
      ColdFolderOptions options = SmallFolder(path);
      options.deadline = kDeadline;
      if (twin && folders.empty()) device_.Attach(&options);
      folders.push_back(std::move(options));
    }
    auto opened = ColdStore::Open(std::move(folders));
    if (!opened.ok()) return opened.status();
    store_ = *std::move(opened);
    const absl::Status loaded = store_->WaitUntilLoaded(absl::Seconds(30));
    if (!loaded.ok()) return loaded;
    sick_ = std::make_unique<Load>(store_->folder(0), 1, well + ".sick-ledger");
    well_ = std::make_unique<Load>(store_->folder(1), 2, well + ".ledger");
    return absl::OkStatus();
  }
  void Start() {
    sick_->Start();
    well_->Start();
  }
  nlohmann::json Do(const std::string& line);
  void End() {
    sick_->End();
    well_->End();
    device_.Detach();
    store_.reset();
  }

 private:
  SickDevice device_;
  std::unique_ptr<ColdStore> store_;
  std::unique_ptr<Load> sick_, well_;
};

nlohmann::json Session::Do(const std::string& line) {
  std::istringstream words(line);
  std::string what, argument;
  words >> what >> argument;
  if (what == "measure") {
    sick_->BeginMeasure();
    well_->BeginMeasure();
    Stop never;
    never.Wait(absl::Seconds(std::stod(argument)));
    return {{"sick", sick_->Measured()}, {"well", well_->Measured()}};
  }
  if (what == "fault") {
    sick_->SetTrusted(argument != "torn");
    if (!device_.Begin(argument)) return {{"error", "no such fault"}};
    return {{"fault", argument}};
  }
  if (what == "heal") {
    device_.Heal();
    return {{"healed", true}};
  }
  if (what == "verify") return {{"sick", sick_->Verify()}, {"well", well_->Verify()}};
  return {{"error", "no such command"}};
}

int Run(const std::string& sick, const std::string& well, bool twin) {
  Session session;
  if (const absl::Status opened = session.Open(sick, well, twin); !opened.ok()) {
    fmt::print("cannot open: {}\n", opened.ToString());
    return 3;
  }
  fmt::print("opened {}\n", session.Do("verify").dump());
  std::fflush(stdout);
  session.Start();
  for (std::string line; std::getline(std::cin, line) && line != "end";) {
    fmt::print("{}\n", session.Do(line).dump());
    std::fflush(stdout);
  }
  session.End();
  fmt::print("ended\n");
  return 0;
}

int Main(int argc, char** argv) {
  std::string sick, well;
  bool twin = false;
  Flags flags("soak_disk", "Load on two ssd folders, one of which is made sick.");
  flags.AddString("--sick", &sick, "folder of the sick device");
  flags.Required();
  flags.AddString("--well", &well, "folder of the healthy device");
  flags.Required();
  flags.AddBool("--twin", &twin, "the sick device is the twin in memory");
  if (const auto code = flags.Parse(argc, argv)) return *code;
  return Run(sick, well, twin);
}

}  // namespace
}  // namespace terrace::testing

int main(int argc, char** argv) { return terrace::testing::Main(argc, argv); }
