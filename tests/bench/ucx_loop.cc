#include "tests/bench/ucx_loop.h"

#include <poll.h>
#include <ucs/config/global_opts.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "cluster/socket_address.h"
#include "cluster/ucx_handles.h"
#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr uint64_t kPieceBytes = 64 << 10;  // with its header, in one segment
constexpr uint64_t kCalibrationBytes = 256 << 20;
constexpr int kMaxSlots = 64;

enum class Kind : uint32_t { kSetup, kRequest, kData, kAck, kAskCpu, kCpu };

struct Header {
  Kind kind;
  uint32_t slot = 0;
  uint64_t block_bytes = 0;
  uint64_t offset = 0;
  double cpu_seconds = 0;
  uint32_t whole = 0;  // one active message per block, however large
  uint32_t polling = 0;
};

// Those with which UCX is fastest over TCP: eager and buffered, and segments that hold a piece and
// its header. The environment has the last word.
constexpr std::pair<const char*, const char*> kSettings[] = {
    {"WARN_INVALID_CONFIG", "n"}, {"TLS", "tcp"},         {"NET_DEVICES", "lo"},
    {"AF_PRIO", "inet"},          {"RNDV_THRESH", "inf"}, {"ZCOPY_THRESH", "inf"},
    {"PUT_ENABLE", "n"},          {"TX_SEG_SIZE", "72k"}, {"RX_SEG_SIZE", "72k"},
    {"CM_USE_ALL_DEVICES", "n"},  {"MEMTYPE_CACHE", "n"},
};

absl::StatusOr<UcxContextHandle> InitUcx() {
  ucs_global_opts_set_value("LOG_LEVEL", "fatal");  // it would speak on stdout
  ucp_config_t* raw_config = nullptr;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_config_read(nullptr, nullptr, &raw_config), "UCX settings"));
  const UcxConfig config(raw_config);
  for (const auto& [name, value] : kSettings) {
    for (const std::string& full : {std::string(name), std::string("TCP_") + name}) {
      if (std::getenv(("UCX_" + full).c_str()) != nullptr) continue;
      ucp_config_modify(config.get(), full.c_str(), value);  // one of the two is known
    }
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_init(&params, config.get(), &context), "UCX"));
  return UcxContextHandle(context);
}

// One process's half: a worker, an endpoint, blocks on their way in and out.
class LoopEnd {
 public:
  using OnHeader = std::function<void(const Header&)>;

  absl::Status Init(OnHeader on_header, OnHeader on_block);
  absl::Status Listen(std::string* address);
  absl::Status Connect(const std::string& address);

  void Send(const Header& header) { Post(header, {}); }
  void SendBlock(const Header& setup, uint32_t slot);
  // One turn of the wheel; sleeps when nothing happens unless polling.
  void Turn(bool polling);

  bool lost() const { return lost_; }
  int stdin_fd = -1;  // its end ends the wait

 private:
  struct Posted {
    LoopEnd* end;
    Header header;
  };
  void Post(const Header& header, ByteSpan data);
  static ucs_status_t OnMessage(void* self, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t*);
  static void OnSent(void* request, ucs_status_t status, void* posted);
  void Take(const Header& header, ByteSpan data);
  absl::Status UseEndpoint(ucp_ep_params_t* params);

  UcxContextHandle context_;
  UcxWorker worker_;
  UcxListener listener_;
  ucp_ep_h endpoint_ = nullptr;
  int descriptor_ = -1;
  OnHeader on_header_, on_block_;
  bool lost_ = false;
  ucp_conn_request_h request_ = nullptr;
  std::vector<std::unique_ptr<Posted>> all_;
  std::vector<Posted*> idle_;
  std::vector<Header> received_;  // handled outside UCX's callbacks
  ColdMemory memory_;
  struct Slot {
    MutableByteSpan block;
    uint64_t arrived = 0;
  };
  Slot slots_[kMaxSlots];
};

absl::Status LoopEnd::Init(OnHeader on_header, OnHeader on_block) {
  on_header_ = std::move(on_header);
  on_block_ = std::move(on_block);
  TERRACE_ASSIGN_OR_RETURN(context_, InitUcx());
  ucp_worker_params_t params{};
  ucp_worker_h worker = nullptr;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_worker_create(context_.get(), &params, &worker), "worker"));
  worker_.reset(worker);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.cb = &LoopEnd::OnMessage;
  handler.arg = this;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_worker_set_am_recv_handler(worker, &handler), "handler"));
  return FromUcx(ucp_worker_get_efd(worker, &descriptor_), "event fd");
}

absl::Status LoopEnd::UseEndpoint(ucp_ep_params_t* params) {
  params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params->err_handler = {
      .cb = [](void* self, ucp_ep_h, ucs_status_t) { static_cast<LoopEnd*>(self)->lost_ = true; },
      .arg = this};
  return FromUcx(ucp_ep_create(worker_.get(), params, &endpoint_), "endpoint");
}

