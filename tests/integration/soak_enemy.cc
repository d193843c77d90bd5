// A client with a right to be there and no good in mind, for soak runs: opens sessions as any
// client does, and then sends what the client library never would, each frame in order and none in
// reason.
// Some of its lives are spent taking leases until the node refuses, and on not giving them back.
//
// Prints one JSON line when it ends, by SIGTERM.
#include <signal.h>

#include <cstdio>
#include <limits>
#include <random>
#include <string>

#include "client/local_memory.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "proto/flags.h"
#include "tests/cache_node/frame_client.h"
#include "tests/cache_node/node_fixture.h"

namespace terrace {
namespace {

constexpr uint32_t kBlockBytes = 64 << 10;
constexpr uint32_t kSegments = 4;
constexpr uint64_t kKeys = 64;
constexpr int kFramesPerLife = 400;
constexpr int kMostLeases = 20'000;  // more than any session gets

volatile sig_atomic_t stop = 0;

class Enemy {
 public:
  Enemy(std::string address, uint64_t seed) : address_(std::move(address)), random_(seed) {}

  void Run() {
    while (!stop) Live();
  }

  void Print() const {
    const nlohmann::json report = {
        {"lives", lives_}, {"frames", frames_}, {"leases", leases_}, {"refused", refused_}};
    fmt::print("{}\n", report.dump());
    std::fflush(stdout);
  }

 private:
  // A session, one connection, and an end without a word.
  void Live() {
    ControlSession session(PlainChannel(address_));
    if (!session.ok() || !session.OpenNamespace("enemy", kBlockBytes, kSegments, &ns_).ok()) {
      return;  // the node is away
    }
    FrameClient client(wires_.get(), session.opened().data_addresses(0));
    if (!client.Hello(session.token())) return;
    memory_ = nullptr;
    if (auto memory =
            LocalMemory::Open(session.opened().local_address(), session.token(), absl::Seconds(1));
        memory.ok()) {
      memory_ = *std::move(memory);
    }
    ++lives_;
    PutSome(&client);
    if (Chance(4)) {
      TakeLeases(&client);
    } else {
      Babble(&client);
    }
  }

  bool Chance(uint64_t of) { return random_() % of == 0; }
  // Small, at a boundary, or anything.
  uint64_t Number() {
    constexpr uint64_t kEdges[] = {0, 1, UINT32_MAX, uint64_t{1} << 63, UINT64_MAX, 0xffff};
    const uint64_t kind = random_() % 4;
    if (kind == 0) return kEdges[random_() % std::size(kEdges)];
    return kind == 3 ? random_() : random_() % 64;
  }
  WireKey Key() {
    return Chance(8) ? WireKey{Sha256({}), static_cast<uint16_t>(Number())}
                     : TestKey(random_() % kKeys);
  }
  std::vector<WireKey> Keys() {
    std::vector<WireKey> keys(1 + random_() % (Chance(8) ? kMaxKeysPerFrame : 8));
    for (WireKey& key : keys) key = Key();
    return keys;
  }
  NamespaceId Ns() { return {Chance(8) ? Number() : ns_.id()}; }
  BlockShape Shape() {
    if (!Chance(6)) return {kBlockBytes, kSegments};
    return {static_cast<uint32_t>(Number()), static_cast<uint32_t>(Number())};
  }
  ReserveItem Item() {
    return {Key(), Shape(), static_cast<uint32_t>(Number()),
            static_cast<uint16_t>(Chance(4) ? Number() : 0)};
  }
  uint32_t Patience() { return static_cast<uint32_t>(Chance(2) ? Number() : 1000); }
  std::vector<std::byte> EnvelopeOf(const WireKey& key, ByteSpan value) {
    Envelope envelope = MakeEnvelope({ns_.id()}, key, ns_.layout_id(), kSegments, value);
    if (Chance(3)) envelope.checksums[random_() % kSegments] ^= 1;
    std::vector<std::byte> encoded = Encoded(envelope);
    if (Chance(4)) encoded[random_() % encoded.size()] ^= std::byte{0x10};
    if (Chance(6)) encoded.resize(random_() % encoded.size());
    return encoded;
  }

  void PutSome(FrameClient* client) {
    for (int i = 0; i < 8; ++i) {
      const WireKey key = TestKey(random_() % kKeys);
      std::vector<std::byte> value = PatternValue(key, kBlockBytes);
      PutFrame put{{ns_.id()}, 1000, {key, {kBlockBytes, kSegments}}, {}};
      put.envelope = Encoded(MakeEnvelope({ns_.id()}, key, ns_.layout_id(), kSegments, value));
      client->Send(static_cast<uint64_t>(i + 1), put, std::move(value));
    }
    for (int i = 0; i < 8; ++i) client->Next();
  }

