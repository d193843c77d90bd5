#include "client/control_channel.h"

#include <sys/utsname.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "client/backoff.h"
#include "client/dial.h"
#include "fmt/format.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/support/async_stream.h"
#include "proto/clock.h"
#include "proto/control.grpc.pb.h"
#include "proto/mutex.h"
#include "proto/status.h"

namespace terrace {
namespace {

namespace wire = control::v1;

std::string DefaultName() {
  utsname host{};
  uname(&host);
  return fmt::format("{}@{}", program_invocation_short_name, host.nodename);
}

// More does not fill the wire better; it only lengthens the queue that a Match waits behind.
constexpr uint64_t kMostBytesInFlight = 64 << 20;

// A bound of 0 is one that the node does not state.
template <typename T, typename U>
void Take(T* bound, U stated) {
  if (stated != 0) *bound = stated;
}

absl::StatusOr<SessionInfo> ToSession(const wire::SessionOpened& opened) {
  SessionInfo session;
  if (opened.token().size() != session.token.size() || opened.data_addresses().empty()) {
    return absl::InternalError("the node opened a session without a token or a data address");
  }
  session.session_id = opened.session_id();
  std::memcpy(session.token.data(), opened.token().data(), session.token.size());
  session.data_addresses.assign(opened.data_addresses().begin(), opened.data_addresses().end());
  session.transport = opened.transport();
  session.node_id = opened.node_id();
  session.incarnation = opened.incarnation();
  session.host_id = opened.host_id();
  session.local_address = opened.local_address();
  const wire::Limits& stated = opened.limits();
  SessionLimits& limits = session.limits;
  Take(&limits.max_block_bytes, stated.max_block_bytes());
  Take(&limits.max_keys_per_frame, stated.max_keys_per_frame());
  limits.max_keys_per_frame = std::min<uint32_t>(limits.max_keys_per_frame, kMaxKeysPerFrame);
  Take(&limits.max_requests_in_flight, stated.max_requests_in_flight());
  Take(&limits.max_bytes_in_flight, stated.max_bytes_in_flight());
  limits.max_bytes_in_flight = std::min(limits.max_bytes_in_flight, kMostBytesInFlight);
  Take(&limits.max_reservations, stated.max_reservations());
  if (stated.max_lease_ms() != 0) limits.max_lease = absl::Milliseconds(stated.max_lease_ms());
  return session;
}

wire::OpenNamespaceRequest ToRequest(const NamespaceDefinition& definition) {
  const LayoutDefinition& layout = definition.layout;
  wire::OpenNamespaceRequest request;
  request.set_name(definition.name);
  request.set_create(definition.create);
  request.mutable_hash_scheme()->set_algorithm(definition.hash_algorithm);
  request.mutable_hash_scheme()->set_seed_fingerprint(definition.hash_seed_fingerprint);
  wire::Layout* out = request.mutable_layout();
  out->set_model(layout.model);
  out->set_kv_dtype(layout.kv_dtype);
  out->set_format(layout.format);
  out->set_block_tokens(layout.block_tokens);
  out->set_layers(layout.layers);
  out->set_kv_heads(layout.kv_heads);
  out->set_head_dim(layout.head_dim);
  out->set_shards(layout.shards);
  out->set_cache_group(layout.cache_group);
  out->set_salt(layout.salt);
  out->mutable_extra()->insert(layout.extra.begin(), layout.extra.end());
  out->set_block_bytes(layout.block_bytes);
  out->set_segments(layout.segments);
  return request;
}

// One attempt at a session: a stream whose reads carry deadlines, driven by a completion queue
// of its own on the thread that calls Run.
class SessionStream {
 public:
  explicit SessionStream(const Dialed& dialed) : stub_(wire::Session::NewStub(dialed.channel)) {
    Authorize(dialed, &context_);
  }

  // Returns when the stream has ended. `on_event` hears each event and returns false to end it.
  absl::Status Run(const std::string& name, const std::string& address, absl::Duration patience,
                   const std::function<bool(const wire::SessionEvent&)>& on_event) {
    wire::OpenRequest request;
    request.set_protocol_version(kFrameVersion);
    request.set_client_name(name);
    reader_ = stub_->PrepareAsyncOpen(&context_, request, &queue_);
    reader_->StartCall(this);
    bool silent = false;
    bool wanted = Await(patience, &silent);
    while (wanted) {
      wire::SessionEvent event;
      reader_->Read(&event, this);
      if (!Await(patience, &silent)) break;
      wanted = on_event(event);
      if (!wanted) context_.TryCancel();  // and only then: it would hide the node's own status
      patience = kLongestSilence;
    }
    grpc::Status status;
    reader_->Finish(&status, this);
    AwaitForever();
    queue_.Shutdown();
    AwaitForever();
    if (silent) {
      return absl::DeadlineExceededError(fmt::format("the node at {} is silent", address));
    }
    return FromGrpc(status, address);
  }

  // From any thread.
  void Cancel() { context_.TryCancel(); }

