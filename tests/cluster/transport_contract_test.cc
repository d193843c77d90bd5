// One contract, every transport.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cluster/transport.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/checksum.h"
#include "proto/clock.h"
#include "tests/cluster/transport_fabric.h"
#include "tests/cluster/transport_peer.h"

namespace terrace {
namespace {

using ::testing::IsEmpty;

constexpr absl::Duration kTimeout = absl::Seconds(10);

std::vector<std::byte> Frame(std::string_view text) {
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

// UCX has no lanes on ::1.
std::string GlobalIpv6Address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(all, &freeifaddrs);
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET6) continue;
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
    if (IN6_IS_ADDR_LOOPBACK(&address) || IN6_IS_ADDR_LINKLOCAL(&address)) continue;
    char text[INET6_ADDRSTRLEN];
    return inet_ntop(AF_INET6, &address, text, sizeof(text));
  }
  return "";
}

// A server that listens and a client with one connection to it.
class TransportContract : public testing::TestWithParam<FabricKind> {
 protected:
  void Start(uint32_t max_queued_messages = 4096, uint32_t max_connections = 1024,
             const std::string& address = "127.0.0.1:0") {
    server_ = fabric_.Make(&server_peer_, max_queued_messages, max_connections);
    client_ = fabric_.Make(&client_peer_, max_queued_messages, max_connections);
    const auto bound = server_->Listen(address);
    ASSERT_TRUE(bound.ok()) << bound.status();
    address_ = *bound;
  }
  void Connect() {
    const auto connection = client_->Connect(address_, kTimeout);
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
    ASSERT_TRUE(client_peer_.WaitOpen(connection_)) << client_peer_.closed_with(connection_);
    ASSERT_TRUE(server_peer_.WaitAccepted(1));
  }
  void TearDown() override {
    if (client_) client_->Shutdown(absl::Seconds(5));
    if (server_) server_->Shutdown(absl::Seconds(5));
    EXPECT_THAT(client_peer_.complaints(), IsEmpty());
    EXPECT_THAT(server_peer_.complaints(), IsEmpty());
    EXPECT_EQ(client_peer_.open_count(), 0u);
    EXPECT_EQ(server_peer_.open_count(), 0u);
  }
  void Send(std::string_view frame, ByteSpan payload = {}) {
    OutgoingMessage message{.frame = Frame(frame), .sent = client_peer_.CountSent()};
    if (!payload.empty()) message.payload.push_back(payload);
    client_->Send(connection_, std::move(message));
  }

  TransportFabric fabric_{GetParam()};
  TransportPeer server_peer_{/*pieces=*/3};
  TransportPeer client_peer_{/*pieces=*/2};
  std::unique_ptr<Transport> server_, client_;
  std::string address_;
  ConnectionId connection_ = 0;
};

TEST_P(TransportContract, ConnectsAndCloses) {
  Start();
  Connect();
  EXPECT_EQ(client_->Stats().connections, 1u);
  EXPECT_EQ(server_->Stats().connections, 1u);
  client_->Close(connection_, absl::OkStatus());
  client_->Close(connection_, absl::InternalError("second close"));
  ASSERT_TRUE(client_peer_.WaitClosed(connection_));
  EXPECT_TRUE(client_peer_.closed_with(connection_).ok());
  const ConnectionId accepted = server_peer_.accepted()[0];
  ASSERT_TRUE(server_peer_.WaitClosed(accepted));
  EXPECT_TRUE(absl::IsUnavailable(server_peer_.closed_with(accepted)));
  EXPECT_EQ(client_->Stats().connections, 0u);
  EXPECT_EQ(server_->Stats().connections, 0u);
}

TEST_P(TransportContract, ConnectsOverIpv6) {
  const std::string address = GlobalIpv6Address();
  if (address.empty()) GTEST_SKIP() << "no interface with a global IPv6 address";
  Start(4096, 1024, fmt::format("[{}]:0", address));
  if (GetParam() != FabricKind::kLoopback) {
    EXPECT_THAT(address_, testing::StartsWith(fmt::format("[{}]:", address)));
    EXPECT_THAT(address_, testing::Not(testing::EndsWith(":0")));
  }
  Connect();
}

TEST_P(TransportContract, RefusesBadAddresses) {
  Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(server_->Listen("127.0.0.1:0").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Listen("nonsense").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Connect("nonsense", kTimeout).status()));
  const absl::Status in_use = client_->Listen(address_).status();
  EXPECT_TRUE(absl::IsUnavailable(in_use)) << in_use;
  EXPECT_THAT(std::string(in_use.message()), testing::HasSubstr(address_));
}

