#include "client/load/replay.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "client/chain.h"
#include "client/load/payload.h"
#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/mutex.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr absl::Duration kMatchTimeout = absl::Seconds(1);
constexpr absl::Duration kAskAgainFor = absl::Seconds(2), kAskAgainPause = absl::Milliseconds(2);
constexpr absl::Duration kTransferTimeout = absl::Seconds(5);
constexpr absl::Duration kLate = absl::Seconds(1);
constexpr absl::Duration kLease = absl::Seconds(10);
// What a request costs that finds no node: otherwise an outage would swallow the whole trace.
constexpr absl::Duration kOutagePause = absl::Milliseconds(20);
constexpr uint64_t kWindowBytes = 16 << 20;  // moved by one operation of one worker

// The time during which at least one worker was at it.
class BusyTime {
 public:
  void Enter() {
    MutexLock lock(&mutex_);
    if (active_++ == 0) since_ = Clock::Real()->Now();
  }
  void Leave() {
    MutexLock lock(&mutex_);
    if (--active_ == 0) total_ += Clock::Real()->Now() - since_;
  }
  absl::Duration total() {
    MutexLock lock(&mutex_);
    return total_;
  }

 private:
  Mutex mutex_;
  int active_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration since_ ABSL_GUARDED_BY(mutex_);
  absl::Duration total_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
};

// A digest as an engine would hand it out: what identifies the prefix, in 16 bytes.
std::array<uint64_t, 2> EngineDigest(uint64_t seed, uint64_t hash_id) { return {hash_id, seed}; }

}  // namespace

uint64_t ReplayReport::hit_blocks() const {
  uint64_t blocks = 0;
  for (const auto& [tier, count] : hits) blocks += count;
  return blocks;
}

void ReplayReport::Merge(const ReplayReport& other) {
  requests += other.requests;
  blocks_requested += other.blocks_requested;
  for (const auto& [tier, blocks] : other.hits) hits[tier] += blocks;
  misses += other.misses;
  wrong_bytes += other.wrong_bytes;
  errors += other.errors;
  timeouts += other.timeouts;
  unreachable += other.unreachable;
  stuck += other.stuck;
  no_space += other.no_space;
  put_bytes += other.put_bytes;
  get_bytes += other.get_bytes;
  match_latency.Merge(other.match_latency);
  get_latency.Merge(other.get_latency);
  if (first_error.empty()) first_error = other.first_error;
}

struct Replay::Shared {
  Shared(Client* its_client, Traffic* its_traffic, ReplayOptions its_options,
         const std::atomic<bool>* its_stop)
      : client(its_client), traffic(its_traffic), options(std::move(its_options)), stop(its_stop) {}

  // The namespace as the node knows it now: one that restarted may have given it a new secret.
  absl::StatusOr<Namespace> CurrentNamespace(uint64_t* epoch);
  // The next request and what of it is there. They are taken and matched in turn: a request must
  // not be matched before those in front of it have been.
  absl::StatusOr<bool> Take(const Namespace& ns, TrafficRequest* request,
                            std::optional<Chain>* chain, MatchResult* match,
                            absl::Duration* latency);

  Client* const client;
  Traffic* const traffic;
  const ReplayOptions options;
  const std::atomic<bool>* const stop;
  absl::Duration end;
  ReplayProgress progress;
  BusyTime putting, getting;

