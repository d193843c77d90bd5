// What the kernel's sockets let any stranger do to the TCP transport, and what it promises beyond
// the contract.
#include "cluster/tcp_transport.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>

#include "cluster/message_header.h"
#include "cluster/socket_address.h"
#include "cluster/tcp_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/clock.h"
#include "tests/cluster/transport_peer.h"
#include "tests/support/descriptors.h"
#include "tests/support/listening.h"

namespace {

// Of the calls that register a descriptor, those that succeed before the next one fails as it does
// at the system's bound on watches; negative: none fails.
std::atomic<int> registrations_left{-1};

}  // namespace

// In front of the C library's.
extern "C" int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  static const auto real = reinterpret_cast<decltype(&epoll_ctl)>(dlsym(RTLD_NEXT, "epoll_ctl"));
  if (operation == EPOLL_CTL_ADD && registrations_left.load() >= 0 &&
      registrations_left.fetch_sub(1) == 0) {
    errno = ENOSPC;
    return -1;
  }
  return real(epoll, operation, fd, event);
}

namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Bytes = std::vector<std::byte>;

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr int kPatienceMs = 20'000;

Bytes operator+(Bytes first, const Bytes& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Bytes Text(std::string_view text) {
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

Bytes Encoded(const MessageHeader& header) {
  Bytes bytes(kMessageHeaderBytes);
  EncodeMessageHeader(header, std::span(bytes).first<kMessageHeaderBytes>());
  return bytes;
}

Bytes Hello() { return Encoded({.kind = MessageKind::kHello}); }

// A socket that says whatever a test wants.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address)
      : RawPeer(*ParseSocketAddress(address, /*numeric_only=*/true)) {}
  explicit RawPeer(const SocketAddress& address)
      : address_(address), fd_(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~RawPeer() { close(fd_); }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  RawPeer& Connect() {
    EXPECT_EQ(connect(fd_, address_.get(), address_.length), 0) << std::strerror(errno);
    return *this;
  }
  RawPeer& Send(const Bytes& bytes) {
    // The other side may have closed already.
    [[maybe_unused]] const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return *this;
  }
  // Each Send goes out as it is, not joined with the next.
  RawPeer& SendApart() {
    const int on = 1;
    EXPECT_EQ(setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
    return *this;
  }
  void EndSending() { shutdown(fd_, SHUT_WR); }
  bool WaitReadable(int timeout_ms = kPatienceMs) {
    pollfd wait{.fd = fd_, .events = POLLIN};
    return poll(&wait, 1, timeout_ms) == 1;
  }
  Bytes Read() {
    Bytes buffer(4096);
    buffer.resize(static_cast<size_t>(std::max<ssize_t>(0, recv(fd_, buffer.data(), 4096, 0))));
    return buffer;
  }
  // Reads on until the other side closes; false when it has not after 20 seconds.
  bool WaitClosed() {
    while (WaitReadable()) {
      if (Read().empty()) return true;
    }
    return false;
  }

 private:
  const SocketAddress address_;
  const int fd_;
};

class TcpTransportTest : public testing::Test {
 protected:
  void Start(TcpTransportOptions options = {}, const std::string& address = "127.0.0.1:0") {
    server_ = *CreateTcpTransport(std::move(options), &peer_);
    client_ = *CreateTcpTransport({}, &client_peer_);
    const auto bound = server_->Listen(address);
    ASSERT_TRUE(bound.ok()) << bound.status();
    address_ = *bound;
  }
  void TearDown() override {
    if (client_) client_->Shutdown(absl::Seconds(5));
    if (server_) server_->Shutdown(absl::Seconds(5));
    EXPECT_THAT(peer_.complaints(), IsEmpty());
    EXPECT_THAT(client_peer_.complaints(), IsEmpty());
    EXPECT_EQ(peer_.open_count(), 0u);
  }
  ConnectionId Connect() { return Connect(address_); }
  ConnectionId Connect(const std::string& address) {
    const auto connection = client_->Connect(address, kTimeout);
    EXPECT_TRUE(connection.ok()) << connection.status();
    EXPECT_TRUE(client_peer_.WaitOpen(*connection)) << client_peer_.closed_with(*connection);
    return *connection;
  }
  void ExpectStillServes(ConnectionId connection) {
    const Bytes payload(1 << 20);
    const size_t sent = client_peer_.sent().size();
    client_->Send(connection, {.payload = {payload}, .sent = client_peer_.CountSent()});
    ASSERT_TRUE(client_peer_.WaitSent(sent + 1));
    EXPECT_TRUE(client_peer_.sent().back().ok());
  }

  TransportPeer peer_{/*pieces=*/3}, client_peer_;
  std::unique_ptr<Transport> server_, client_;
  std::string address_;
};

std::vector<Bytes> AllNonsense() {
  std::vector<Bytes> all;
  // What stops a process that listens with UCX 1.13: its magic, and a message that is all length.
  all.push_back(Text({"\x78\x56\x34\x12\xbe\xba\xfe\xca\x1f\xff\xff\xff\xff", 13}));
  all.push_back(Text("GET / HTTP/1.1\r\n\r\n"));
  all.push_back(Text({"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11}));  // TLS
  all.push_back(Text("\n"));
  all.push_back(Bytes(kMessageHeaderBytes));
  all.push_back(Encoded({.frame_bytes = 4}) + Bytes(4));  // a message before the hello
  all.push_back(Encoded({.kind = MessageKind::kWelcome}));
  all.push_back(Encoded({.kind = MessageKind::kFull}));
  all.push_back(Encoded({.kind = MessageKind::kHello, .frame_bytes = 1}) + Bytes(1));
  all.push_back(Encoded({.kind = MessageKind::kHello, .payload_bytes = 1}) + Bytes(1));
  all.push_back(Encoded({.kind = static_cast<MessageKind>(0)}));
  all.push_back(Encoded({.kind = static_cast<MessageKind>(5)}));
  all.push_back(Hello() + Hello());
  all.push_back(Hello() + Encoded({.kind = MessageKind::kWelcome}));
  all.push_back(Hello() + Encoded({.frame_bytes = kMaxFrameBytes + 1}));
  all.push_back(Hello() + Encoded({.frame_bytes = 1u << 31}));
  all.push_back(Hello() + Encoded({.payload_bytes = kMaxPayloadBytes + 1}));
  all.push_back(Hello() + Encoded({.payload_bytes = ~0ull}));
  all.push_back(Hello() + Text("and now something else"));
  all.push_back(Hello() + Encoded({.frame_bytes = 4, .payload_bytes = 4}) + Bytes(8) + Bytes(1));
  std::mt19937 random(11);
  for (int i = 0; i < 100; ++i) {
    Bytes noise(1 + random() % 5000);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    all.push_back(i % 2 == 0 ? noise : Hello() + noise);
  }
  for (size_t at = 0; at < 8; ++at) {  // magic, version, kind
    Bytes header = Hello();
    header[at] ^= std::byte{0x40};
    all.push_back(std::move(header));
  }
  return all;
}

TEST_F(TcpTransportTest, ClosesThoseWhoTalkNonsense) {
  Start();
  const ConnectionId honest = Connect();
  uint64_t malformed = 0;
  for (const Bytes& nonsense : AllNonsense()) {
    RawPeer liar(address_);
    liar.Connect().Send(nonsense);
    ASSERT_TRUE(liar.WaitClosed()) << malformed;
    EXPECT_EQ(server_->Stats().malformed, ++malformed);
  }
  ExpectStillServes(honest);
  EXPECT_EQ(server_->Stats().connections, 1u);
}

TEST_F(TcpTransportTest, LeaksNothingToStrangers) {
  Start();
  const ConnectionId honest = Connect();
  const size_t before = OpenDescriptors();
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    RawPeer liar(address_);
    liar.Connect();
    if (i % 3 == 0) continue;  // says nothing and goes
    liar.Send(i % 3 == 1 ? Bytes(1 + random() % 40, static_cast<std::byte>(random()))
                         : Hello() + Encoded({.frame_bytes = ~0u}));
    ASSERT_TRUE(liar.WaitClosed()) << i;
  }
  EXPECT_TRUE(peer_.WaitUntil([&] { return OpenDescriptors() <= before; }));
  ExpectStillServes(honest);
}

TEST_F(TcpTransportTest, GivesTheSilentNoPlace) {
  Start({.max_connections = 1});
  Bytes half = Hello();
  half.resize(half.size() / 2);
  for (const Bytes& beginning : {Bytes(), half}) {
    RawPeer silent(address_);
    silent.Connect().Send(beginning);
    ASSERT_TRUE(silent.WaitClosed());  // after the greeting timeout
  }
  EXPECT_EQ(server_->Stats().malformed, 0u);
  ExpectStillServes(Connect());
}

TEST_F(TcpTransportTest, TellsThoseItHasNoPlaceFor) {
  Start({.max_connections = 1});
  const ConnectionId first = Connect();
  const ConnectionId second = *client_->Connect(address_, kTimeout);
  ASSERT_TRUE(client_peer_.WaitClosed(second));
  EXPECT_TRUE(absl::IsUnavailable(client_peer_.closed_with(second)));
  client_->Close(first, absl::OkStatus());
  ASSERT_TRUE(peer_.WaitClosed(peer_.accepted()[0]));
  RawPeer third(address_), fourth(address_);
  third.Connect().Send(Hello());
  ASSERT_TRUE(peer_.WaitAccepted(2));
  fourth.Connect();  // says nothing, so that no reset overtakes the answer
  ASSERT_TRUE(fourth.WaitReadable());
  EXPECT_EQ(fourth.Read(), Encoded({.kind = MessageKind::kFull}));
}

TEST_F(TcpTransportTest, TakesAMessageByteByByte) {
  Start();
  RawPeer slow(address_);
  slow.Connect();
  Bytes payload(700);
  FillPattern(4, MutableByteSpan(payload));
  const Bytes all = Hello() + Encoded({.frame_bytes = 5, .payload_bytes = payload.size()}) +
                    Text("frame") + payload;
  for (const std::byte byte : all) slow.Send({byte});
  ASSERT_TRUE(peer_.WaitMessages(1));
  const auto received = peer_.TakeReceived();
  EXPECT_TRUE(received[0]->status.ok()) << received[0]->status;
  EXPECT_EQ(received[0]->frame, "frame");
  EXPECT_TRUE(HasPattern(4, received[0]->payload));
}

TEST_F(TcpTransportTest, TakesHeadersAndFramesCutAnywhere) {
  Start();
  RawPeer slow(address_);
  slow.Connect().SendApart().Send(Hello());
  Bytes content(9000);
  FillPattern(6, MutableByteSpan(content));
  std::mt19937 random(6);
  constexpr size_t kMessages = 40;
  for (size_t i = 0; i < kMessages; ++i) {
    const auto frame = static_cast<uint32_t>(i % 4 * 1500);
    const uint64_t payload = i % 3 * 1000;
    const Bytes message = Encoded({.frame_bytes = frame, .payload_bytes = payload}) +
                          Bytes(content.begin(), content.begin() + frame) +
                          Bytes(content.begin(), content.begin() + static_cast<ptrdiff_t>(payload));
    const size_t longest = i % 2 == 0 ? 1 : 60;
    for (size_t at = 0; at < message.size();) {
      const size_t part = std::min(message.size() - at, 1 + random() % longest);
      const auto begin = message.begin() + static_cast<ptrdiff_t>(at);
      slow.Send(Bytes(begin, begin + static_cast<ptrdiff_t>(part)));
      at += part;
    }
  }
  ASSERT_TRUE(peer_.WaitMessages(kMessages));
  const auto received = peer_.TakeReceived();
  for (size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(received[i]->frame.size(), i % 4 * 1500);
    EXPECT_TRUE(HasPattern(6, AsBytes(received[i]->frame)));
    EXPECT_EQ(received[i]->payload.size(), i % 3 * 1000);
    EXPECT_TRUE(HasPattern(6, received[i]->payload));
  }
}

TEST_F(TcpTransportTest, KnowsNonsenseBehindACutHeader) {
  Start();
  RawPeer liar(address_);
  liar.Connect().SendApart();
  for (const std::byte byte : Hello()) liar.Send({byte});
  ASSERT_TRUE(peer_.WaitAccepted(1));
  liar.Send({Hello()[0]}).Send(Text("x"));
  EXPECT_TRUE(liar.WaitClosed());
  EXPECT_EQ(server_->Stats().malformed, 1u);
}

Bytes OfAnotherVersion(Bytes header) {
  header[4] ^= std::byte{0x40};  // behind the magic
  return header;
}

TEST_F(TcpTransportTest, APeerOfAnotherVersionIsToldOurs) {
  Start();
  RawPeer newer(address_);
  newer.Connect().Send(OfAnotherVersion(Hello()));
  ASSERT_TRUE(newer.WaitReadable());
  EXPECT_EQ(newer.Read(), Encoded({.kind = MessageKind::kFull}));
  EXPECT_TRUE(newer.WaitClosed());
  EXPECT_EQ(server_->Stats().malformed, 1u);
}

TEST_F(TcpTransportTest, AListenerOfAnotherVersionIsNamedWithOurs) {
  Start();
  const TcpSocket listener =
      *TcpSocket::Listen(*ParseSocketAddress("127.0.0.1:0", /*numeric_only=*/true), "127.0.0.1:0");
  const std::string address = FormatSocketAddress(listener.LocalAddress()->storage);
  const ConnectionId connection = *client_->Connect(address, kTimeout);
  pollfd wait{.fd = listener.fd(), .events = POLLIN};
  ASSERT_EQ(poll(&wait, 1, kPatienceMs), 1);
  const TcpSocket accepted = TcpSocket::Accept(listener);
  const Bytes answer = OfAnotherVersion(Encoded({.kind = MessageKind::kWelcome}));
  ASSERT_EQ(send(accepted.fd(), answer.data(), answer.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(answer.size()));
  ASSERT_TRUE(client_peer_.WaitClosed(connection));
  const absl::Status why = client_peer_.closed_with(connection);
  EXPECT_TRUE(absl::IsFailedPrecondition(why)) << why;
  for (const char* part : {"version 65", "this side's version 1", "same release"}) {
    EXPECT_THAT(std::string(why.message()), HasSubstr(part));
  }
}

TEST_F(TcpTransportTest, ListeningFailsWhereNothingCanBeWatched) {
  const auto transport = *CreateTcpTransport({}, &peer_);
  registrations_left = 0;
  const auto bound = transport->Listen("127.0.0.1:0");
  EXPECT_TRUE(absl::IsUnavailable(bound.status())) << bound.status();
  EXPECT_TRUE(transport->Listen("127.0.0.1:0").ok());  // it has not listened
  transport->Shutdown(absl::Seconds(5));
}

TEST_F(TcpTransportTest, AConnectionThatCannotBeWatchedFailsAtOnce) {
  Start();
  registrations_left = 0;
  const ConnectionId connection = *client_->Connect(address_, absl::InfiniteDuration());
  ASSERT_TRUE(client_peer_.WaitClosed(connection));
  EXPECT_TRUE(absl::IsUnavailable(client_peer_.closed_with(connection)));
  ExpectStillServes(Connect());
}

TEST_F(TcpTransportTest, APeerThatCannotBeWatchedIsSentAway) {
  Start();
  registrations_left = 1;  // the peer's own
  const ConnectionId connection = *client_->Connect(address_, absl::InfiniteDuration());
  ASSERT_TRUE(client_peer_.WaitClosed(connection));
  EXPECT_THAT(peer_.accepted(), IsEmpty());
  ExpectStillServes(Connect());
}

TEST_F(TcpTransportTest, TakesManyMessagesAtOnce) {
  Start();
  RawPeer hasty(address_);
  Bytes payload(3000);
  FillPattern(5, MutableByteSpan(payload));
  Bytes all = Hello();
  constexpr size_t kMessages = 200;
  for (size_t i = 0; i < kMessages; ++i) {
    const size_t size = i % 3 * 1000;
    all = std::move(all) + Encoded({.frame_bytes = 5, .payload_bytes = size}) + Text("frame");
    all.insert(all.end(), payload.begin(), payload.begin() + static_cast<ptrdiff_t>(size));
  }
  hasty.Connect().Send(all);
  ASSERT_TRUE(peer_.WaitMessages(kMessages));
  const auto received = peer_.TakeReceived();
  for (size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(received[i]->frame, "frame");
    EXPECT_EQ(received[i]->payload.size(), i % 3 * 1000);
    EXPECT_TRUE(HasPattern(5, received[i]->payload));
  }
}

TEST_F(TcpTransportTest, FailsWhatIsCutOff) {
  Start();
  RawPeer gone(address_);
  gone.Connect().Send(Hello() + Encoded({.payload_bytes = 1 << 20}) + Bytes(1000));
  ASSERT_TRUE(peer_.WaitAccepted(1));
  gone.EndSending();
  ASSERT_TRUE(peer_.WaitClosed(peer_.accepted()[0]));
  EXPECT_TRUE(absl::IsUnavailable(peer_.closed_with(peer_.accepted()[0])));
  const auto received = peer_.TakeReceived();
  ASSERT_EQ(received.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(received[0]->status));
}

TEST_F(TcpTransportTest, WhatWasSentArrivesAlthoughTheSenderCloses) {
  Start();
  const ConnectionId connection = Connect();
  const Bytes payload(100'000);
  constexpr size_t kMessages = 20;
  for (size_t i = 0; i < kMessages; ++i) {
    client_->Send(connection, {.payload = {payload}, .sent = client_peer_.CountSent()});
  }
  ASSERT_TRUE(client_peer_.WaitSent(kMessages));
  client_->Close(connection, absl::OkStatus());
  ASSERT_TRUE(peer_.WaitMessages(kMessages));
  for (const auto& received : peer_.TakeReceived()) EXPECT_TRUE(received->status.ok());
}

TEST_F(TcpTransportTest, SpeaksBothFamiliesAtOnce) {
  Start({}, "[::1]:0");
  EXPECT_THAT(address_, testing::StartsWith("[::1]:"));
  TransportPeer other_peer;
  const auto other = *CreateTcpTransport({}, &other_peer);
  const auto other_address = other->Listen("127.0.0.2:0");
  ASSERT_TRUE(other_address.ok()) << other_address.status();
  ExpectStillServes(Connect());
  ExpectStillServes(Connect(*other_address));
  EXPECT_EQ(client_->Stats().connections, 2u);
  EXPECT_EQ(client_->Stats().profile, "tcp (lo)");
  client_->Shutdown(absl::Seconds(5));
  other->Shutdown(absl::Seconds(5));
}

TEST_F(TcpTransportTest, OpensNoPortButItsOwn) {
  Start();
  Connect();
  EXPECT_EQ(ListeningSockets(getpid()).size(), 1u);
  EXPECT_THAT(ListeningBeyondLoopback(getpid()), IsEmpty());
}

TEST_F(TcpTransportTest, WaitsForDescriptorsWithoutSpinning) {
  Start();
  const ConnectionId honest = Connect();
  RawPeer waiting(address_);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};  // poll looks at it, too
  setrlimit(RLIMIT_NOFILE, &none);
  waiting.Connect().Send(Hello());
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
  };
  const absl::Duration begin = cpu();
  EXPECT_FALSE(waiting.WaitReadable(/*timeout_ms=*/500));
  EXPECT_LT(cpu() - begin, absl::Milliseconds(100));
  ExpectStillServes(honest);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(waiting.WaitReadable());
  EXPECT_TRUE(peer_.WaitAccepted(2));
}

}  // namespace
}  // namespace terrace
