#include "cache_node/session_service.h"

#include <algorithm>
#include <optional>

#include "cache_node/control_auth.h"
#include "fmt/format.h"
#include "proto/frame.h"
#include "proto/log.h"
#include "proto/status.h"
#include "proto/version.h"

namespace terrace {
namespace {

constexpr size_t kMaxClientName = 256;

// What a stranger says of itself, fit for one line of a log.
std::string Printable(std::string text) {
  text.resize(std::min(text.size(), kMaxClientName));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  }
  return text;
}

}  // namespace

// One session's stream. gRPC calls from its threads, the housekeeper from its own. At most one
// event is on the way; a Goaway waits for its turn, a heartbeat that finds the way taken is
// dropped. Deletes itself when gRPC is done with it.
class SessionService::Stream final : public grpc::ServerWriteReactor<control::v1::SessionEvent> {
 public:
  Stream(SessionService* service, std::shared_ptr<Session> session)
      : service_(service), session_(std::move(session)) {}

  void Send(control::v1::SessionEvent event) {
    const bool droppable = event.has_heartbeat();
    MutexLock lock(&mutex_);
    if (finish_) return;
    if (!writing_) {
      Write(std::move(event));
    } else if (!droppable) {
      next_ = std::move(event);
    }
  }

  void End(grpc::Status status) {
    MutexLock lock(&mutex_);
    if (finish_) return;
    finish_ = std::move(status);
    if (!writing_) Finish(*finish_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok && !finish_) finish_ = grpc::Status(grpc::StatusCode::UNAVAILABLE, "stream lost");
    if (finish_) {
      Finish(*finish_);
    } else if (next_) {
      Write(*std::exchange(next_, std::nullopt));
    }
  }

  void OnCancel() override {
    service_->plane_.end_session(session_->id);
    End(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    service_->plane_.end_session(session_->id);
    Log(LogLevel::kInfo, "session", "{} of tenant {} ended", session_->id, session_->tenant);
    service_->Remove(this);
    delete this;
  }

 private:
  void Write(control::v1::SessionEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    event_ = std::move(event);
    writing_ = true;
    StartWrite(&event_);
  }

  SessionService* const service_;
  const std::shared_ptr<Session> session_;
  Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  control::v1::SessionEvent event_ ABSL_GUARDED_BY(mutex_);  // unchanged while writing_
  std::optional<control::v1::SessionEvent> next_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mutex_);  // set: no more events
};

namespace {

// A stream that fails before it begins.
class Refusal final : public grpc::ServerWriteReactor<control::v1::SessionEvent> {
 public:
  explicit Refusal(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

absl::StatusOr<OpenedSession> SessionService::OpenSession(
    const grpc::CallbackServerContext& context, const control::v1::OpenRequest& request) {
  TERRACE_ASSIGN_OR_RETURN(const Identity identity,
                           Authorize(context, *plane_.security, Role::kWorker));
  if (request.protocol_version() != kFrameVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "the client speaks version {} of the data plane, this node (terrace {}) version "
        "{}: run the same release of Terrace on both",
        request.protocol_version(), kVersion, kFrameVersion));
  }
  return plane_.sessions->Open(identity.tenant, Printable(request.client_name()));
}

grpc::ServerWriteReactor<control::v1::SessionEvent>* SessionService::Open(
    grpc::CallbackServerContext* context, const control::v1::OpenRequest* request) {
  MutexLock lock(&mutex_);
  if (stopping_) return new Refusal(absl::UnavailableError("the node is stopping"));
  absl::StatusOr<OpenedSession> opened = OpenSession(*context, *request);
  if (!opened.ok()) return new Refusal(opened.status());
  const Session& session = *opened->session;
  Log(LogLevel::kInfo, "session", "{} opened by tenant {}, client '{}' at {}", session.id,
      session.tenant, session.client_name, context->peer());

  control::v1::SessionEvent event;
  *event.mutable_opened() = plane_.welcome;
  event.mutable_opened()->set_session_id(session.id);
  event.mutable_opened()->set_token(opened->token.data(), opened->token.size());
  event.mutable_opened()->set_tenant(session.tenant);
  auto* stream = new Stream(this, opened->session);
  streams_.insert(stream);
  stream->Send(std::move(event));
  return stream;
}

grpc::ServerUnaryReactor* SessionService::OpenNamespace(
    grpc::CallbackServerContext* context, const control::v1::OpenNamespaceRequest* request,
    control::v1::OpenNamespaceReply* reply) {
  const auto open = [&]() -> absl::Status {
    TERRACE_ASSIGN_OR_RETURN(const Identity identity,
                             Authorize(*context, *plane_.security, Role::kWorker));
    bool created = false;
    TERRACE_ASSIGN_OR_RETURN(
        const std::shared_ptr<OpenedNamespace> ns,
        plane_.namespaces->Open(identity.tenant,
                                {request->name(), request->layout(), request->hash_scheme()},
                                request->create(), &created));
    reply->set_id(ns->id().value);
    reply->set_secret(ns->secret().data(), ns->secret().size());
    reply->set_layout_id(ns->layout_id());
    reply->set_created(created);
    return absl::OkStatus();
  };
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(open()));
  return reactor;
}

void SessionService::Beat() {
  control::v1::SessionEvent event;
  event.mutable_heartbeat();
  MutexLock lock(&mutex_);
  for (Stream* stream : streams_) stream->Send(event);
}

void SessionService::Goaway(const std::string& reason) {
  control::v1::SessionEvent event;
  event.mutable_goaway()->set_reason(reason);
  MutexLock lock(&mutex_);
  stopping_ = true;
  for (Stream* stream : streams_) stream->Send(event);
}

void SessionService::FinishAll() {
  MutexLock lock(&mutex_);
  stopping_ = true;
  for (Stream* stream : streams_) {
    stream->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the node is stopping"));
  }
}

void SessionService::Remove(Stream* stream) {
  MutexLock lock(&mutex_);
  streams_.erase(stream);
}

}  // namespace terrace