TEST_P(TransportContract, RefusedConnectClosesWithinItsTimeout) {
  Start();
  server_->Shutdown(absl::Seconds(1));
  const absl::Duration begin = Clock::Real()->Now();
  const auto connection = client_->Connect(address_, absl::Seconds(2));
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(client_peer_.WaitClosed(*connection));
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(4));
  EXPECT_FALSE(client_peer_.closed_with(*connection).ok());
}

TEST_P(TransportContract, EchoesFramesOfAllSizes) {
  Start();
  server_peer_.EchoOn(server_.get());
  Connect();
  std::vector<size_t> sizes = {0, 1, 7, 55, 56, 57, 4096, 8191, 8192, 8193, 16384};
  for (size_t near = kMaxFrameBytes - 3; near <= kMaxFrameBytes; ++near) sizes.push_back(near);
  for (size_t size = 100; size < kMaxFrameBytes; size = size * 5 / 3) sizes.push_back(size);
  for (const size_t size : sizes) {
    OutgoingMessage message{.sent = client_peer_.CountSent()};
    message.frame.resize(size);
    FillPattern(size, MutableByteSpan(message.frame));
    client_->Send(connection_, std::move(message));
  }
  ASSERT_TRUE(client_peer_.WaitMessages(sizes.size()));
  const auto received = client_peer_.TakeReceived();
  ASSERT_EQ(received.size(), sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(received[i]->frame.size(), sizes[i]);
    EXPECT_TRUE(HasPattern(sizes[i], AsBytes(received[i]->frame)));
  }
  EXPECT_EQ(client_->Stats().messages_sent, sizes.size());
  EXPECT_EQ(client_->Stats().messages_received, sizes.size());
}

TEST_P(TransportContract, CarriesPayloadsOfAllSizes) {
  Start();
  server_peer_.EchoOn(server_.get());
  Connect();
  const std::vector<size_t> sizes = {1,
                                     3,
                                     4096,
                                     65000,
                                     (64 << 10) - 121,
                                     (64 << 10) - 120,
                                     (64 << 10) - 119,
                                     64 << 10,
                                     (64 << 10) + 1,
                                     200'001,
                                     1 << 20,
                                     (4 << 20) + 5,
                                     kMaxPayloadBytes};
  size_t count = 0;
  for (const size_t size : sizes) {
    for (const size_t frame : {size_t{0}, size_t{100}, kMaxFrameBytes}) {
      std::vector<std::byte> payload(size);
      FillPattern(size + frame, MutableByteSpan(payload));
      OutgoingMessage message{.sent = client_peer_.CountSent()};
      message.frame.resize(frame, std::byte{7});
      // Uneven parts, an empty one among them.
      const ByteSpan whole(payload);
      message.payload = {whole.first(size / 3), whole.first(0), whole.subspan(size / 3, size / 7),
                         whole.subspan(size / 3 + size / 7)};
      client_->Send(connection_, std::move(message));
      ASSERT_TRUE(client_peer_.WaitMessages(1)) << size;
      ASSERT_TRUE(client_peer_.WaitSent(++count));
      ASSERT_TRUE(server_peer_.WaitSent(count));
      const auto received = client_peer_.TakeReceived();
      server_peer_.TakeReceived();
      ASSERT_EQ(received.size(), 1u);
      EXPECT_TRUE(received[0]->status.ok()) << received[0]->status;
      EXPECT_EQ(received[0]->frame.size(), frame);
      EXPECT_EQ(received[0]->payload.size(), size);
      EXPECT_TRUE(HasPattern(size + frame, received[0]->payload)) << size;
    }
  }
}

