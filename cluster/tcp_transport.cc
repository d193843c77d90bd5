#include "cluster/tcp_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cluster/event_loop.h"
#include "cluster/socket_address.h"
#include "cluster/tcp_receiver.h"
#include "cluster/tcp_sender.h"
#include "cluster/tcp_socket.h"
#include "fmt/format.h"
#include "proto/log.h"
#include "proto/status.h"

namespace terrace {
namespace {

// An accepted peer greets within this, or its place is given to another.
constexpr absl::Duration kGreetingTimeout = absl::Seconds(5);
// Peers accepted, and sockets looked at, before the loop looks at everything else.
constexpr int kAcceptsPerTurn = 16;
constexpr int kEventsPerTurn = 64;
// Without descriptors or memory for another connection the listener is left alone for this long.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
constexpr ConnectionId kListener = 0;  // among the ids of connections

enum class ConnectionState {
  kConnecting,  // the kernel is
  kGreeting,    // waits for the peer's welcome
  kAccepted,    // waits for the peer's hello; the handler does not know it yet
  kOpen,
};

struct Connection {
  ConnectionId id;
  TcpSocket socket;
  ConnectionState state;
  std::unique_ptr<TcpSender> sender;
  std::unique_ptr<TcpReceiver> receiver;
  uint32_t watched = 0;  // epoll's events
  bool ready = false;    // in the list of connections to write to

  bool announced() const { return state != ConnectionState::kAccepted; }
  bool blocked() const { return (watched & EPOLLOUT) != 0; }
};

class TcpTransport : public Transport, private LoopDriver {
 public:
  TcpTransport(TcpTransportOptions options, TransportHandler* handler)
      : options_(std::move(options)),
        handler_(handler),
        buffer_(kReceiveBufferBytes),
        loop_({.thread_name = options_.thread_name, .spin = options_.spin}) {}
  ~TcpTransport() override {
    Shutdown(absl::ZeroDuration());
    if (epoll_fd_ >= 0) close(epoll_fd_);
  }

  absl::Status Start();

  absl::StatusOr<std::string> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const std::string& address, absl::Duration timeout) override;
  void Send(ConnectionId connection, OutgoingMessage message) override;
  void Close(ConnectionId connection, absl::Status why) override;
  void Post(absl::AnyInvocable<void()> work) override { loop_.Post(std::move(work)); }
  void PostAfter(absl::Duration delay, absl::AnyInvocable<void()> work) override {
    loop_.PostAfter(delay, std::move(work));
  }
  // The kernel copies from any memory.
  absl::Status Register(MutableByteSpan memory) override {
    if (memory.empty()) return absl::InvalidArgumentError("memory to register is empty");
    return absl::OkStatus();
  }
  void Unregister(MutableByteSpan) override {}
  bool streams() const override { return true; }
  TransportStats Stats() const override;
  // Closing waits for nobody, so that the deadline is never needed.
  void Shutdown(absl::Duration) override;

 private:
  // LoopDriver.
  bool Progress() override;
  bool Arm() override { return ready_.empty(); }
  void End() override;

  // Everything below runs on the loop's thread.
  // What cannot be watched would wait for ever: its connection is to be closed.
  [[nodiscard]] absl::Status Watch(Connection* connection, uint32_t events);
  void WatchListener(bool watched);
  bool WriteReady();
  void Serve(Connection* connection, uint32_t events);
  void Connected(Connection* connection);
  void Write(Connection* connection);
  void AcceptSome();
  void PauseAccepting(int error);
  void TellAcceptFailed(std::string_view why);
  void Accept(TcpSocket socket);
  void SendAway(const TcpSocket& socket);
  void TellVersion(const Connection& connection, const absl::Status& why);
  void ConnectHere(ConnectionId id, const SocketAddress& address, absl::Duration timeout);
  Connection* AddConnection(ConnectionId id, TcpSocket socket, ConnectionState state);
  void CloseUnlessOpen(ConnectionId id, absl::Duration timeout);
  absl::Status Greeted(Connection* connection, MessageKind kind);
  void Open(Connection* connection, bool accepted);
  void CloseHere(Connection* connection, const absl::Status& why);
  Connection* Find(ConnectionId id);

  const TcpTransportOptions options_;
  TransportHandler* const handler_;
  TransportCounters counters_;
  std::atomic<ConnectionId> next_id_{kListener + 1};
  int epoll_fd_ = -1;

