#include "cluster/ucx_transport.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cluster/event_loop.h"
#include "cluster/socket_address.h"
#include "cluster/ucx_context.h"
#include "cluster/ucx_receiver.h"
#include "cluster/ucx_sender.h"
#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/status.h"

namespace terrace {
namespace {

// An accepted peer greets within this, or its place is given to another.
constexpr absl::Duration kGreetingTimeout = absl::Seconds(5);
// How often UCX is asked for the end of a close that announces itself on no descriptor.
constexpr absl::Duration kCloseTick = absl::Milliseconds(1);
// Rounds of UCX progress before the loop looks at everything else.
constexpr int kProgressRounds = 16;
// In UCX's hands at once.
constexpr uint32_t kMaxPieces = 64;
constexpr absl::Duration kListenTimeout = absl::Seconds(5);

enum class ConnectionState {
  kConnecting,  // waits for the peer's welcome
  kAccepted,    // waits for the peer's hello; the handler does not know it yet
  kOpen,
  kFailing,  // will be closed in this turn of the loop
  kClosing,  // UCX lets go
};

struct Connection {
  Connection(ConnectionId id, ucp_ep_h endpoint) : id(id), endpoint(endpoint) {}

  const ConnectionId id;
  const ucp_ep_h endpoint;
  std::unique_ptr<UcxSender> sender;
  std::unique_ptr<UcxReceiver> receiver;
  ConnectionState state = ConnectionState::kConnecting;
  bool announced = false;        // the handler knows it and will hear OnClose
  bool ready = false;            // in the list of connections to pump
  bool endpoint_closed = false;  // UCX has let go of the endpoint
  absl::Status why;
};

class UcxTransport : public Transport, private LoopDriver {
 public:
  UcxTransport(UcxContextImpl* context, UcxTransportOptions options, TransportHandler* handler)
      : context_(context),
        options_(std::move(options)),
        handler_(handler),
        loop_({.thread_name = options_.thread_name, .spin = options_.spin}) {}
  ~UcxTransport() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start();

  absl::StatusOr<std::string> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address, absl::Duration timeout) override;
  void Send(ConnectionId connection, OutgoingMessage message) override;
  void Close(ConnectionId connection, absl::Status why) override;
  void Post(absl::AnyInvocable<void()> work) override { loop_.Post(std::move(work)); }
  void PostAfter(absl::Duration delay, absl::AnyInvocable<void()> work) override {
    loop_.PostAfter(delay, std::move(work));
  }
  absl::Status Register(MutableByteSpan memory) override { return context_->Register(memory); }
  void Unregister(MutableByteSpan memory) override { context_->Unregister(memory); }
  bool streams() const override { return false; }
  TransportStats Stats() const override;
  void Shutdown(absl::Duration deadline) override;

 private:
  // LoopDriver.
  bool Progress() override;
  bool Arm() override { return worker_ == nullptr || ucp_worker_arm(worker_.get()) == UCS_OK; }
  void End() override;

  // Everything below runs on the loop's thread.
  absl::Status Use(const SocketAddress& address);
  absl::Status SetHandlers(ucp_worker_h worker);
  absl::Status SetLimits(ucp_worker_h worker);
  absl::StatusOr<std::string> ListenHere(const SocketAddress& address, const std::string& text);
  void ConnectHere(ConnectionId id, const SocketAddress& address, absl::Duration timeout);
  bool AcceptRequested();
  void Accept(ucp_conn_request_h request);
  absl::StatusOr<Connection*> AddConnection(ConnectionId id, ucp_ep_params_t* params);
  void CloseUnlessOpen(ConnectionId id, absl::Duration timeout);
  void Open(Connection* connection, bool accepted);
  bool PumpReady();
  void Fail(Connection* connection, absl::Status why);
  bool CloseFailing();
  bool FinishClosed();
  void Finish(Connection* connection);
  void TickWhileClosing();
  void BeginShutdown();
  void StopListening();
  void NoteQuiet();
  Connection* Find(ConnectionId id);
  ucs_status_t OnPiece(ByteSpan header, void* data, size_t length,
                       const ucp_am_recv_param_t* params);
  absl::Status TakePiece(Connection* connection, ByteSpan header, void* data, size_t length,
                         bool rendezvous);