 private:
  // Whether the pending step succeeded within `patience`. A step that did not is cancelled, and
  // waited for all the same: the queue must not hold it when we leave.
  bool Await(absl::Duration patience, bool* silent) {
    void* tag = nullptr;
    bool ok = false;
    const auto deadline = std::chrono::system_clock::now() + absl::ToChronoMicroseconds(patience);
    if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::TIMEOUT) return ok;
    *silent = true;
    context_.TryCancel();
    AwaitForever();
    return false;
  }
  // A cancelled call completes its steps by itself.
  void AwaitForever() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }

  std::unique_ptr<wire::Session::Stub> stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReader<wire::SessionEvent>> reader_;
};

class GrpcControlChannel : public ControlChannel {
 public:
  GrpcControlChannel(const ClientOptions& options, Dialed first)
      : dial_{options.address, options.token_file, options.ca_file, options.cert_file,
              options.key_file},
        name_(options.name.empty() ? DefaultName() : options.name),
        connect_timeout_(options.connect_timeout),
        dialed_(std::move(first)) {}
  ~GrpcControlChannel() override { Stop(); }

  void Start(SessionListener* listener) override {
    listener_ = listener;
    thread_ = std::thread([this] { Loop(); });
  }

  absl::StatusOr<Namespace> OpenNamespace(const NamespaceDefinition& definition,
                                          absl::Duration timeout) override {
    const Dialed dialed = current();
    grpc::ClientContext context;
    Prepare(dialed, timeout, &context);
    wire::OpenNamespaceReply reply;
    TERRACE_RETURN_IF_ERROR(FromGrpc(wire::Session::NewStub(dialed.channel)
                                         ->OpenNamespace(&context, ToRequest(definition), &reply),
                                     dial_.address));
    Namespace ns;
    if (reply.id() == 0 || reply.secret().size() != ns.secret.size()) {
      return absl::InternalError("the node opened a namespace without an id or a secret");
    }
    ns.id.value = reply.id();
    std::memcpy(ns.secret.data(), reply.secret().data(), ns.secret.size());
    ns.layout_id = reply.layout_id();
    ns.shape = {definition.layout.block_bytes, definition.layout.segments};
    ns.block_tokens = definition.layout.block_tokens;
    return ns;
  }

  void Renew() override {
    MutexLock lock(&mutex_);
    if (stream_ != nullptr) stream_->Cancel();
  }

  void Stop() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      if (stream_ != nullptr) stream_->Cancel();
      wake_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Loop() {
    absl::Duration patience = connect_timeout_;
    bool first = true;
    while (true) {
      const absl::Status why = first ? OneSession(patience) : Redial(patience);
      first = false;
      patience = std::min(connect_timeout_, kLongestSilence);
      listener_->OnSessionLost(why);
      if (!Pause(backoff_.Next())) return;
    }
  }

  absl::Status Redial(absl::Duration patience) {
    TERRACE_ASSIGN_OR_RETURN(Dialed dialed, Dial(dial_));
    {
      MutexLock lock(&mutex_);
      dialed_ = std::move(dialed);
    }
    return OneSession(patience);
  }

  // Returns when the session has ended.
  absl::Status OneSession(absl::Duration patience) {
    SessionStream stream(current());
    {
      MutexLock lock(&mutex_);
      if (stopping_) return absl::CancelledError("the client is closing");
      stream_ = &stream;
    }
    absl::Status broken;
    absl::Status ended =
        stream.Run(name_, dial_.address, patience, [&](const wire::SessionEvent& event) {
          broken = OnEvent(event);
          return broken.ok();
        });
    MutexLock lock(&mutex_);
    stream_ = nullptr;
    if (!broken.ok()) return broken;
    return ended.ok() ? absl::UnavailableError("the node ended the session") : ended;
  }

  absl::Status OnEvent(const wire::SessionEvent& event) {
    if (event.has_opened()) {
      TERRACE_ASSIGN_OR_RETURN(SessionInfo session, ToSession(event.opened()));
      TERRACE_RETURN_IF_ERROR(listener_->OnSessionOpened(session));
      backoff_.Reset();
    } else if (event.has_goaway()) {
      listener_->OnSessionEnding();
    }
    return absl::OkStatus();
  }

  // False when the channel is stopping.
  bool Pause(absl::Duration pause) {
    const absl::Duration until = Clock::Real()->Now() + pause;
    MutexLock lock(&mutex_);
    while (!stopping_) {
      const absl::Duration left = until - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) return true;
      wake_.WaitWithTimeout(&mutex_, left);
    }
    return false;
  }

  Dialed current() {
    MutexLock lock(&mutex_);
    return dialed_;
  }

  const DialOptions dial_;
  const std::string name_;
  const absl::Duration connect_timeout_;
  SessionListener* listener_ = nullptr;
  std::thread thread_;
  Backoff backoff_;  // of thread_

  Mutex mutex_;
  CondVar wake_;
  Dialed dialed_ ABSL_GUARDED_BY(mutex_);
  SessionStream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlChannel>> CreateControlChannel(const ClientOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(
      Dialed dialed, Dial({options.address, options.token_file, options.ca_file, options.cert_file,
                           options.key_file}));
  return std::make_unique<GrpcControlChannel>(options, std::move(dialed));
}

}  // namespace terrace