  void TakeLeases(FrameClient* client) {
    std::vector<WireKey> keys;
    for (uint64_t i = 0; i < kKeys; ++i) keys.push_back(TestKey(i));
    for (int i = 0; i < kMostLeases && !stop; ++i) {
      const LendFrame lend{{ns_.id()}, 1000, UINT32_MAX, {}, {keys[random_() % kKeys]}};
      const auto lent = client->Call<LentFrame>(static_cast<uint64_t>(i + 1), lend);
      ++frames_;
      if (!lent) return;
      if (lent->lease != 0) ++leases_;
      if (!lent->items.empty() && lent->items[0].status == WireStatus::kOverloaded) {
        ++refused_;
        return;
      }
    }
  }

  void Babble(FrameClient* client) {
    for (int i = 0; i < kFramesPerLife && !stop; ++i) {
      auto [frame, payload] = Nonsense();
      client->Send(Number(), frame, std::move(payload));
      ++frames_;
    }
    // In order: what was said before has been read when this is answered, or the node hung up.
    client->Send(kLast, MatchFrame{{ns_.id()}, false, 0, {TestKey(0)}});
    while (const auto received = client->Next()) {
      if (received->request_id == kLast) return;
    }
  }

  std::pair<FrameBody, std::vector<std::byte>> Nonsense() {
    const WireKey key = TestKey(random_() % kKeys);
    switch (random_() % 12) {
      case 0:
        return {MatchFrame{Ns(), Chance(2), Patience(), Keys()}, {}};
      case 1: {
        GetFrame get{Ns(), Patience(), {}};
        for (const WireKey& wanted : Keys()) {
          get.items.push_back({wanted, static_cast<uint16_t>(Chance(3) ? Number() : 0),
                               static_cast<uint16_t>(Chance(3) ? Number() : 0)});
        }
        return {std::move(get), {}};
      }
      case 2: {
        ReserveFrame reserve{Ns(), Patience(), {}};
        for (size_t i = 1 + random_() % 16; i > 0; --i) reserve.items.push_back(Item());
        return {std::move(reserve), {}};
      }
      case 3: {
        std::vector<std::byte> value = PatternValue(key, kBlockBytes);
        ValueFrame frame{static_cast<uint16_t>(Number()), Number(), EnvelopeOf(key, value)};
        return {std::move(frame), std::move(value)};
      }
      case 4: {
        std::vector<std::byte> value = PatternValue(key, kBlockBytes);
        PutFrame put{Ns(), Patience(), Item(), EnvelopeOf(key, value)};
        if (Chance(4)) value.resize(1 + random_() % value.size());
        return {std::move(put), std::move(value)};
      }
      case 5:
        return {TouchFrame{Ns(), Keys()}, {}};
      case 6:
        return {ReleaseFrame{Number()}, {}};
      case 7:
        return {CancelFrame{}, {}};
      case 8:
        return {PersistFrame{Ns(), Keys()}, {}};
      case 9: {
        LendFrame lend{Ns(), Patience(), Patience(), {}, Keys()};
        for (size_t i = random_() % 8; i > 0; --i) lend.released.push_back(Number());
        return {std::move(lend), {}};
      }
      default:
        return {Landed(key), {}};
    }
  }

  // Of landing memory, where it has some: within, at its edges, beyond.
  LandedFrame Landed(const WireKey& key) {
    LandedFrame landed{Ns(), Patience(), static_cast<uint16_t>(Number()), 0, Item(), Number(), {}};
    std::vector<std::byte> value = PatternValue(key, kBlockBytes);
    if (memory_ != nullptr && memory_->landing().size() > kBlockBytes && !Chance(4)) {
      landed.offset = random_() % (memory_->landing().size() - kBlockBytes / 2);
      const MutableByteSpan there = memory_->landing().subspan(landed.offset);
      std::copy_n(value.begin(), std::min(value.size(), there.size()), there.begin());
      if (!Chance(3)) landed.item = {key, {kBlockBytes, kSegments}};
    }
    if (Chance(4)) landed.reservation = Number();
    landed.envelope = EnvelopeOf(key, value);
    return landed;
  }

  static constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max() - 1;

  const std::string address_;
  std::mt19937_64 random_;
  const std::unique_ptr<Wires> wires_ = Wires::Tcp();
  control::v1::OpenNamespaceReply ns_;
  std::shared_ptr<const LocalMemory> memory_;
  uint64_t lives_ = 0, frames_ = 0, leases_ = 0, refused_ = 0;
};

int Main(int argc, char** argv) {
  std::string address;
  uint64_t seed = 1;
  Flags flags("soak_enemy", "A client that means ill.");
  flags.AddString("--address", &address, "the node's control address");
  flags.Required();
  flags.AddUint("--seed", &seed, "of what it does", 0, UINT64_MAX);
  if (auto code = flags.Parse(argc, argv)) return *code;
  signal(SIGTERM, [](int) { stop = 1; });
  Enemy enemy(address, seed);
  enemy.Run();
  enemy.Print();
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