absl::Status LoopEnd::Listen(std::string* address) {
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress socket, ParseSocketAddress("127.0.0.1:0", true));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {.addr = socket.get(), .addrlen = socket.length};
  params.conn_handler = {.cb = [](ucp_conn_request_h request,
                                  void* self) { static_cast<LoopEnd*>(self)->request_ = request; },
                         .arg = this};
  ucp_listener_h listener = nullptr;
  TERRACE_RETURN_IF_ERROR(
      FromUcx(ucp_listener_create(worker_.get(), &params, &listener), "listener"));
  listener_.reset(listener);
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_listener_query(listener, &attributes), "listener"));
  *address = FormatSocketAddress(attributes.sockaddr);
  return absl::OkStatus();
}

absl::Status LoopEnd::Connect(const std::string& address) {
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress socket, ParseSocketAddress(address, true));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {.addr = socket.get(), .addrlen = socket.length};
  return UseEndpoint(&params);
}

void LoopEnd::Post(const Header& header, ByteSpan data) {
  if (idle_.empty()) {
    all_.push_back(std::make_unique<Posted>());
    idle_.push_back(all_.back().get());
  }
  Posted* const posted = idle_.back();
  idle_.pop_back();
  *posted = {this, header};
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = &LoopEnd::OnSent;
  params.user_data = posted;
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, 0, &posted->header, sizeof(Header),
                                                   data.data(), data.size(), &params);
  if (UCS_PTR_IS_ERR(request)) lost_ = true;
  if (!UCS_PTR_IS_PTR(request)) idle_.push_back(posted);
}

void LoopEnd::OnSent(void* request, ucs_status_t, void* user_data) {
  ucp_request_free(request);
  auto* const posted = static_cast<Posted*>(user_data);
  posted->end->idle_.push_back(posted);
}

void LoopEnd::SendBlock(const Header& setup, uint32_t slot) {
  const ByteSpan block = memory_.Next(setup.block_bytes);
  const uint64_t piece = setup.whole != 0 ? block.size() : kPieceBytes;
  for (uint64_t offset = 0; offset < block.size(); offset += piece) {
    const Header header{.kind = Kind::kData,
                        .slot = slot,
                        .block_bytes = block.size(),
                        .offset = offset,
                        .whole = setup.whole};
    Post(header, block.subspan(offset, std::min(piece, block.size() - offset)));
  }
}

ucs_status_t LoopEnd::OnMessage(void* self, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t*) {
  Header copy{};
  if (header_length == sizeof(copy)) std::memcpy(&copy, header, sizeof(copy));
  static_cast<LoopEnd*>(self)->Take(copy, {static_cast<const std::byte*>(data), length});
  return UCS_OK;
}

void LoopEnd::Take(const Header& header, ByteSpan data) {
  if (header.kind != Kind::kData) {
    received_.push_back(header);
    return;
  }
  Slot& slot = slots_[header.slot % kMaxSlots];
  if (slot.arrived == 0) slot.block = memory_.Next(header.block_bytes);
  std::memcpy(slot.block.data() + header.offset, data.data(), data.size());
  slot.arrived += data.size();
  if (slot.arrived < header.block_bytes) return;
  slot.arrived = 0;
  received_.push_back(header);
}

void LoopEnd::Turn(bool polling) {
  unsigned happened = ucp_worker_progress(worker_.get());
  if (request_ != nullptr) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = std::exchange(request_, nullptr);
    if (!UseEndpoint(&params).ok()) lost_ = true;
  }
  for (const Header& header : std::exchange(received_, {})) {
    header.kind == Kind::kData ? on_block_(header) : on_header_(header);
    ++happened;
  }
  if (happened > 0 || polling || ucp_worker_arm(worker_.get()) != UCS_OK) return;
  pollfd waits[] = {{.fd = descriptor_, .events = POLLIN}, {.fd = stdin_fd, .events = POLLIN}};
  poll(waits, 2, /*timeout=*/1000);
  if (waits[1].revents != 0) lost_ = true;
}

// --- The near side ---------------------------------------------------------------------------

class UcxLoop : public BenchLoop {
 public:
  absl::Status Start();
  absl::Status Setup(uint64_t block_bytes, int in_flight, BenchDirection direction) override;
  absl::StatusOr<BenchRound> Run(uint64_t bytes) override;

 private:
  absl::Status UsePolling(bool polling);
  absl::StatusOr<BenchRound> Move(uint64_t bytes);
  void Ask(uint32_t slot);
  void Done(const Header& header);
  absl::StatusOr<double> FarCpu();

  std::unique_ptr<FarProcess> far_;
  LoopEnd end_;
  Header setup_{.kind = Kind::kSetup};
  bool polling_ = false;  // within rounds
  BenchDirection direction_ = BenchDirection::kGet;
  int in_flight_ = 1;
  uint64_t to_ask_ = 0, done_ = 0, wanted_ = 0;
  double far_cpu_ = -1;
};