  // UCX's callbacks, all from within ucp_worker_progress.
  static ucs_status_t OnActiveMessage(void* self, const void* header, size_t header_length,
                                      void* data, size_t length, const ucp_am_recv_param_t* params);
  static void OnConnectionRequest(ucp_conn_request_h request, void* self);
  static void OnEndpointError(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static void OnEndpointClosed(void* request, ucs_status_t status, void* connection);

  UcxContextImpl* const context_;
  const UcxTransportOptions options_;
  TransportHandler* const handler_;
  UcxSendLimits limits_;
  TransportCounters counters_;
  std::atomic<ConnectionId> next_id_{1};

  // Of the loop's thread.
  UcxWorker worker_;  // from the first address on
  int family_ = AF_UNSPEC;
  UcxListener listener_;
  absl::flat_hash_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  absl::flat_hash_map<ucp_ep_h, Connection*> endpoints_;  // not those being closed
  std::deque<ucp_conn_request_h> requests_;               // to be accepted
  std::vector<Connection*> ready_, failing_, closing_;
  bool ticking_ = false;
  bool shutting_down_ = false;

  Mutex shutdown_mutex_;  // held through Shutdown
  mutable Mutex mutex_;
  CondVar quiet_changed_;
  bool quiet_ ABSL_GUARDED_BY(mutex_) = false;
  std::string lanes_ ABSL_GUARDED_BY(mutex_);

  EventLoop loop_;  // last: its thread uses all of the above
};

absl::Status UcxTransport::Start() {
  TERRACE_RETURN_IF_ERROR(context_->CheckProcess());
  return loop_.Start(this);
}

absl::Status UcxTransport::Use(const SocketAddress& address) {
  if (shutting_down_) return absl::UnavailableError("the transport is shut down");
  const int family = address.storage.ss_family;
  if (worker_ != nullptr && family != family_) {
    if (listener_ != nullptr || !connections_.empty()) {
      return absl::FailedPreconditionError(
          fmt::format("this transport has begun with IPv{}", family_ == AF_INET ? 4 : 6));
    }
    loop_.Watch(-1);
    worker_.reset();  // nothing depends on the old choice any more
  }
  if (worker_ != nullptr) return absl::OkStatus();
  TERRACE_ASSIGN_OR_RETURN(const ucp_context_h context, context_->For(family));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h raw = nullptr;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_worker_create(context, &params, &raw), "UCX worker"));
  UcxWorker worker(raw);

  TERRACE_RETURN_IF_ERROR(SetHandlers(raw));
  TERRACE_RETURN_IF_ERROR(SetLimits(raw));

  int descriptor = -1;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_worker_get_efd(raw, &descriptor), "UCX event fd"));
  loop_.Watch(descriptor);
  worker_ = std::move(worker);
  family_ = family;
  return absl::OkStatus();
}

absl::Status UcxTransport::SetHandlers(ucp_worker_h worker) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kPieceMessageId;
  handler.cb = &UcxTransport::OnActiveMessage;
  handler.arg = this;
  TERRACE_RETURN_IF_ERROR(
      FromUcx(ucp_worker_set_am_recv_handler(worker, &handler), "UCX message handler"));
  // UCX 1.13 leaves the table's other entries uninitialised and calls whatever they hold when a
  // peer names one.
  handler.cb = nullptr;
  for (handler.id = 0; handler.id < kPieceMessageId; ++handler.id) {
    TERRACE_RETURN_IF_ERROR(
        FromUcx(ucp_worker_set_am_recv_handler(worker, &handler), "UCX message handler"));
  }
  return absl::OkStatus();
}

