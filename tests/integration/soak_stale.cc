// A reader whose lease is over while his block leaves and another takes its place: a view, in
// memory mapped from a real store as a worker has it, is read while the node evicts the block and
// writes the next one there. Whenever the view says that it is intact, what was read was the block.
// Prints one JSON line; exit 1 when a byte was wrong.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "cache_node/tiered_store.h"
#include "client/chain.h"
#include "client/local_memory.h"
#include "client/view_task.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "proto/flags.h"
#include "tests/cache_node/store_test_util.h"

namespace terrace {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kLayout = 7;
constexpr uint32_t kLongestHeadStart = 20'000;  // turns of an empty loop, some microseconds

struct Options {
  uint64_t races = 1'000'000;
  uint64_t seed = 1;
};

struct Result {
  uint64_t intact = 0, stale = 0;
  uint64_t torn = 0;    // stale, and other bytes were read: what the view's answer is for
  uint64_t wrong = 0;   // intact, and other bytes were read
  uint64_t failed = 0;  // no view
};

// Both start together; the seed chooses how long the reader waits then.
class Starter {
 public:
  void Meet() {
    const uint64_t round = ++arrived_;
    while (arrived_.load() < (round + 1) / 2 * 2) std::this_thread::yield();
  }
  // Gives the other a head start.
  static void Wait(std::minstd_rand* random) {
    for (uint32_t i = (*random)() % kLongestHeadStart; i > 0; --i) asm volatile("");
  }

 private:
  std::atomic<uint64_t> arrived_{0};
};

class Races {
 public:
  explicit Races(const Options& options) : options_(options) {
    TieredStoreOptions store;
    store.host_bytes = 16 * kMiB;
    store.tenant_of = [](NamespaceId) { return 1u; };
    store_ = TieredStore::Create(std::move(store)).value();
    const Descriptor fd = store_->ShareMemory(1).value();
    const size_t size = store_->memory().size();
    void* const at = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    memory_ = std::make_shared<const LocalMemory>(ByteSpan(static_cast<std::byte*>(at), size),
                                                  MutableByteSpan());
    ns_.id.value = 1;
    ns_.layout_id = kLayout;
    ns_.shape = {16 << 10, 4};
  }

  Result Run() {
    std::thread node([this] { Evict(); });
    Read();
    node.join();
    return result_;
  }

 private:
  // The block of each race lies where that of the one before lay.
  void Put(uint64_t number) {
    const BlockKey key = TestKey(number);
    ReserveResult reserved = ReserveBlock(store_.get(), key, ns_.shape);
    FillPayload(key, reserved.reservation.value());
    Envelope envelope = EnvelopeOf(key, ns_.shape, 0, reserved.reservation.value());
    envelope.layout_id = kLayout;
    reserved.reservation.Publish(std::move(envelope));
  }

  // A place without a lease: one that has expired.
  LeasedPlace PlaceOf(uint64_t number) {
    const BlockRef ref = store_->Acquire(TestKey(number));
    LeasedPlace place;
    place.status = WireStatus::kOk;
    place.place.value = static_cast<uint64_t>(ref.value().data() - store_->memory().data());
    place.place.envelope = static_cast<uint64_t>(ref.envelope().data() - store_->memory().data());
    place.place.generation = EnvelopeView::Parse(ref.envelope())->generation();
    place.memory = memory_;
    return place;
  }

  void Evict() {
    for (uint64_t i = 0; !over_; ++i) {
      Put(2 * i);
      starter_.Meet();  // the reader makes his view
      starter_.Meet();
      store_->Evict(TestKey(2 * i));
      Put(2 * i + 1);  // into the same place
      starter_.Meet();
      store_->Evict(TestKey(2 * i + 1));
    }
  }

  void Read() {
    std::minstd_rand random(static_cast<uint32_t>(options_.seed) + 1);
    std::vector<std::byte> copy(ns_.shape.length);
    for (uint64_t i = 0; !over_; ++i) {
      starter_.Meet();
      const BlockKey key = TestKey(2 * i);
      const BlockView view = BlockViewMaker::InPlace(ns_, key, PlaceOf(2 * i));
      starter_.Meet();
      Starter::Wait(&random);
      if (view) std::memcpy(copy.data(), view.bytes().data(), copy.size());
      const bool intact = view.intact();
      const bool right = HasPayload(key, copy);
      result_.failed += !view;
      result_.intact += intact;
      result_.stale += view && !intact;
      result_.torn += view && !intact && !right;
      result_.wrong += intact && !right;
      Tell();
      over_ = result_.stale == options_.races;
      starter_.Meet();
    }
  }

  void Tell() {
    const auto now = std::chrono::steady_clock::now();
    if (now - told_ < std::chrono::seconds(5)) return;
    told_ = now;
    fmt::print(stderr, "soak stale: {} of {} blocks left in time, {} torn, {} wrong\n",
               result_.stale, options_.races, result_.torn, result_.wrong);
  }

  const Options options_;
  std::unique_ptr<TieredStore> store_;
  std::shared_ptr<const LocalMemory> memory_;
  Namespace ns_;
  Starter starter_;
  std::atomic<bool> over_{false};
  Result result_;
  std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
};

int Main(int argc, char** argv) {
  Options options;
  Flags flags("soak_stale", "Views of blocks that leave while they are read.");
  flags.AddUint("--races", &options.races, "until so many blocks left while they were read", 1,
                uint64_t{1} << 32);
  flags.AddUint("--seed", &options.seed, "of the moments at which he reads", 0, uint64_t{1} << 31);
  if (auto code = flags.Parse(argc, argv)) return *code;
  const Result result = Races(options).Run();
  fmt::print("{}\n", nlohmann::json{{"seed", options.seed},
                                    {"races", options.races},
                                    {"intact", result.intact},
                                    {"stale", result.stale},
                                    {"torn", result.torn},
                                    {"failed", result.failed},
                                    {"wrong_bytes", result.wrong}}
                         .dump());
  return result.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