  Mutex take_mutex;  // held while a request is taken and matched
  Mutex mutex;
  std::optional<Namespace> ns ABSL_GUARDED_BY(mutex);
  uint64_t ns_epoch ABSL_GUARDED_BY(mutex) = 0;
  absl::Status failed ABSL_GUARDED_BY(mutex);
  ReplayReport report ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<Namespace> Replay::Shared::CurrentNamespace(uint64_t* epoch) {
  *epoch = client->Stats().namespace_epoch;
  MutexLock lock(&mutex);
  if (!ns || ns_epoch != *epoch) {
    absl::StatusOr<Namespace> opened = client->OpenNamespace(options.ns);
    // An unreachable node is an outage, not an end; what it knew before stands.
    if (!opened.ok() && (!ns || !absl::IsUnavailable(opened.status()))) return opened.status();
    if (opened.ok()) {
      ns = *opened;
      ns_epoch = *epoch;
    }
  }
  return *ns;
}

absl::StatusOr<bool> Replay::Shared::Take(const Namespace& current, TrafficRequest* request,
                                          std::optional<Chain>* chain, MatchResult* match,
                                          absl::Duration* latency) {
  MutexLock lock(&take_mutex);
  if (stop->load(std::memory_order_relaxed) || Clock::Real()->Now() >= end) return false;
  TERRACE_ASSIGN_OR_RETURN(const bool more, traffic->Next(request));
  if (!more) return false;
  std::vector<std::array<uint64_t, 2>> engine;
  std::vector<ByteSpan> digests;
  engine.reserve(request->hash_ids.size());
  for (uint64_t id : request->hash_ids) {
    engine.push_back(EngineDigest(options.seed, id));
    digests.push_back(std::as_bytes(std::span(engine.back())));
  }
  TERRACE_ASSIGN_OR_RETURN(*chain, Chain::FromDigests(current, digests));
  const absl::Duration begin = Clock::Real()->Now();
  TERRACE_ASSIGN_OR_RETURN(*match,
                           client->Match(**chain, {.timeout = kMatchTimeout, .lease = kLease}));
  *latency = Clock::Real()->Now() - begin;
  // A node that has just been started still loads what its ssd tier has.
  while (match->ask_again && client->Stats().connected &&
         Clock::Real()->Now() - begin < kAskAgainFor) {
    absl::SleepFor(kAskAgainPause);
    TERRACE_ASSIGN_OR_RETURN(*match,
                             client->Match(**chain, {.timeout = kMatchTimeout, .lease = kLease}));
  }
  return true;
}

namespace {

// One worker of an engine: a thread with a buffer that it uses over and over.
class Worker {
 public:
  Worker(Client* client, uint64_t block_bytes, ReplayProgress* progress, BusyTime* putting,
         BusyTime* getting)
      : client_(client),
        progress_(*progress),
        putting_(*putting),
        getting_(*getting),
        block_bytes_(block_bytes),
        window_(std::max<uint64_t>(1, kWindowBytes / block_bytes)),
        buffer_(window_ * block_bytes) {}

  // Serves one request that has been matched.
  void Serve(const Chain& chain, const MatchResult& match, absl::Duration match_latency,
             uint64_t epoch);
  ReplayReport& report() { return report_; }

 private:
  MutableByteSpan Slot(size_t i) {
    return MutableByteSpan(buffer_).subspan(i * block_bytes_, block_bytes_);
  }
  size_t ReadRun(const Chain& chain, size_t blocks, uint64_t epoch);
  void WriteRest(const Chain& chain, size_t begin, uint64_t epoch);
  // Waits, and counts an operation that ended late.
  void Await(const Operation& operation, absl::Duration begin);
  void Judge(const BlockResult& result, uint64_t epoch, const char* what);