absl::Status UcxTransport::SetLimits(ucp_worker_h worker) {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_worker_query(worker, &attributes), "UCX worker"));
  // An active message that fits where the longest header fits is one fragment on every lane, so
  // that nothing overtakes it.
  const size_t one_fragment = attributes.max_am_header;
  if (one_fragment <= kPieceHeaderBytes) {
    return absl::UnavailableError("UCX lanes are too narrow for a message header");
  }
  limits_ = {.max_header_bytes = std::min(one_fragment, kPieceHeaderBytes + kMaxFrameBytes),
             .segment_bytes = one_fragment,
             .max_pieces = kMaxPieces,
             .max_in_flight_bytes = options_.max_in_flight_bytes,
             .max_queued_messages = options_.max_queued_messages};
  return absl::OkStatus();
}

// --- The callers' side -----------------------------------------------------------------------

absl::StatusOr<std::string> UcxTransport::Listen(const std::string& address) {
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress socket,
                           ParseSocketAddress(address, /*numeric_only=*/true));
  if (loop_.OnThread()) return ListenHere(socket, address);
  struct Answer {
    Mutex mutex;
    CondVar changed;
    absl::StatusOr<std::string> value ABSL_GUARDED_BY(mutex) =
        absl::DeadlineExceededError("listen: the transport's thread does not answer");
    bool there ABSL_GUARDED_BY(mutex) = false;
  };
  const auto answer = std::make_shared<Answer>();
  EventLoop::Work work = [this, answer, socket, address] {
    auto bound = ListenHere(socket, address);
    MutexLock lock(&answer->mutex);
    answer->value = std::move(bound);
    answer->there = true;
    answer->changed.SignalAll();
  };
  if (!loop_.Submit(work)) return absl::UnavailableError("the transport is shut down");
  MutexLock lock(&answer->mutex);
  while (!answer->there && answer->changed.WaitWithTimeout(&answer->mutex, kListenTimeout)) {
  }
  return answer->value;
}

absl::StatusOr<ConnectionId> UcxTransport::Connect(const std::string& address,
                                                   absl::Duration timeout) {
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress socket,
                           ParseSocketAddress(address, /*numeric_only=*/true));
  const ConnectionId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  EventLoop::Work work = [this, id, socket, timeout] { ConnectHere(id, socket, timeout); };
  if (!loop_.Submit(work)) return absl::UnavailableError("the transport is shut down");
  return id;
}

void UcxTransport::Send(ConnectionId id, OutgoingMessage message) {
  EventLoop::Work work = [this, id, message = std::move(message)]() mutable {
    Connection* const connection = Find(id);
    if (connection != nullptr && connection->state < ConnectionState::kFailing) {
      connection->sender->Enqueue(std::move(message));
    } else if (message.sent) {
      message.sent(absl::UnavailableError("no such connection"));
    }
  };
  // After the end nobody is left to answer but this thread.
  if (!loop_.Submit(work)) work();
}

void UcxTransport::Close(ConnectionId id, absl::Status why) {
  EventLoop::Work work = [this, id, why = std::move(why)] {
    if (Connection* const connection = Find(id)) Fail(connection, why);
  };
  loop_.Submit(work);
}

TransportStats UcxTransport::Stats() const {
  MutexLock lock(&mutex_);
  return counters_.Read(lanes_.empty() ? "rdma" : fmt::format("rdma ({})", lanes_));
}

void UcxTransport::Shutdown(absl::Duration deadline) {
  MutexLock one_at_a_time(&shutdown_mutex_);
  EventLoop::Work work = [this] { BeginShutdown(); };
  if (loop_.Submit(work)) {
    const absl::Duration until = Clock::Real()->Now() + deadline + absl::Milliseconds(100);
    MutexLock lock(&mutex_);
    while (!quiet_) {
      const absl::Duration left = until - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) break;
      quiet_changed_.WaitWithTimeout(&mutex_, left);
    }
  }
  loop_.Stop();
}

