// A process for tests to kill and to stop: connects to the given address and sends 4 MiB payloads
// as fast as it can, while it takes whatever it is sent. Runs until its standard input ends.
#include <unistd.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "cluster/tcp_transport.h"
#include "cluster/ucx_transport.h"
#include "fmt/format.h"

namespace terrace {
namespace {

constexpr size_t kPayloadBytes = 4 << 20;
constexpr int kOutstanding = 4;

class Child : public TransportHandler {
 public:
  void Use(Transport* transport) { transport_ = transport; }
  void OnOpen(ConnectionId connection, bool) override {
    for (int i = 0; i < kOutstanding; ++i) SendOne(connection);
  }
  Landing OnMessage(ConnectionId, ByteSpan, uint64_t) override {
    Landing landing;
    landing.pieces.push_back(MutableByteSpan(inbox_));
    return landing;
  }
  void OnClose(ConnectionId, const absl::Status& why) override {
    fmt::print(stderr, "child: {}\n", why.ToString());
  }

 private:
  void SendOne(ConnectionId connection) {
    OutgoingMessage message{.frame = std::vector<std::byte>(100), .payload = {outbox_}};
    message.sent = [this, connection](absl::Status status) {
      if (status.ok()) SendOne(connection);
    };
    transport_->Send(connection, std::move(message));
  }

  Transport* transport_ = nullptr;
  std::vector<std::byte> outbox_ = std::vector<std::byte>(kPayloadBytes);
  std::vector<std::byte> inbox_ = std::vector<std::byte>(kPayloadBytes);
};

int Run(const std::string& address, bool rdma) {
  std::unique_ptr<UcxContext> context;
  if (rdma) {
    auto created = UcxContext::Create();
    if (!created.ok()) return 1;
    context = *std::move(created);
  }
  Child child;
  auto transport =
      rdma ? CreateUcxTransport(context.get(), {}, &child) : CreateTcpTransport({}, &child);
  if (!transport.ok()) return 1;
  child.Use(transport->get());
  if (!(*transport)->Connect(address, absl::Seconds(10)).ok()) return 1;
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  (*transport)->Shutdown(absl::Seconds(1));
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: transport_child ADDRESS tcp|rdma\n");
    return 2;
  }
  return terrace::Run(argv[1], /*rdma=*/std::string_view(argv[2]) == "rdma");
}
