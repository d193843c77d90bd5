#include "tests/bench/transport_loop.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cluster/tcp_transport.h"
#include "fmt/format.h"
#include "proto/checksum.h"
#include "proto/mutex.h"
#include "proto/status.h"

namespace terrace {
namespace {

enum class Kind : uint32_t { kRequest, kData, kAck, kAskCpu, kCpu };

struct Frame {
  Kind kind;
  uint32_t block_bytes = 0;
  double cpu_seconds = 0;
};

// Both sides: answers requests with blocks, and blocks with acknowledgements.
class Party : public TransportHandler {
 public:
  explicit Party(TransportLoopOptions options) : options_(options) {}

  absl::Status Start() {
    TERRACE_ASSIGN_OR_RETURN(transport_, CreateTcpTransport({}, this));
    return absl::OkStatus();
  }
  ~Party() override {
    if (transport_) transport_->Shutdown(absl::Seconds(1));
  }

  void OnOpen(ConnectionId connection, bool) override {
    MutexLock lock(&mutex_);
    connection_ = connection;
    changed_.SignalAll();
  }
  void OnClose(ConnectionId, const absl::Status&) override {
    MutexLock lock(&mutex_);
    lost_ = true;
    changed_.SignalAll();
  }
  Landing OnMessage(ConnectionId connection, ByteSpan bytes, uint64_t payload_bytes) override;

  void Send(ConnectionId connection, const Frame& frame, ByteSpan payload = {}) {
    OutgoingMessage message;
    const ByteSpan bytes = std::as_bytes(std::span(&frame, 1));
    message.frame.assign(bytes.begin(), bytes.end());
    if (!payload.empty()) message.payload.push_back(payload);
    transport_->Send(connection, std::move(message));
  }
  Transport* transport() { return transport_.get(); }

  // The near side's round. `count` blocks, `in_flight` at a time.
  absl::Status Move(uint64_t count, uint32_t block_bytes, int in_flight, BenchDirection direction);
  absl::StatusOr<double> FarCpu();
  absl::Status WaitOpen();

 private:
  void Ask(ConnectionId connection);
  void Done(ConnectionId connection);
  absl::Status Wait(const std::function<bool()>& condition);

  const TransportLoopOptions options_;
  std::unique_ptr<Transport> transport_;
  ColdMemory memory_;
  uint32_t checksum_ = 0;

  // Of the transport's thread, between the start of a round and its end.
  uint64_t to_ask_ = 0, to_finish_ = 0;
  uint32_t block_bytes_ = 0;
  BenchDirection direction_ = BenchDirection::kGet;