  // Of the loop's thread.
  std::vector<std::byte> buffer_;
  TcpSocket listener_;
  bool accept_failed_ = false;  // since a peer was last accepted
  bool version_told_ = false;   // once is enough: strangers can say any version
  absl::flat_hash_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  std::vector<ConnectionId> ready_, writing_;
  bool ended_ = false;

  Mutex shutdown_mutex_;  // held through Shutdown
  mutable Mutex mutex_;
  bool listens_ ABSL_GUARDED_BY(mutex_) = false;
  std::string interface_ ABSL_GUARDED_BY(mutex_);  // of the first connection

  EventLoop loop_;  // last: its thread uses all of the above
};

absl::Status TcpTransport::Start() {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0) {
    return absl::ResourceExhaustedError(fmt::format("epoll: {}", std::strerror(errno)));
  }
  TERRACE_RETURN_IF_ERROR(loop_.Start(this));
  loop_.Post([this] { loop_.Watch(epoll_fd_); });
  return absl::OkStatus();
}

// --- The callers' side -----------------------------------------------------------------------

absl::StatusOr<std::string> TcpTransport::Listen(const std::string& address) {
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress wanted,
                           ParseSocketAddress(address, /*numeric_only=*/true));
  MutexLock lock(&mutex_);
  if (listens_) return absl::FailedPreconditionError("the transport listens already");
  TERRACE_ASSIGN_OR_RETURN(TcpSocket listener, TcpSocket::Listen(wanted, address));
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress bound, listener.LocalAddress());
  // Here, where it can still fail; the loop asks for events once it has the listener.
  epoll_event nothing{.events = 0, .data = {.u64 = kListener}};
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, listener.fd(), &nothing) != 0) {
    return FromErrno(errno, fmt::format("epoll for {}", address));
  }
  EventLoop::Work work = [this, listener = std::move(listener)]() mutable {
    if (ended_) return;
    listener_ = std::move(listener);
    WatchListener(true);
  };
  if (!loop_.Submit(work)) return absl::UnavailableError("the transport is shut down");
  listens_ = true;
  return FormatSocketAddress(bound.storage);
}

absl::StatusOr<ConnectionId> TcpTransport::Connect(const std::string& address,
                                                   absl::Duration timeout) {
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress socket,
                           ParseSocketAddress(address, /*numeric_only=*/true));
  const ConnectionId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  EventLoop::Work work = [this, id, socket, timeout] { ConnectHere(id, socket, timeout); };
  if (!loop_.Submit(work)) return absl::UnavailableError("the transport is shut down");
  return id;
}

void TcpTransport::Send(ConnectionId id, OutgoingMessage message) {
  EventLoop::Work work = [this, id, message = std::move(message)]() mutable {
    if (Connection* const connection = Find(id)) {
      connection->sender->Enqueue(std::move(message));
    } else if (message.sent) {
      message.sent(absl::UnavailableError("no such connection"));
    }
  };
  // After the end nobody is left to answer but this thread.
  if (!loop_.Submit(work)) work();
}

void TcpTransport::Close(ConnectionId id, absl::Status why) {
  EventLoop::Work work = [this, id, why = std::move(why)] {
    if (Connection* const connection = Find(id)) CloseHere(connection, why);
  };
  loop_.Submit(work);
}

TransportStats TcpTransport::Stats() const {
  MutexLock lock(&mutex_);
  return counters_.Read(interface_.empty() ? "tcp" : fmt::format("tcp ({})", interface_));
}

void TcpTransport::Shutdown(absl::Duration) {
  MutexLock one_at_a_time(&shutdown_mutex_);
  loop_.Stop();
}

// --- The loop --------------------------------------------------------------------------------

bool TcpTransport::Progress() {
  bool busy = WriteReady();
  epoll_event events[kEventsPerTurn];
  const int count = epoll_wait(epoll_fd_, events, kEventsPerTurn, /*timeout=*/0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kListener) {
      AcceptSome();
    } else if (Connection* const connection = Find(events[i].data.u64)) {
      Serve(connection, events[i].events);
    }
  }
  return busy || count > 0;
}

bool TcpTransport::WriteReady() {
  if (ready_.empty()) return false;
  writing_.swap(ready_);
  for (const ConnectionId id : writing_) {
    Connection* const connection = Find(id);
    if (connection == nullptr) continue;
    connection->ready = false;
    // Otherwise the socket says when there is something to do.
    if (connection->state != ConnectionState::kConnecting && !connection->blocked()) {
      Write(connection);
    }
  }
  writing_.clear();
  return true;
}