  Client* const client_;
  ReplayProgress& progress_;
  BusyTime& putting_;
  BusyTime& getting_;
  const uint64_t block_bytes_;
  const size_t window_;  // blocks
  std::vector<std::byte> buffer_;
  ReplayReport report_;
};

void Worker::Serve(const Chain& chain, const MatchResult& match, absl::Duration match_latency,
                   uint64_t epoch) {
  const size_t found = ReadRun(chain, match.blocks, epoch);
  for (size_t i = 0; i < found; ++i) ++report_.hits[ToString(match.tiers[i])];
  WriteRest(chain, found, epoch);
  ++report_.requests;
  report_.blocks_requested += chain.blocks();
  report_.misses += chain.blocks() - found;
  report_.match_latency.Add(match_latency);
  progress_.requests.fetch_add(1, std::memory_order_relaxed);
  progress_.blocks.fetch_add(chain.blocks(), std::memory_order_relaxed);
  progress_.hits.fetch_add(found, std::memory_order_relaxed);
}

// How many leading blocks came, and were right.
size_t Worker::ReadRun(const Chain& chain, size_t blocks, uint64_t epoch) {
  size_t run = 0;
  while (run < blocks) {
    const size_t count = std::min(window_, blocks - run);
    std::vector<GetRequest> gets(count);
    for (size_t i = 0; i < count; ++i) {
      gets[i].key = chain.key(run + i);
      gets[i].destination.push_back(Slot(i));
    }
    const absl::Duration begin = Clock::Real()->Now();
    getting_.Enter();
    Operation get = client_->Get(chain.ns(), std::move(gets), {.timeout = kTransferTimeout});
    Await(get, begin);
    getting_.Leave();
    report_.get_latency.Add(Clock::Real()->Now() - begin);
    size_t good = 0;
    bool gap = false;
    for (size_t i = 0; i < count; ++i) {
      Judge(get.results()[i], epoch, "get");
      if (get.results()[i].outcome != Outcome::kOk) {
        gap = true;
        continue;
      }
      report_.get_bytes += block_bytes_;
      report_.wrong_bytes += Payload(chain.key(run + i)).CountWrong(Slot(i));
      if (!gap) ++good;
    }
    progress_.bytes.fetch_add(get.succeeded() * block_bytes_, std::memory_order_relaxed);
    run += good;
    if (gap) break;
  }
  return run;
}

// What an engine does after it has computed the blocks that were missing.
void Worker::WriteRest(const Chain& chain, size_t begin, uint64_t epoch) {
  for (size_t first = begin; first < chain.blocks(); first += window_) {
    const size_t count = std::min(window_, chain.blocks() - first);
    std::vector<PutRequest> puts(count);
    for (size_t i = 0; i < count; ++i) {
      puts[i].key = chain.key(first + i);
      Payload(puts[i].key).Fill(Slot(i));
      puts[i].source.push_back(Slot(i));
      puts[i].metadata.depth = static_cast<uint32_t>(first + i);
      puts[i].metadata.traffic_class = TrafficClass::kChat;
      if (first + i > 0) puts[i].metadata.parent = chain.key(first + i - 1).digest;
    }
    const absl::Duration start = Clock::Real()->Now();
    putting_.Enter();
    Operation put = client_->Put(chain.ns(), std::move(puts), {.timeout = kTransferTimeout});
    Await(put, start);
    putting_.Leave();
    for (const BlockResult& result : put.results()) {
      Judge(result, epoch, "put");
      if (result.outcome == Outcome::kOk && !result.existed) {
        report_.put_bytes += block_bytes_;
        progress_.bytes.fetch_add(block_bytes_, std::memory_order_relaxed);
      }
    }
  }
}

void Worker::Await(const Operation& operation, absl::Duration begin) {
  operation.Wait();
  if (Clock::Real()->Now() - begin > kTransferTimeout + kLate) ++report_.stuck;
}

void Worker::Judge(const BlockResult& result, uint64_t epoch, const char* what) {
  switch (result.outcome) {
    case Outcome::kOk:
    case Outcome::kMiss:
    case Outcome::kAskAgain:
      return;
    case Outcome::kNoSpace:
      ++report_.no_space;
      return;
    case Outcome::kTimeout:
      ++report_.timeouts;
      return;
    default:
      break;
  }
  // A node that restarted refuses the keys from before.
  if (result.outcome == Outcome::kRefused && client_->Stats().namespace_epoch != epoch) return;
  ++report_.errors;
  if (report_.first_error.empty()) {
    report_.first_error = fmt::format("{}: {}: {}", what, ToString(result.outcome), result.message);
  }
}

}  // namespace

Replay::Replay(Client* client, Traffic* traffic, ReplayOptions options,
               const std::atomic<bool>* stop)
    : shared_(std::make_unique<Shared>(client, traffic, std::move(options), stop)) {}
Replay::~Replay() = default;

const ReplayProgress& Replay::progress() const { return shared_->progress; }

absl::Status Replay::Run(ReplayReport* report) {
  Shared& shared = *shared_;
  const absl::Duration begin = Clock::Real()->Now();
  shared.end = begin + shared.options.time_limit;
  const auto work = [&shared](Worker* worker) -> absl::Status {
    while (true) {
      TrafficRequest request;
      std::optional<Chain> chain;
      MatchResult match;
      absl::Duration latency;
      uint64_t epoch;
      TERRACE_ASSIGN_OR_RETURN(const Namespace ns, shared.CurrentNamespace(&epoch));
      TERRACE_ASSIGN_OR_RETURN(const bool more,
                               shared.Take(ns, &request, &chain, &match, &latency));
      if (!more) return absl::OkStatus();
      if (match.ask_again && !shared.client->Stats().connected) {
        ++worker->report().unreachable;
        std::this_thread::sleep_for(absl::ToChronoMilliseconds(kOutagePause));
        continue;
      }
      if (latency > kMatchTimeout + kLate) ++worker->report().stuck;
      worker->Serve(*chain, match, latency, epoch);
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < shared.options.workers; ++i) {
    threads.emplace_back([&shared, &work] {
      Worker worker(shared.client, shared.options.ns.layout.block_bytes, &shared.progress,
                    &shared.putting, &shared.getting);
      absl::Status status = work(&worker);
      MutexLock lock(&shared.mutex);
      shared.report.Merge(worker.report());
      if (shared.failed.ok()) shared.failed = std::move(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(&shared.mutex);
  *report = shared.report;
  report->elapsed = Clock::Real()->Now() - begin;
  report->putting = shared.putting.total();
  report->getting = shared.getting.total();
  return shared.failed;
}

}  // namespace terrace