// --- The loop --------------------------------------------------------------------------------

bool UcxTransport::Progress() {
  if (worker_ == nullptr) {
    NoteQuiet();
    return false;
  }
  bool busy = false;
  for (int round = 0; round < kProgressRounds && ucp_worker_progress(worker_.get()) > 0; ++round) {
    busy = true;
  }
  // What UCX's callbacks asked for; they must not call back into UCX themselves.
  busy |= AcceptRequested();
  busy |= PumpReady();
  busy |= CloseFailing();
  busy |= FinishClosed();
  NoteQuiet();
  return busy;
}

void UcxTransport::NoteQuiet() {
  if (!shutting_down_ || !connections_.empty()) return;
  MutexLock lock(&mutex_);
  quiet_ = true;
  quiet_changed_.SignalAll();
}

bool UcxTransport::PumpReady() {
  bool busy = false;
  std::vector<Connection*> turn;
  turn.swap(ready_);
  for (Connection* connection : turn) {
    connection->ready = false;
    if (connection->state >= ConnectionState::kFailing) continue;
    const auto pumped = connection->sender->Pump();
    if (!pumped.ok()) Fail(connection, pumped.status());
    busy |= pumped.ok() && *pumped;
  }
  return busy;
}

void UcxTransport::End() {
  shutting_down_ = true;  // work that runs after this connects nobody
  StopListening();
  for (const auto& [id, connection] : connections_) {
    connection->state = ConnectionState::kClosing;
    if (connection->why.ok()) connection->why = absl::CancelledError("transport shut down");
  }
  endpoints_.clear();
  // The worker takes its endpoints and requests with it; from here on UCX touches no memory.
  worker_.reset();
  while (!connections_.empty()) Finish(connections_.begin()->second.get());
}

void UcxTransport::BeginShutdown() {
  shutting_down_ = true;
  StopListening();
  for (const auto& [id, connection] : connections_) {
    Fail(connection.get(), absl::CancelledError("transport shut down"));
  }
}

// --- Connections -----------------------------------------------------------------------------

Connection* UcxTransport::Find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

absl::StatusOr<std::string> UcxTransport::ListenHere(const SocketAddress& address,
                                                     const std::string& text) {
  if (listener_) return absl::FailedPreconditionError("the transport listens already");
  TERRACE_RETURN_IF_ERROR(Use(address));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {.addr = address.get(), .addrlen = address.length};
  params.conn_handler = {.cb = &UcxTransport::OnConnectionRequest, .arg = this};
  ucp_listener_h listener = nullptr;
  const ucs_status_t status = ucp_listener_create(worker_.get(), &params, &listener);
  if (status != UCS_OK) {
    return absl::UnavailableError(
        fmt::format("listen on {}: {}", text,
                    status == UCS_ERR_BUSY ? "address in use" : ucs_status_string(status)));
  }
  listener_.reset(listener);
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_listener_query(listener, &attributes), "listener"));
  return FormatSocketAddress(attributes.sockaddr);
}

void UcxTransport::ConnectHere(ConnectionId id, const SocketAddress& address,
                               absl::Duration timeout) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {.addr = address.get(), .addrlen = address.length};
  const absl::Status usable = Use(address);
  const auto connection = usable.ok() ? AddConnection(id, &params) : usable;
  if (!connection.ok()) {
    handler_->OnClose(id, connection.status());
    return;
  }
  (*connection)->announced = true;
  (*connection)->sender->Greet(PieceKind::kHello);
  CloseUnlessOpen(id, timeout);
}

void UcxTransport::OnConnectionRequest(ucp_conn_request_h request, void* self) {
  static_cast<UcxTransport*>(self)->requests_.push_back(request);
}