void TcpTransport::Serve(Connection* connection, uint32_t events) {
  if (connection->state == ConnectionState::kConnecting) {
    Connected(connection);
    return;
  }
  if ((events & ~EPOLLOUT) != 0) {
    const absl::Status read = connection->receiver->Read(connection->socket.fd(), buffer_);
    if (absl::IsInvalidArgument(read)) Add(counters_.malformed, 1);
    if (absl::IsFailedPrecondition(read)) TellVersion(*connection, read);
    if (!read.ok()) {
      CloseHere(connection, read);
      return;
    }
  }
  if ((events & EPOLLOUT) != 0) Write(connection);
}

void TcpTransport::Write(Connection* connection) {
  const auto state = connection->sender->Write(connection->socket.fd());
  if (!state.ok()) {
    CloseHere(connection, state.status());
    return;
  }
  const bool blocked = *state == TcpSender::State::kBlocked;
  const absl::Status watched = Watch(connection, blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
  if (!watched.ok()) {
    CloseHere(connection, watched);
    return;
  }
  if (*state == TcpSender::State::kMore && !std::exchange(connection->ready, true)) {
    ready_.push_back(connection->id);
  }
}

absl::Status TcpTransport::Watch(Connection* connection, uint32_t events) {
  if (connection->watched == events) return absl::OkStatus();
  epoll_event event{.events = events, .data = {.u64 = connection->id}};
  const int operation = connection->watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (epoll_ctl(epoll_fd_, operation, connection->socket.fd(), &event) != 0) {
    return FromErrno(errno, "epoll");
  }
  connection->watched = events;
  return absl::OkStatus();
}

void TcpTransport::End() {
  ended_ = true;  // work that runs after this connects nobody
  listener_.Close();
  while (!connections_.empty()) {
    CloseHere(connections_.begin()->second.get(), absl::CancelledError("transport shut down"));
  }
}

// --- Connections -----------------------------------------------------------------------------

Connection* TcpTransport::Find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

void TcpTransport::ConnectHere(ConnectionId id, const SocketAddress& address,
                               absl::Duration timeout) {
  absl::Status status;
  if (ended_) {
    status = absl::UnavailableError("the transport is shut down");
  } else if (connections_.size() >= options_.max_connections) {
    status =
        absl::ResourceExhaustedError(fmt::format("{} connections are open", connections_.size()));
  } else if (auto socket = TcpSocket::Connect(address); socket.ok()) {
    Connection* const connection =
        AddConnection(id, *std::move(socket), ConnectionState::kConnecting);
    if (const absl::Status watched = Watch(connection, EPOLLOUT); !watched.ok()) {
      CloseHere(connection, watched);
      return;
    }
    CloseUnlessOpen(id, timeout);
  } else {
    status = socket.status();
  }
  if (!status.ok()) handler_->OnClose(id, status);
}

void TcpTransport::Connected(Connection* connection) {
  if (const int error = connection->socket.ConnectError(); error != 0) {
    CloseHere(connection, FromErrno(error, "connect"));
    return;
  }
  connection->socket.Tune();
  connection->state = ConnectionState::kGreeting;
  if (const absl::Status watched = Watch(connection, EPOLLIN); !watched.ok()) {
    CloseHere(connection, watched);
    return;
  }
  connection->sender->Greet(MessageKind::kHello);
}

void TcpTransport::AcceptSome() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    TcpSocket socket = TcpSocket::Accept(listener_);
    if (socket.open()) {
      Accept(std::move(socket));
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno == ECONNABORTED || errno == EINTR) continue;  // that peer has gone already
    PauseAccepting(errno);
    return;
  }
}

// The peer stays in the kernel's queue; asking again at once would be a loop without sleep.
void TcpTransport::PauseAccepting(int error) {
  TellAcceptFailed(std::strerror(error));
  WatchListener(false);
  loop_.PostAfter(kAcceptPause, [this] { WatchListener(true); });
}

void TcpTransport::TellAcceptFailed(std::string_view why) {
  if (std::exchange(accept_failed_, true)) return;
  Log(LogLevel::kWarning, "transport", "no connection can be accepted for now: {}", why);
}

void TcpTransport::WatchListener(bool watched) {
  if (!listener_.open()) return;
  epoll_event event{.events = watched ? uint32_t{EPOLLIN} : 0, .data = {.u64 = kListener}};
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, listener_.fd(), &event) == 0) return;
  // Peers that are refused know it; those in the queue of a listener that nobody watches do not.
  Log(LogLevel::kError, "transport", "no connection is accepted any more: epoll: {}",
      std::strerror(errno));
  listener_.Close();
}

