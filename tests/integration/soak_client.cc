// A worker for soak runs: works on a small set of keys that all such workers share, judges every
// byte, and reports how far past its deadline a call ever ended. Made to be killed and frozen.
//
// Prints "running" once its first transfer has ended, and one JSON line when it ends by itself
// (--seconds) or by SIGTERM.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "client/client.h"
#include "client/load/payload.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "proto/clock.h"
#include "proto/flags.h"
#include "proto/units.h"

namespace terrace {
namespace {

constexpr size_t kBatch = 8;
constexpr uint64_t kKeys = 96;  // a few batches: writers meet on the same keys
constexpr absl::Duration kPause = absl::Seconds(1);

volatile sig_atomic_t stop = 0;

struct Options {
  std::string address;
  uint64_t seed = 1;
  uint64_t block_bytes = 1 << 20;
  uint64_t seconds = 0;
  bool witness = false, remote = false, scribble = false, rdma = false;
};

// A worker gone mad: writes over what its puts have put for the node to take, as fast as it can.
class Scribbler {
 public:
  explicit Scribbler(uint64_t seed) {
    const MutableByteSpan first = LandingMemory();
    found_ = !first.empty();
    if (found_) munmap(first.data(), first.size());
    thread_ = std::thread([this, seed] {
      std::mt19937_64 random(seed);
      while (!done_) {
        // Mapped again each time: a client that connects anew gives up the old.
        const MutableByteSpan memory = LandingMemory();
        for (int i = 0; i < kWrites && !memory.empty(); ++i) {
          volatile std::byte& victim = memory[random() % memory.size()];
          victim = static_cast<std::byte>(random());
        }
        if (!memory.empty()) munmap(memory.data(), memory.size());
      }
    });
  }
  ~Scribbler() {
    done_ = true;
    thread_.join();
  }
  bool at_work() const { return found_; }

 private:
  static constexpr int kWrites = 100'000;

  // A second mapping of it; empty while there is none.
  static MutableByteSpan LandingMemory() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      uint64_t begin = 0, end = 0;
      if (line.find("memfd:terrace-landing") == std::string::npos ||
          std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) != 2) {
        continue;
      }
      // Of old size 0: what is shared is mapped once more.
      void* const again = mremap(reinterpret_cast<void*>(begin), 0, end - begin, MREMAP_MAYMOVE);
      if (again != MAP_FAILED) return {static_cast<std::byte*>(again), end - begin};
    }
    return {};
  }

  bool found_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

class Worker {
 public:
  Worker(const Options& options, Client* client, const Namespace& ns)
      : options_(options), client_(client), ns_(ns), random_(options.seed) {
    // A witness works where nobody is killed, so that every one of its results can be judged.
    first_key_ = options.witness ? kKeys : 0;
    // No deadline that a loaded machine would break, where nothing but a fault should.
    timeout_ = options.witness ? absl::Seconds(10) : absl::Milliseconds(500);
    for (auto& block : blocks_) block.resize(options.block_bytes);
  }

  void Run() {
    const absl::Duration start = Clock::Real()->Now();
    while (!stop && (options_.seconds == 0 ||
                     Clock::Real()->Now() - start < absl::Seconds(options_.seconds))) {
      Choose();
      const uint64_t kind = random_() % 4;
      if (kind == 0) MatchThem();
      if (kind == 1) PutThem();
      if (kind >= 2) GetThem();
    }
  }

  void Print() const {
    const nlohmann::json report = {{"calls", calls_},
                                   {"ok", ok_},
                                   {"misses", misses_},
                                   {"timeouts", timeouts_},
                                   {"other", other_},
                                   {"wrong_bytes", wrong_bytes_},
                                   {"worst_overrun_ms", worst_overrun_ms_},
                                   {"ok_after_pause", ok_after_pause_}};
    fmt::print("{}\n", report.dump());
    std::fflush(stdout);
  }

 private:
  void Choose() {
    const uint64_t first = first_key_ + random_() % (kKeys - kBatch);
    for (size_t i = 0; i < kBatch; ++i) {
      const std::string name = fmt::format("soak {} {}", options_.block_bytes, first + i);
      engine_digests_[i] = Sha256(AsBytes(name));
    }
    std::vector<ByteSpan> digests;
    for (const Digest& d : engine_digests_) digests.push_back(std::as_bytes(std::span(d.bytes)));
    chain_ = *Chain::FromDigests(ns_, digests);
  }

  void MatchThem() {
    const absl::Duration start = Clock::Real()->Now();
    auto match = client_->Match(*chain_, {.timeout = timeout_, .lease = absl::Seconds(30)});
    Ended(start);
    if (!match.ok()) ++other_;
    // Held until the next match, and by the dead for as long as the node lets them.
    if (match.ok()) lease_ = std::move(match->lease);
  }