bool UcxTransport::AcceptRequested() {
  if (requests_.empty()) return false;
  for (; !requests_.empty(); requests_.pop_front()) Accept(requests_.front());
  return true;
}

void UcxTransport::StopListening() {
  for (; !requests_.empty(); requests_.pop_front()) {
    ucp_listener_reject(listener_.get(), requests_.front());
  }
  listener_.reset();
}

void UcxTransport::Accept(ucp_conn_request_h request) {
  if (connections_.size() >= options_.max_connections) {
    ucp_listener_reject(listener_.get(), request);
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  const ConnectionId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  const auto connection = AddConnection(id, &params);
  if (!connection.ok()) return;  // the peer has gone already
  (*connection)->state = ConnectionState::kAccepted;
  CloseUnlessOpen(id, kGreetingTimeout);
}

absl::StatusOr<Connection*> UcxTransport::AddConnection(ConnectionId id, ucp_ep_params_t* params) {
  if (connections_.size() >= options_.max_connections) {
    return absl::ResourceExhaustedError(
        fmt::format("{} connections are open", connections_.size()));
  }
  params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params->err_handler = {.cb = &UcxTransport::OnEndpointError, .arg = this};
  ucp_ep_h endpoint = nullptr;
  TERRACE_RETURN_IF_ERROR(FromUcx(ucp_ep_create(worker_.get(), params, &endpoint), "connect"));
  auto owned = std::make_unique<Connection>(id, endpoint);
  Connection* const connection = owned.get();
  connection->sender =
      std::make_unique<UcxSender>(endpoint, &limits_, &counters_, [this, connection] {
        if (!std::exchange(connection->ready, true)) ready_.push_back(connection);
      });
  connection->receiver = std::make_unique<UcxReceiver>(
      id, worker_.get(), handler_, &counters_,
      [this, connection](absl::Status why) { Fail(connection, std::move(why)); });
  connections_.emplace(id, std::move(owned));
  endpoints_.emplace(endpoint, connection);
  return connection;
}

void UcxTransport::CloseUnlessOpen(ConnectionId id, absl::Duration timeout) {
  loop_.PostAfter(timeout, [this, id] {
    Connection* const connection = Find(id);
    if (connection == nullptr || connection->state == ConnectionState::kOpen) return;
    Fail(connection, absl::DeadlineExceededError("the peer does not answer"));
  });
}

void UcxTransport::Open(Connection* connection, bool accepted) {
  connection->state = ConnectionState::kOpen;
  connection->announced = true;
  connection->sender->Open();
  Add(counters_.connections, 1);
  {
    MutexLock lock(&mutex_);
    if (lanes_.empty()) lanes_ = DescribeLanes(connection->endpoint);
  }
  handler_->OnOpen(connection->id, accepted);
}

void UcxTransport::Fail(Connection* connection, absl::Status why) {
  if (connection->state >= ConnectionState::kFailing) return;
  if (connection->state == ConnectionState::kOpen) Subtract(counters_.connections, 1);
  connection->state = ConnectionState::kFailing;
  connection->why = std::move(why);
  failing_.push_back(connection);
}

bool UcxTransport::CloseFailing() {
  if (failing_.empty()) return false;
  for (Connection* connection : failing_) {
    connection->state = ConnectionState::kClosing;
    endpoints_.erase(connection->endpoint);
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    params.cb.send = &UcxTransport::OnEndpointClosed;
    params.user_data = connection;
    connection->endpoint_closed = !UCS_PTR_IS_PTR(ucp_ep_close_nbx(connection->endpoint, &params));
    closing_.push_back(connection);
  }
  failing_.clear();
  TickWhileClosing();
  return true;
}

bool UcxTransport::FinishClosed() {
  const auto finished =
      std::partition(closing_.begin(), closing_.end(), [](Connection* connection) {
        return !connection->endpoint_closed || !connection->sender->quiet() ||
               !connection->receiver->quiet();
      });
  const std::vector<Connection*> done(finished, closing_.end());
  closing_.erase(finished, closing_.end());
  for (Connection* connection : done) Finish(connection);
  return !done.empty();
}

void UcxTransport::Finish(Connection* connection) {
  const absl::Status gone = absl::UnavailableError("connection closed");
  connection->sender->FailAll(gone);
  connection->receiver->Fail(gone);
  if (connection->announced) handler_->OnClose(connection->id, connection->why);
  std::erase(ready_, connection);
  connections_.erase(connection->id);
}

void UcxTransport::TickWhileClosing() {
  if (closing_.empty() || std::exchange(ticking_, true)) return;
  loop_.PostAfter(kCloseTick, [this] {
    ticking_ = false;
    TickWhileClosing();
  });
}

// --- What UCX tells --------------------------------------------------------------------------

void UcxTransport::OnEndpointError(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto* const transport = static_cast<UcxTransport*>(self);
  const auto found = transport->endpoints_.find(endpoint);
  if (found == transport->endpoints_.end()) return;
  transport->Fail(found->second,
                  absl::UnavailableError(fmt::format("peer: {}", ucs_status_string(status))));
}

void UcxTransport::OnEndpointClosed(void* request, ucs_status_t, void* connection) {
  ucp_request_free(request);
  static_cast<Connection*>(connection)->endpoint_closed = true;
}

ucs_status_t UcxTransport::OnActiveMessage(void* self, const void* header, size_t header_length,
                                           void* data, size_t length,
                                           const ucp_am_recv_param_t* params) {
  const ByteSpan bytes(static_cast<const std::byte*>(header), header_length);
  return static_cast<UcxTransport*>(self)->OnPiece(bytes, data, length, params);
}

ucs_status_t UcxTransport::OnPiece(ByteSpan header, void* data, size_t length,
                                   const ucp_am_recv_param_t* params) {
  if ((params->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) {
    Add(counters_.malformed, 1);  // from nobody that could be closed
    return UCS_OK;
  }
  const auto found = endpoints_.find(params->reply_ep);
  if (found == endpoints_.end()) return UCS_OK;  // being closed
  Connection* const connection = found->second;
  if (connection->state >= ConnectionState::kFailing) return UCS_OK;
  const bool rendezvous = (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  absl::Status status = TakePiece(connection, header, data, length, rendezvous);
  if (!status.ok()) {
    Add(counters_.malformed, 1);
    Fail(connection, std::move(status));
  }
  // Descriptors that were handed to a receive are UCX's own by now; the rest it may recycle.
  return UCS_OK;
}

absl::Status UcxTransport::TakePiece(Connection* connection, ByteSpan bytes, void* data,
                                     size_t length, bool rendezvous) {
  TERRACE_ASSIGN_OR_RETURN(const PieceHeader header, DecodePieceHeader(bytes, length));
  if (header.kind == PieceKind::kData && connection->state == ConnectionState::kOpen) {
    return connection->receiver->Take(header, bytes.subspan(kPieceHeaderBytes), data, rendezvous);
  }
  if (header.kind == PieceKind::kHello && connection->state == ConnectionState::kAccepted) {
    connection->sender->Greet(PieceKind::kWelcome);
    Open(connection, /*accepted=*/true);
    return absl::OkStatus();
  }
  if (header.kind == PieceKind::kWelcome && connection->state == ConnectionState::kConnecting) {
    Open(connection, /*accepted=*/false);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("transport header: not what this connection waits for");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(UcxContext* context,
                                                              UcxTransportOptions options,
                                                              TransportHandler* handler) {
  auto transport = std::make_unique<UcxTransport>(static_cast<UcxContextImpl*>(context),
                                                  std::move(options), handler);
  TERRACE_RETURN_IF_ERROR(transport->Start());
  return transport;
}

}  // namespace terrace