void TcpTransport::Accept(TcpSocket socket) {
  if (connections_.size() >= options_.max_connections) {
    SendAway(socket);
    return;
  }
  socket.Tune();
  const ConnectionId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  Connection* const connection = AddConnection(id, std::move(socket), ConnectionState::kAccepted);
  if (const absl::Status watched = Watch(connection, EPOLLIN); !watched.ok()) {
    TellAcceptFailed(std::string(watched.message()));
    CloseHere(connection, watched);
    return;
  }
  accept_failed_ = false;
  CloseUnlessOpen(id, kGreetingTimeout);
}

// Nothing has been sent to the peer: this fits, or it learns it from the close.
void TcpTransport::SendAway(const TcpSocket& socket) {
  TcpSender farewell(/*max_queued_messages=*/0, &counters_, [] {});
  farewell.Greet(MessageKind::kFull);
  (void)farewell.Write(socket.fd());
}

void TcpTransport::TellVersion(const Connection& connection, const absl::Status& why) {
  Add(counters_.malformed, 1);
  if (connection.state != ConnectionState::kAccepted) return;  // the handler is told
  SendAway(connection.socket);  // in a header of our version, which tells the peer
  if (std::exchange(version_told_, true)) return;
  Log(LogLevel::kWarning, "transport", "a connection was refused: {}", std::string(why.message()));
}

Connection* TcpTransport::AddConnection(ConnectionId id, TcpSocket socket, ConnectionState state) {
  auto owned = std::make_unique<Connection>(
      Connection{.id = id, .socket = std::move(socket), .state = state});
  Connection* const connection = owned.get();
  connection->sender =
      std::make_unique<TcpSender>(options_.max_queued_messages, &counters_, [this, connection] {
        if (!std::exchange(connection->ready, true)) ready_.push_back(connection->id);
      });
  connection->receiver = std::make_unique<TcpReceiver>(
      id, handler_, &counters_,
      [this, connection](MessageKind kind) { return Greeted(connection, kind); });
  connections_.emplace(id, std::move(owned));
  return connection;
}

void TcpTransport::CloseUnlessOpen(ConnectionId id, absl::Duration timeout) {
  loop_.PostAfter(timeout, [this, id] {
    Connection* const connection = Find(id);
    if (connection == nullptr || connection->state == ConnectionState::kOpen) return;
    CloseHere(connection, absl::DeadlineExceededError("the peer does not answer"));
  });
}

absl::Status TcpTransport::Greeted(Connection* connection, MessageKind kind) {
  if (kind == MessageKind::kHello && connection->state == ConnectionState::kAccepted) {
    connection->sender->Greet(MessageKind::kWelcome);
    Open(connection, /*accepted=*/true);
    return absl::OkStatus();
  }
  if (kind == MessageKind::kWelcome && connection->state == ConnectionState::kGreeting) {
    Open(connection, /*accepted=*/false);
    return absl::OkStatus();
  }
  if (kind == MessageKind::kFull && connection->state == ConnectionState::kGreeting) {
    return absl::UnavailableError("peer: has all the connections that it takes");
  }
  return absl::InvalidArgumentError("transport header: not what this connection waits for");
}

void TcpTransport::Open(Connection* connection, bool accepted) {
  connection->state = ConnectionState::kOpen;
  connection->sender->Open();
  connection->receiver->Open();
  Add(counters_.connections, 1);
  {
    MutexLock lock(&mutex_);
    if (interface_.empty()) {
      if (const auto local = connection->socket.LocalAddress(); local.ok()) {
        interface_ = InterfaceOf(*local);
      }
    }
  }
  handler_->OnOpen(connection->id, accepted);
}

void TcpTransport::CloseHere(Connection* connection, const absl::Status& why) {
  const auto owned = std::move(connections_.extract(connection->id).mapped());
  if (owned->state == ConnectionState::kOpen) Subtract(counters_.connections, 1);
  // What the kernel has as a whole may still arrive; a message that is torn holds memory for
  // nobody's use, for minutes where the peer has stopped reading.
  owned->sender->torn() ? owned->socket.Abort() : owned->socket.Close();
  const absl::Status gone = absl::UnavailableError("connection closed");
  owned->sender->FailAll(gone);
  owned->receiver->Fail(gone);
  if (owned->announced()) handler_->OnClose(owned->id, why);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(TcpTransportOptions options,
                                                              TransportHandler* handler) {
  auto transport = std::make_unique<TcpTransport>(std::move(options), handler);
  TERRACE_RETURN_IF_ERROR(transport->Start());
  return transport;
}

}  // namespace terrace