  Mutex mutex_;
  CondVar changed_;
  ConnectionId connection_ ABSL_GUARDED_BY(mutex_) = 0;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  double far_cpu_ ABSL_GUARDED_BY(mutex_) = -1;
};

Landing Party::OnMessage(ConnectionId connection, ByteSpan bytes, uint64_t payload_bytes) {
  Frame frame{};
  if (bytes.size() == sizeof(frame)) std::memcpy(&frame, bytes.data(), sizeof(frame));
  switch (frame.kind) {
    case Kind::kRequest:
      Send(connection, {.kind = Kind::kData}, memory_.Next(frame.block_bytes));
      return {};
    case Kind::kAskCpu:
      Send(connection, {.kind = Kind::kCpu, .cpu_seconds = ProcessCpuSeconds()});
      return {};
    case Kind::kCpu: {
      MutexLock lock(&mutex_);
      far_cpu_ = frame.cpu_seconds;
      changed_.SignalAll();
      return {};
    }
    case Kind::kAck:
      Done(connection);
      return {};
    case Kind::kData:
      break;
  }
  Landing landing;
  landing.pieces.push_back(memory_.Next(payload_bytes));
  if (options_.checksum) {
    landing.progress = [this](ByteSpan part) { checksum_ = Crc32c(part, checksum_); };
  }
  landing.landed = [this, connection](const absl::Status&) {
    if (to_finish_ > 0) {
      Done(connection);
    } else {
      Send(connection, {.kind = Kind::kAck});
    }
  };
  return landing;
}

void Party::Ask(ConnectionId connection) {
  --to_ask_;
  if (direction_ == BenchDirection::kPut) {
    Send(connection, {.kind = Kind::kData}, memory_.Next(block_bytes_));
  } else {
    Send(connection, {.kind = Kind::kRequest, .block_bytes = block_bytes_});
  }
}

void Party::Done(ConnectionId connection) {
  if (to_ask_ > 0) Ask(connection);
  if (--to_finish_ > 0) return;
  MutexLock lock(&mutex_);
  finished_ = true;
  changed_.SignalAll();
}

absl::Status Party::Wait(const std::function<bool()>& condition) {
  MutexLock lock(&mutex_);
  while (!condition()) {
    if (lost_) return absl::UnavailableError("the far side is gone");
    changed_.WaitWithTimeout(&mutex_, absl::Seconds(1));
  }
  return absl::OkStatus();
}

absl::Status Party::WaitOpen() {
  return Wait([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return connection_ != 0; });
}

absl::Status Party::Move(uint64_t count, uint32_t block_bytes, int in_flight,
                         BenchDirection direction) {
  ConnectionId connection = 0;
  {
    MutexLock lock(&mutex_);
    finished_ = false;
    connection = connection_;
  }
  transport_->Post([=, this] {
    to_ask_ = to_finish_ = count;
    block_bytes_ = block_bytes;
    direction_ = direction;
    for (int i = 0; i < in_flight && to_ask_ > 0; ++i) Ask(connection);
  });
  return Wait([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return finished_; });
}

absl::StatusOr<double> Party::FarCpu() {
  ConnectionId connection = 0;
  {
    MutexLock lock(&mutex_);
    far_cpu_ = -1;
    connection = connection_;
  }
  Send(connection, {.kind = Kind::kAskCpu});
  TERRACE_RETURN_IF_ERROR(Wait([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return far_cpu_ >= 0; }));
  MutexLock lock(&mutex_);
  return far_cpu_;
}

class TransportLoop : public BenchLoop {
 public:
  explicit TransportLoop(TransportLoopOptions options) : options_(options), party_(options) {}

  absl::Status Start() {
    TERRACE_ASSIGN_OR_RETURN(
        far_, FarProcess::Start(options_.checksum ? "transport-checksum" : "transport"));
    TERRACE_RETURN_IF_ERROR(party_.Start());
    TERRACE_RETURN_IF_ERROR(
        party_.transport()->Connect(far_->address(), absl::Seconds(10)).status());
    return party_.WaitOpen();
  }
  absl::Status Setup(uint64_t block_bytes, int in_flight, BenchDirection direction) override {
    block_bytes_ = static_cast<uint32_t>(block_bytes);
    in_flight_ = in_flight;
    direction_ = direction;
    return Run(64 << 20).status();
  }
  absl::StatusOr<BenchRound> Run(uint64_t bytes) override {
    TERRACE_ASSIGN_OR_RETURN(const double far_before, party_.FarCpu());
    const double near_before = ProcessCpuSeconds();
    const double begin = NowSeconds();
    const uint64_t count = std::max<uint64_t>(1, (bytes + block_bytes_ - 1) / block_bytes_);
    TERRACE_RETURN_IF_ERROR(party_.Move(count, block_bytes_, in_flight_, direction_));
    BenchRound round{.seconds = NowSeconds() - begin,
                     .near_cpu_seconds = ProcessCpuSeconds() - near_before};
    TERRACE_ASSIGN_OR_RETURN(const double far_after, party_.FarCpu());
    round.far_cpu_seconds = far_after - far_before;
    return round;
  }

 private:
  const TransportLoopOptions options_;
  std::unique_ptr<FarProcess> far_;
  Party party_;
  uint32_t block_bytes_ = 0;
  int in_flight_ = 1;
  BenchDirection direction_ = BenchDirection::kGet;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchLoop>> CreateTransportLoop(TransportLoopOptions options) {
  auto loop = std::make_unique<TransportLoop>(options);
  TERRACE_RETURN_IF_ERROR(loop->Start());
  return loop;
}

int ServeTransportLoop(TransportLoopOptions options) {
  Party party(options);
  if (!party.Start().ok()) return 1;
  const auto address = party.transport()->Listen("127.0.0.1:0");
  if (!address.ok()) return 1;
  fmt::print("{}\n", *address);
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}

}  // namespace terrace
