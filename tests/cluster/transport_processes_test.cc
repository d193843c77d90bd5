// What only real processes can show of a transport: death, silence, idleness.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/clock.h"
#include "tests/cluster/transport_fabric.h"
#include "tests/cluster/transport_peer.h"
#include "tests/support/descriptors.h"

extern char** environ;

namespace terrace {
namespace {

using ::testing::IsEmpty;

constexpr absl::Duration kTimeout = absl::Seconds(10);

// tests/cluster/transport_child, killed at the end at the latest.
class ChildProcess {
 public:
  ChildProcess(const std::string& address, FabricKind kind) {
    const std::string program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../bin/transport_child";
    const char* const name = kind == FabricKind::kTcp ? "tcp" : "rdma";
    char* const arguments[] = {const_cast<char*>(program.c_str()),
                               const_cast<char*>(address.c_str()), const_cast<char*>(name),
                               nullptr};
    int pipe_ends[2];
    EXPECT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
    input_ = pipe_ends[1];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[0], STDIN_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_ends[0]);
  }
  ~ChildProcess() {
    Kill();
    close(input_);
  }
  void Signal(int signal) {
    if (pid_ > 0) kill(pid_, signal);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  int input_ = -1;
};

class TransportProcesses : public testing::TestWithParam<FabricKind> {
 protected:
  void Start(uint32_t max_queued_messages = 4096, uint32_t max_connections = 1024) {
    server_ = fabric_.Make(&peer_, max_queued_messages, max_connections);
    const auto bound = server_->Listen("127.0.0.1:0");
    ASSERT_TRUE(bound.ok()) << bound.status();
    address_ = *bound;
  }
  void TearDown() override {
    if (server_) server_->Shutdown(absl::Seconds(5));
    EXPECT_THAT(peer_.complaints(), IsEmpty());
    EXPECT_EQ(peer_.open_count(), 0u);
  }
  // Sends `payload` over and over until the connection is lost.
  void KeepSending(ConnectionId connection, ByteSpan payload) {
    OutgoingMessage message{.frame = std::vector<std::byte>(64), .payload = {payload}};
    message.sent = [this, connection, payload](absl::Status status) {
      if (status.ok()) KeepSending(connection, payload);
    };
    server_->Send(connection, std::move(message));
  }
  void ExpectStillServes() {
    TransportPeer client_peer;
    auto client = fabric_.Make(&client_peer);
    const auto connection = client->Connect(address_, kTimeout);
    ASSERT_TRUE(connection.ok());
    ASSERT_TRUE(client_peer.WaitOpen(*connection)) << client_peer.closed_with(*connection);
    client->Shutdown(absl::Seconds(5));
  }

