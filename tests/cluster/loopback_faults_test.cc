// The faults that the in-process twin can play.
#include "cluster/loopback_transport.h"
#include "gtest/gtest.h"
#include "tests/cluster/transport_peer.h"

namespace terrace {
namespace {

class LoopbackFaults : public testing::Test {
 protected:
  void SetUp() override {
    server_ = CreateLoopbackTransport(network_.get(), {}, &server_peer_);
    client_ = CreateLoopbackTransport(network_.get(), {}, &client_peer_);
    address_ = *server_->Listen("127.0.0.1:0");
    connection_ = *client_->Connect(address_, absl::Seconds(10));
    ASSERT_TRUE(client_peer_.WaitOpen(connection_));
    ASSERT_TRUE(server_peer_.WaitAccepted(1));
    FillPattern(1, MutableByteSpan(payload_));
  }
  void TearDown() override {
    client_->Shutdown(absl::Seconds(1));
    server_->Shutdown(absl::Seconds(1));
    EXPECT_TRUE(client_peer_.complaints().empty());
    EXPECT_TRUE(server_peer_.complaints().empty());
  }
  void Send() {
    client_->Send(connection_, {.payload = {payload_}, .sent = client_peer_.CountSent()});
  }

  std::unique_ptr<LoopbackNetwork> network_ = LoopbackNetwork::Create();
  TransportPeer server_peer_, client_peer_;
  std::unique_ptr<Transport> server_, client_;
  std::string address_;
  ConnectionId connection_ = 0;
  std::vector<std::byte> payload_ = std::vector<std::byte>(1 << 20);
};

TEST_F(LoopbackFaults, AFrozenPeerIsSilentAndComesBack) {
  network_->Freeze(address_, true);
  Send();
  const ConnectionId unanswered = *client_->Connect(address_, absl::Milliseconds(20));
  ASSERT_TRUE(client_peer_.WaitClosed(unanswered));
  EXPECT_TRUE(absl::IsDeadlineExceeded(client_peer_.closed_with(unanswered)));
  EXPECT_TRUE(client_peer_.sent().empty());
  EXPECT_EQ(client_peer_.open_count(), 1u);
  network_->Freeze(address_, false);
  ASSERT_TRUE(client_peer_.WaitSent(1));
  ASSERT_TRUE(server_peer_.WaitMessages(1));
  EXPECT_TRUE(HasPattern(1, server_peer_.TakeReceived()[0]->payload));
}

TEST_F(LoopbackFaults, AFrozenPeerCanBeLeft) {
  network_->Freeze(address_, true);
  Send();
  client_->Close(connection_, absl::OkStatus());
  ASSERT_TRUE(client_peer_.WaitClosed(connection_));
  EXPECT_TRUE(absl::IsUnavailable(client_peer_.sent()[0]));
  EXPECT_EQ(server_peer_.open_count(), 1u);
  network_->Freeze(address_, false);
  EXPECT_TRUE(server_peer_.WaitClosed(server_peer_.accepted()[0]));
}

TEST_F(LoopbackFaults, ACutConnectionTearsOnePayload) {
  network_->CutAfter(address_, payload_.size() + payload_.size() / 2);
  for (int i = 0; i < 3; ++i) Send();
  ASSERT_TRUE(client_peer_.WaitClosed(connection_));
  ASSERT_TRUE(server_peer_.WaitClosed(server_peer_.accepted()[0]));
  EXPECT_TRUE(absl::IsUnavailable(client_peer_.closed_with(connection_)));
  ASSERT_EQ(client_peer_.sent().size(), 3u);
  const auto received = server_peer_.TakeReceived();
  ASSERT_EQ(received.size(), 2u);
  EXPECT_TRUE(received[0]->status.ok());
  EXPECT_TRUE(absl::IsUnavailable(received[1]->status));
  // The cut was spent; a new connection is whole.
  const ConnectionId again = *client_->Connect(address_, absl::Seconds(10));
  EXPECT_TRUE(client_peer_.WaitOpen(again));
}

}  // namespace
}  // namespace terrace