TEST_P(TransportContract, KeepsTheOrderOfMessages) {
  Start();
  Connect();
  constexpr int kCount = 500;
  std::vector<std::byte> payload(300'000);
  FillPattern(1, MutableByteSpan(payload));
  for (int i = 0; i < kCount; ++i) {
    Send(absl::StrCat(i), ByteSpan(payload).first(i % 5 * 70'001));
  }
  ASSERT_TRUE(server_peer_.WaitMessages(kCount));
  ASSERT_TRUE(client_peer_.WaitSent(kCount));
  const auto received = server_peer_.TakeReceived();
  ASSERT_EQ(received.size(), static_cast<size_t>(kCount));
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(received[i]->frame, absl::StrCat(i));
    EXPECT_EQ(received[i]->payload_bytes, i % 5 * 70'001u);
    EXPECT_TRUE(HasPattern(1, received[i]->payload));
  }
  for (const absl::Status& status : client_peer_.sent()) EXPECT_TRUE(status.ok()) << status;
  const TransportStats stats = client_->Stats();
  EXPECT_EQ(stats.payload_in_flight, 0u);
  EXPECT_EQ(stats.bytes_sent, server_->Stats().bytes_received);
}

TEST_P(TransportContract, ThrowsAwayWhatNobodyWants) {
  Start();
  std::atomic<int> landed{0};
  server_peer_.SetLander([&](ConnectionId, ByteSpan, uint64_t) {
    Landing landing;
    landing.landed = [&](absl::Status status) {
      EXPECT_TRUE(status.ok()) << status;
      ++landed;
      server_peer_.Changed();
    };
    return landing;
  });
  Connect();
  const std::vector<std::byte> payload(3 << 20);
  for (int i = 0; i < 5; ++i) Send("unwanted", payload);
  ASSERT_TRUE(client_peer_.WaitSent(5));
  ASSERT_TRUE(server_peer_.WaitUntil([&] { return landed == 5; }));
}

TEST_P(TransportContract, SendOnUnknownConnectionIsUnavailable) {
  Start();
  Connect();
  OutgoingMessage message{.frame = Frame("x"), .sent = client_peer_.CountSent()};
  client_->Send(connection_ + 1000, std::move(message));
  ASSERT_TRUE(client_peer_.WaitSent(1));
  EXPECT_TRUE(absl::IsUnavailable(client_peer_.sent()[0]));
  client_->Close(connection_, absl::OkStatus());
  ASSERT_TRUE(client_peer_.WaitClosed(connection_));
  Send("late");
  ASSERT_TRUE(client_peer_.WaitSent(2));
  EXPECT_TRUE(absl::IsUnavailable(client_peer_.sent()[1]));
}

// What is computed from the bytes as they leave can be sent behind them.
TEST_P(TransportContract, ASumTravelsBehindItsBytes) {
  Start();
  Connect();
  size_t sent = 0;
  for (const size_t size : {size_t{1}, size_t{64} << 10, (size_t{1} << 20) + 5}) {
    std::vector<std::byte> bytes(size), seen;
    FillPattern(size, MutableByteSpan(bytes));
    std::array<std::byte, 4> sum{};
    OutgoingMessage message{.frame = Frame("sum"), .sent = client_peer_.CountSent()};
    message.payload = {ByteSpan(bytes).first(size / 2), ByteSpan(bytes).subspan(size / 2),
                       ByteSpan(sum)};
    message.sending = [&](ByteSpan part) {
      seen.insert(seen.end(), part.begin(), part.end());
      if (seen.size() != size) return;
      const uint32_t crc = Crc32c(seen);
      std::memcpy(sum.data(), &crc, sizeof(crc));
    };
    client_->Send(connection_, std::move(message));
    ASSERT_TRUE(client_peer_.WaitSent(++sent));  // until then the transport reads the memory
    ASSERT_TRUE(server_peer_.WaitMessages(1));
    const auto received = server_peer_.TakeReceived();
    ASSERT_EQ(received.size(), 1u);
    ASSERT_EQ(received[0]->payload.size(), size + sizeof(sum));
    const ByteSpan payload(received[0]->payload);
    const uint32_t crc = Crc32c(payload.first(size));
    EXPECT_EQ(std::memcmp(payload.data() + size, &crc, sizeof(crc)), 0) << size;
    EXPECT_EQ(seen.size(), size + sizeof(sum));
    EXPECT_TRUE(HasPattern(size, payload.first(size)));
  }
}

TEST_P(TransportContract, RefusesWhatIsTooLarge) {
  Start();
  Connect();
  Send(std::string(kMaxFrameBytes + 1, 'x'));
  const std::vector<std::byte> payload(kMaxPayloadBytes + 1);
  Send("too large", payload);
  ASSERT_TRUE(client_peer_.WaitSent(2));
  for (const absl::Status& status : client_peer_.sent()) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

TEST_P(TransportContract, BoundsItsQueue) {
  Start(/*max_queued_messages=*/4);
  Connect();
  const std::vector<std::byte> payload(kMaxBlockBytes);
  // All in one turn of the loop, so that nothing drains in between.
  client_->Post([&] {
    for (int i = 0; i < 10; ++i) Send("much", payload);
  });
  ASSERT_TRUE(client_peer_.WaitSent(6));
  size_t refused = 0;
  for (const absl::Status& status : client_peer_.sent())
    refused += absl::IsResourceExhausted(status);
  EXPECT_EQ(refused, 6u);
  ASSERT_TRUE(client_peer_.WaitSent(10));
  ASSERT_TRUE(server_peer_.WaitMessages(4));
}

// Closes `closer` when `progress` has seen a part of a payload, and scribbles over all memory as
// soon as its owner has been told that the transfer is over.
void CloseMidTransfer(Transport* closer, bool closer_is_receiver, TransportPeer* server_peer,
                      TransportPeer* client_peer, Transport* client, ConnectionId connection,
                      const std::function<ConnectionId()>& closing) {
  std::vector<std::byte> landing_memory(kMaxBlockBytes);
  std::vector<std::byte> payload(kMaxBlockBytes);
  FillPattern(1, MutableByteSpan(payload));
  const std::vector<std::byte> pristine = payload;
  std::atomic<bool> landed{false};
  std::atomic<bool> closed{false};
  absl::Status landed_with;
  server_peer->SetLander([&](ConnectionId, ByteSpan, uint64_t) {
    if (!closer_is_receiver || !closed.exchange(true)) {
      closer->Close(closing(), absl::OkStatus());
    }
    Landing landing;
    landing.pieces.push_back(MutableByteSpan(landing_memory));
    landing.landed = [&](absl::Status status) {
      landed_with = status;
      if (status.ok()) {
        EXPECT_EQ(landing_memory, pristine);
      }
      std::memset(landing_memory.data(), 0xee, landing_memory.size());
      landed = true;
      server_peer->Changed();
    };
    return landing;
  });
  OutgoingMessage message{.frame = Frame("long"), .payload = {payload}};
  message.sent = [&, count = client_peer->CountSent()](absl::Status status) mutable {
    std::memset(payload.data(), 0xdd, payload.size());
    count(std::move(status));
  };
  client->Send(connection, std::move(message));
  ASSERT_TRUE(client_peer->WaitSent(1));
  ASSERT_TRUE(server_peer->WaitUntil([&] { return landed.load(); }));
  ASSERT_TRUE(client_peer->WaitClosed(connection));
  ASSERT_TRUE(server_peer->WaitClosed(server_peer->accepted()[0]));
  // A transfer that a receiver pulls by itself may be over before the sender's close takes hold.
  EXPECT_TRUE(absl::IsUnavailable(landed_with) || (landed_with.ok() && !closer_is_receiver))
      << landed_with;
  // Nobody writes to the landing, or reads the payload, after its owner was told.
  EXPECT_EQ(std::count(landing_memory.begin(), landing_memory.end(), std::byte{0xee}),
            static_cast<ptrdiff_t>(landing_memory.size()));
}

TEST_P(TransportContract, ReceiverClosesInMidTransfer) {
  Start();
  Connect();
  CloseMidTransfer(server_.get(), true, &server_peer_, &client_peer_, client_.get(), connection_,
                   [&] { return server_peer_.accepted()[0]; });
}

TEST_P(TransportContract, SenderClosesInMidTransfer) {
  Start();
  Connect();
  CloseMidTransfer(client_.get(), false, &server_peer_, &client_peer_, client_.get(), connection_,
                   [&] { return connection_; });
}

TEST_P(TransportContract, CloseIsPrompt) {
  Start();
  Connect();
  const std::vector<std::byte> payload(8 << 20);
  for (int i = 0; i < 20; ++i) Send("x", payload);
  const absl::Duration begin = Clock::Real()->Now();
  client_->Close(connection_, absl::OkStatus());
  ASSERT_TRUE(client_peer_.WaitClosed(connection_));
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Milliseconds(500));  // 100 on an idle machine
  EXPECT_EQ(client_peer_.sent().size(), 20u);
}

TEST_P(TransportContract, ServesManyConnections) {
  constexpr int kConnections = 60;
  Start();
  server_peer_.EchoOn(server_.get());
  std::vector<ConnectionId> connections;
  for (int i = 0; i < kConnections; ++i) {
    const auto connection = client_->Connect(address_, kTimeout);
    ASSERT_TRUE(connection.ok());
    connections.push_back(*connection);
  }
  for (const ConnectionId connection : connections) ASSERT_TRUE(client_peer_.WaitOpen(connection));
  std::vector<std::byte> payload(100'000);
  FillPattern(3, MutableByteSpan(payload));
  for (int i = 0; i < 5; ++i) {
    for (const ConnectionId connection : connections) {
      client_->Send(connection, {.frame = Frame(absl::StrCat(i)), .payload = {payload}});
    }
  }
  ASSERT_TRUE(client_peer_.WaitMessages(kConnections * 5));
  std::map<ConnectionId, int> next;
  for (const auto& received : client_peer_.TakeReceived()) {
    EXPECT_EQ(received->frame, absl::StrCat(next[received->connection]++));
    EXPECT_TRUE(HasPattern(3, received->payload));
  }
  EXPECT_EQ(client_->Stats().connections, static_cast<uint64_t>(kConnections));
}

TEST_P(TransportContract, RunsPostedWorkInOrder) {
  Start();
  std::vector<int> order;
  std::atomic<bool> done{false};
  std::atomic<bool> early{false};
  const absl::Duration begin = Clock::Real()->Now();
  client_->PostAfter(absl::Milliseconds(60), [&] { order.push_back(101); });
  client_->PostAfter(absl::Milliseconds(20), [&] {
    early = Clock::Real()->Now() - begin < absl::Milliseconds(20);
    order.push_back(100);
  });
  client_->PostAfter(absl::Milliseconds(60), [&] { order.push_back(102); });
  for (int i = 0; i < 100; ++i) {
    client_->Post([&order, i] { order.push_back(i); });
  }
  client_->PostAfter(absl::Milliseconds(80), [&] {
    done = true;
    client_peer_.Changed();
  });
  ASSERT_TRUE(client_peer_.WaitUntil([&] { return done.load(); }));
  EXPECT_FALSE(early);
  ASSERT_EQ(order.size(), 103u);
  for (int i = 0; i < 103; ++i) EXPECT_EQ(order[i], i);
}

TEST_P(TransportContract, ShutsDownUnderTraffic) {
  Start();
  server_peer_.EchoOn(server_.get());
  Connect();
  const std::vector<std::byte> payload(1 << 20);
  constexpr size_t kMessages = 200;
  for (size_t i = 0; i < kMessages; ++i) Send("x", payload);
  ASSERT_TRUE(client_peer_.WaitSent(3));
  auto unrun = std::make_shared<int>();
  client_->PostAfter(absl::Hours(1), [unrun] {});
  client_->Shutdown(absl::Seconds(5));
  EXPECT_EQ(unrun.use_count(), 1);
  EXPECT_EQ(client_peer_.sent().size(), kMessages);
  EXPECT_EQ(client_peer_.open_count(), 0u);
  client_->Post([unrun] { ADD_FAILURE() << "ran after Shutdown"; });
  EXPECT_EQ(unrun.use_count(), 1);
  Send("late");
  ASSERT_EQ(client_peer_.sent().size(), kMessages + 1);
  EXPECT_TRUE(absl::IsUnavailable(client_peer_.sent().back()));
  EXPECT_FALSE(client_->Connect(address_, kTimeout).ok());
  client_->Shutdown(absl::ZeroDuration());
  server_->Shutdown(absl::Seconds(5));
}

TEST_P(TransportContract, ServesManyThreads) {
  Start();
  Connect();
  constexpr int kThreads = 4;
  constexpr int kEach = 200;
  std::vector<std::byte> payload(10'000);
  FillPattern(5, MutableByteSpan(payload));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) Send(fmt::format("{} {}", t, i), payload);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(server_peer_.WaitMessages(kThreads * kEach));
  ASSERT_TRUE(client_peer_.WaitSent(kThreads * kEach));
  std::vector<int> next(kThreads, 0);
  for (const auto& received : server_peer_.TakeReceived()) {
    const int thread = received->frame[0] - '0';
    EXPECT_EQ(received->frame, fmt::format("{} {}", thread, next[thread]++));
  }
}

TEST_P(TransportContract, RegistersMemory) {
  Start();
  std::vector<std::byte> memory(4 << 20);
  EXPECT_TRUE(client_->Register(MutableByteSpan(memory)).ok());
  EXPECT_FALSE(client_->Register({}).ok());
  Connect();
  FillPattern(9, MutableByteSpan(memory));
  Send("registered", memory);
  ASSERT_TRUE(server_peer_.WaitMessages(1));
  EXPECT_TRUE(HasPattern(9, server_peer_.TakeReceived()[0]->payload));
  ASSERT_TRUE(client_peer_.WaitSent(1));
  client_->Unregister(MutableByteSpan(memory));
  client_->Unregister(MutableByteSpan(memory));
}

std::vector<FabricKind> Kinds() {
#ifdef __SANITIZE_THREAD__
  return {FabricKind::kLoopback, FabricKind::kTcp};  // UCX is not instrumented
#else
  return {FabricKind::kLoopback, FabricKind::kTcp, FabricKind::kUcx};
#endif
}

INSTANTIATE_TEST_SUITE_P(All, TransportContract, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return ToString(info.param); });

}  // namespace
}  // namespace terrace