  TransportFabric fabric_{GetParam()};
  TransportPeer peer_;
  std::unique_ptr<Transport> server_;
  std::string address_;
};

TEST_P(TransportProcesses, SurvivesKilledPeers) {
  constexpr int kPeers = 20;
  Start();
  std::atomic<int> landings{0};
  std::vector<std::byte> inbox(4 << 20);
  const std::vector<std::byte> outbox(4 << 20);
  peer_.SetLander([&](ConnectionId, ByteSpan, uint64_t) {
    Landing landing;
    landing.pieces.push_back(MutableByteSpan(inbox));
    landing.landed = [&](absl::Status) {
      ++landings;
      peer_.Changed();
    };
    return landing;
  });
  std::mt19937 random(7);
  size_t descriptors = 0;
  for (int i = 0; i < kPeers; ++i) {
    ChildProcess child(address_, GetParam());
    ASSERT_TRUE(peer_.WaitAccepted(i + 1));
    const ConnectionId connection = peer_.accepted()[i];
    for (int stream = 0; stream < 3; ++stream) KeepSending(connection, outbox);
    // In the middle of it, at a different place each time.
    const int enough = landings + 2 + static_cast<int>(random() % 8);
    ASSERT_TRUE(peer_.WaitUntil([&] { return landings >= enough; }));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    child.Kill();
    ASSERT_TRUE(peer_.WaitClosed(connection));
    EXPECT_TRUE(absl::IsUnavailable(peer_.closed_with(connection)));
    EXPECT_EQ(server_->Stats().connections, 0u);
    EXPECT_EQ(server_->Stats().payload_in_flight, 0u);
    if (i == 0) descriptors = OpenDescriptors();
  }
  ExpectStillServes();
  EXPECT_LE(OpenDescriptors(), descriptors + 1);
}

TEST_P(TransportProcesses, StoppedPeerHoldsLittleAndClosesAtOnce) {
  Start(/*max_queued_messages=*/32);
  ChildProcess child(address_, GetParam());
  ASSERT_TRUE(peer_.WaitAccepted(1));
  const ConnectionId connection = peer_.accepted()[0];
  child.Signal(SIGSTOP);
  const std::vector<std::byte> payload(4 << 20);
  constexpr size_t kMessages = 100;
  for (size_t i = 0; i < kMessages; ++i) {
    server_->Send(
        connection,
        {.frame = std::vector<std::byte>(10), .payload = {payload}, .sent = peer_.CountSent()});
  }
  // Those that the queue has no room for come back at once.
  ASSERT_TRUE(peer_.WaitSent(kMessages - 40));
  EXPECT_LE(server_->Stats().payload_in_flight, 8u << 20);
  const absl::Duration begin = Clock::Real()->Now();
  server_->Close(connection, absl::DeadlineExceededError("silent"));
  ASSERT_TRUE(peer_.WaitClosed(connection));
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Milliseconds(500));  // 100 on an idle machine
  EXPECT_TRUE(absl::IsDeadlineExceeded(peer_.closed_with(connection)));
  EXPECT_EQ(peer_.sent().size(), kMessages);
  EXPECT_EQ(server_->Stats().payload_in_flight, 0u);
  ExpectStillServes();
}

TEST_P(TransportProcesses, TurnsAwayMoreThanItsConnections) {
  Start(4096, /*max_connections=*/2);
  TransportPeer client_peer;
  auto client = fabric_.Make(&client_peer);
  std::vector<ConnectionId> connections;
  for (int i = 0; i < 2; ++i) {
    connections.push_back(*client->Connect(address_, kTimeout));
    ASSERT_TRUE(client_peer.WaitOpen(connections.back()));
  }
  const ConnectionId third = *client->Connect(address_, kTimeout);
  ASSERT_TRUE(client_peer.WaitClosed(third));
  EXPECT_TRUE(absl::IsUnavailable(client_peer.closed_with(third)));
  client->Close(connections[0], absl::OkStatus());
  ASSERT_TRUE(peer_.WaitClosed(peer_.accepted()[0]));
  const ConnectionId fourth = *client->Connect(address_, kTimeout);
  EXPECT_TRUE(client_peer.WaitOpen(fourth));
  client->Shutdown(absl::Seconds(5));
}

TEST_P(TransportProcesses, UsesNoCpuWhenIdle) {
  Start();
  TransportPeer client_peer;
  auto client = fabric_.Make(&client_peer);
  for (int i = 0; i < 10; ++i) {
    const ConnectionId connection = *client->Connect(address_, kTimeout);
    ASSERT_TRUE(client_peer.WaitOpen(connection));
  }
  ASSERT_TRUE(peer_.WaitAccepted(10));
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
  };
  const absl::Duration before = cpu();
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the time that is measured
  EXPECT_LT(cpu() - before, absl::Milliseconds(10));
  client->Shutdown(absl::Seconds(5));
}

std::vector<FabricKind> Kinds() {
#ifdef __SANITIZE_THREAD__
  return {FabricKind::kTcp};  // UCX is not instrumented
#else
  return {FabricKind::kTcp, FabricKind::kUcx};
#endif
}

INSTANTIATE_TEST_SUITE_P(All, TransportProcesses, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return ToString(info.param); });

}  // namespace
}  // namespace terrace