  // Together, which asks the node first, or each on its own, which does not.
  void PutThem() {
    if (random_() % 2 == 0) {
      std::vector<Operation> operations;
      for (size_t i = 0; i < kBatch; ++i) {
        Payload(chain_->key(i)).Fill(blocks_[i]);
        operations.push_back(
            client_->Put(ns_, {{.key = chain_->key(i), .source = {blocks_[i]}, .metadata = {}}},
                         {.timeout = timeout_}));
      }
      for (const Operation& operation : operations) Finish(operation, false);
      return;
    }
    std::vector<PutRequest> puts;
    for (size_t i = 0; i < kBatch; ++i) {
      Payload(chain_->key(i)).Fill(blocks_[i]);
      puts.push_back({.key = chain_->key(i), .source = {blocks_[i]}, .metadata = {}});
    }
    Finish(client_->Put(ns_, std::move(puts), {.timeout = timeout_}), false);
  }

  void GetThem() {
    std::vector<GetRequest> gets;
    for (size_t i = 0; i < kBatch; ++i) {
      gets.push_back({.key = chain_->key(i), .destination = {blocks_[i]}});
    }
    Finish(client_->Get(ns_, std::move(gets), {.timeout = timeout_}), true);
  }

  void Finish(const Operation& operation, bool judge) {
    const absl::Duration start = Clock::Real()->Now();
    operation.Wait();
    Ended(start);
    for (size_t i = 0; i < operation.results().size(); ++i) {
      switch (operation.results()[i].outcome) {
        case Outcome::kOk:
          ++ok_;
          if (paused_) ++ok_after_pause_;
          if (judge) wrong_bytes_ += Payload(chain_->key(i)).CountWrong(blocks_[i]);
          break;
        case Outcome::kMiss:
        case Outcome::kAskAgain:
        case Outcome::kNoSpace:
          ++misses_;
          break;
        case Outcome::kTimeout:
          ++timeouts_;
          break;
        default:
          ++other_;
      }
    }
    if (ok_ > 0 && !announced_) {
      announced_ = true;
      fmt::print("running\n");
      std::fflush(stdout);
    }
  }

  void Ended(absl::Duration start) {
    ++calls_;
    const absl::Duration now = Clock::Real()->Now();
    const int64_t overrun = absl::ToInt64Milliseconds(now - start - timeout_);
    worst_overrun_ms_ = std::max(worst_overrun_ms_, overrun);
    // A peer that was frozen shows as a call or a gap that took this long.
    if (now - last_ok_time_ > kPause && ok_ > 0 && misses_ + timeouts_ > 0) paused_ = true;
    if (ok_ != last_ok_) {
      last_ok_ = ok_;
      last_ok_time_ = now;
    }
  }

  const Options options_;
  Client* const client_;
  const Namespace ns_;
  std::mt19937_64 random_;
  uint64_t first_key_ = 0;
  absl::Duration timeout_;
  std::array<Digest, kBatch> engine_digests_;
  std::optional<Chain> chain_;
  std::array<std::vector<std::byte>, kBatch> blocks_;
  Lease lease_;
  bool announced_ = false, paused_ = false;
  uint64_t calls_ = 0, ok_ = 0, misses_ = 0, timeouts_ = 0, other_ = 0, wrong_bytes_ = 0;
  uint64_t ok_after_pause_ = 0, last_ok_ = 0;
  absl::Duration last_ok_time_ = Clock::Real()->Now();
  int64_t worst_overrun_ms_ = 0;
};

int Main(int argc, char** argv) {
  Options options;
  Flags flags("soak_client", "A worker that is made to be killed.");
  flags.AddString("--address", &options.address, "the node's control address");
  flags.Required();
  flags.AddUint("--seed", &options.seed, "of what it does", 0, UINT64_MAX);
  flags.AddBytes("--block-bytes", &options.block_bytes, "size of its blocks");
  flags.AddUint("--seconds", &options.seconds, "0: until it is told to end", 0, 1 << 30);
  flags.AddBool("--witness", &options.witness, "keys of its own, long deadlines");
  flags.AddBool("--remote", &options.remote, "does not read the node's memory");
  flags.AddBool("--rdma", &options.rdma, "over UCX");
  flags.AddBool("--scribble", &options.scribble, "writes over what it puts, meanwhile");
  if (auto code = flags.Parse(argc, argv)) return *code;
  signal(SIGTERM, [](int) { stop = 1; });

  auto client = Client::Connect({.address = options.address,
                                 .name = "soak",
                                 .transport = options.rdma ? "rdma" : "auto",
                                 .local = !options.remote});
  if (!client.ok()) {
    fmt::print(stderr, "soak_client: {}\n", client.status().ToString());
    return 1;
  }
  NamespaceDefinition definition{.name = fmt::format("soak-{}", options.block_bytes)};
  definition.layout = {.model = "soak",
                       .block_tokens = 16,
                       .layers = 4,
                       .kv_heads = 1,
                       .head_dim = 1,
                       .block_bytes = static_cast<uint32_t>(options.block_bytes),
                       .segments = 4};
  auto ns = (*client)->OpenNamespace(definition);
  if (!ns.ok()) {
    fmt::print(stderr, "soak_client: {}\n", ns.status().ToString());
    return 1;
  }
  std::optional<Scribbler> scribbler;
  if (options.scribble) scribbler.emplace(options.seed);
  if (scribbler && !scribbler->at_work()) {
    fmt::print(stderr, "soak_client: there is no landing memory to write to\n");
    return 1;
  }
  Worker worker(options, client->get(), *ns);
  worker.Run();
  worker.Print();
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