absl::Status UcxLoop::Start() {
  TERRACE_ASSIGN_OR_RETURN(far_, FarProcess::Start("loop"));
  TERRACE_RETURN_IF_ERROR(end_.Init(
      [this](const Header& header) {
        if (header.kind == Kind::kCpu) far_cpu_ = header.cpu_seconds;
        if (header.kind == Kind::kAck) Done(header);
      },
      [this](const Header& header) { Done(header); }));
  TERRACE_RETURN_IF_ERROR(end_.Connect(far_->address()));
  return FarCpu().status();  // and so the connection is up
}

void UcxLoop::Ask(uint32_t slot) {
  --to_ask_;
  if (direction_ == BenchDirection::kPut) {
    end_.SendBlock(setup_, slot);
  } else {
    end_.Send({.kind = Kind::kRequest, .slot = slot});
  }
}

void UcxLoop::Done(const Header& header) {
  ++done_;
  if (to_ask_ > 0) Ask(header.slot);
}

absl::StatusOr<double> UcxLoop::FarCpu() {
  far_cpu_ = -1;
  end_.Send({.kind = Kind::kAskCpu});
  while (far_cpu_ < 0 && !end_.lost()) end_.Turn(/*polling=*/false);
  if (end_.lost()) return absl::UnavailableError("the far side is gone");
  return far_cpu_;
}

absl::Status UcxLoop::UsePolling(bool polling) {
  setup_.polling = polling;
  end_.Send(setup_);
  return FarCpu().status();  // and so the far side has it
}

absl::Status UcxLoop::Setup(uint64_t block_bytes, int in_flight, BenchDirection direction) {
  setup_.block_bytes = block_bytes;
  direction_ = direction;
  in_flight_ = in_flight;
  double best = 0;
  std::pair<bool, bool> best_way;
  for (const bool whole : {false, true}) {
    for (const bool polling : {false, true}) {
      setup_.whole = whole;
      polling_ = polling;
      TERRACE_RETURN_IF_ERROR(Run(kCalibrationBytes / 8).status());
      TERRACE_ASSIGN_OR_RETURN(const BenchRound round, Run(kCalibrationBytes));
      if (best != 0 && round.seconds >= best) continue;
      best = round.seconds;
      best_way = {whole, polling};
    }
  }
  std::tie(setup_.whole, polling_) = best_way;
  return absl::OkStatus();
}

absl::StatusOr<BenchRound> UcxLoop::Run(uint64_t bytes) {
  TERRACE_RETURN_IF_ERROR(UsePolling(polling_));
  const auto round = Move(bytes);
  // The far side must not burn its core while others are measured.
  TERRACE_RETURN_IF_ERROR(UsePolling(false));
  return round;
}

absl::StatusOr<BenchRound> UcxLoop::Move(uint64_t bytes) {
  TERRACE_ASSIGN_OR_RETURN(const double far_before, FarCpu());
  const double near_before = ProcessCpuSeconds();
  const double begin = NowSeconds();
  wanted_ = std::max<uint64_t>(1, (bytes + setup_.block_bytes - 1) / setup_.block_bytes);
  to_ask_ = wanted_;
  done_ = 0;
  for (int slot = 0; slot < in_flight_ && to_ask_ > 0; ++slot) Ask(slot);
  while (done_ < wanted_ && !end_.lost()) end_.Turn(setup_.polling != 0);
  BenchRound round{.seconds = NowSeconds() - begin,
                   .near_cpu_seconds = ProcessCpuSeconds() - near_before};
  TERRACE_ASSIGN_OR_RETURN(const double far_after, FarCpu());
  round.far_cpu_seconds = far_after - far_before;
  return round;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchLoop>> CreateUcxLoop() {
  auto loop = std::make_unique<UcxLoop>();
  TERRACE_RETURN_IF_ERROR(loop->Start());
  return loop;
}

int ServeUcxLoop() {
  LoopEnd end;
  Header setup{.kind = Kind::kSetup};
  const absl::Status ready = end.Init(
      [&](const Header& header) {
        if (header.kind == Kind::kSetup) setup = header;
        if (header.kind == Kind::kRequest) end.SendBlock(setup, header.slot);
        if (header.kind == Kind::kAskCpu) {
          end.Send({.kind = Kind::kCpu, .cpu_seconds = ProcessCpuSeconds()});
        }
      },
      [&](const Header& header) { end.Send({.kind = Kind::kAck, .slot = header.slot}); });
  std::string address;
  if (!ready.ok() || !end.Listen(&address).ok()) return 1;
  fmt::print("{}\n", address);
  std::fflush(stdout);
  end.stdin_fd = STDIN_FILENO;
  while (!end.lost()) end.Turn(setup.polling != 0);
  return 0;
}

}  // namespace terrace
