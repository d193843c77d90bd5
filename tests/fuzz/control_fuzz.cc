// What a client may say to the control plane, as a series of calls of the real services without a
// network: nothing crashes, a namespace opened twice is the same one, what is refused changes
// nothing, and no answer is too long for gRPC.
//
// The input: calls of u8 kind, u16 length, and that many bytes of the request's message.
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cache_node/admin_service.h"
#include "cache_node/control_server.h"
#include "cache_node/layout.h"
#include "cache_node/session_service.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "grpcpp/test/default_reactor_test_peer.h"
#include "proto/frame.h"
#include "proto/log.h"
#include "tests/fuzz/require.h"

namespace terrace {
namespace {

namespace v1 = control::v1;

constexpr size_t kMaxCalls = 32;
constexpr uint64_t kMaxNamespaces = 3;
constexpr uint64_t kMaxSessions = 2;
// gRPC drops trailers of more than 8 KiB, and a byte of a message may need three there.
constexpr size_t kMaxMessageBytes = 8192 / 3;
// Texts of at most 256 bytes each, twelve fields and 32 pairs.
constexpr size_t kMaxSpecBytes = 24 << 10;

std::string Text(const google::protobuf::Message& message) {
  std::string text;
  {
    google::protobuf::io::StringOutputStream stream(&text);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return text;
}

std::string Text(const NamespaceSpec& spec) {
  return Text(spec.layout) + "\n" + Text(spec.hash_scheme);
}

bool Understood(const google::protobuf::Message& message) {
  return message.GetReflection()->GetUnknownFields(message).empty();
}

TieredStore* Store() {
  static std::unique_ptr<TieredStore> store = *TieredStore::Create({.host_bytes = 2 << 20});
  return store.get();
}

NodeLimits Limits() {
  NodeLimits limits;
  limits.max_sessions = kMaxSessions;
  return limits;
}

// The part of a node that the control plane works on, new for each input.
class Node {
 public:
  Node() {
    plane_.security = &security_;
    plane_.sessions = &sessions_;
    plane_.namespaces = &namespaces_;
    plane_.store = Store();
    plane_.registry = &registry_;
    plane_.end_session = [this](uint64_t id) { sessions_.End(id); };
  }
  ~Node() {
    for (auto* stream : streams_) {
      stream->OnCancel();
      stream->OnDone();
    }
    Require(sessions_.session_count() == 0, "no session outlives its stream");
  }

  void Call(uint8_t kind, const std::string& bytes) {
    const Table before = Snapshot();
    switch (kind % 7) {
      case 0:
        return With<v1::OpenRequest>(bytes, [&](const auto& r) { OpenSession(r); });
      case 1:
        return With<v1::OpenNamespaceRequest>(bytes, [&](const auto& r) { Open(r, before); });
      case 2:
        return With<v1::CreateNamespaceRequest>(bytes, [&](const auto& r) { Create(r, before); });
      case 3:
        return With<v1::DeleteNamespaceRequest>(bytes, [&](const auto& r) { Delete(r, before); });
      case 4:
        return With<v1::LocateRequest>(bytes, [&](const auto& r) { Locate(r); });
      case 5:
        return With<v1::GetTopRequest>(bytes, [&](const auto& r) { Top(r); });
      default:
        while (namespaces_.ForgetSome(Store())) continue;
        for (const auto& [name, entry] : Snapshot()) Require(entry.live, "deletions end");
    }
  }

 private:
  struct Entry {
    uint64_t id = 0, layout_id = 0;
    bool live = false;
    std::string spec;
    bool operator==(const Entry&) const = default;
  };
  using Table = std::map<std::pair<std::string, std::string>, Entry>;

  template <typename Request, typename Work>
  static void With(const std::string& bytes, const Work& work) {
    Request request;
    if (request.ParseFromString(bytes)) work(request);
  }

  // Calls one method of a service as gRPC would.
  template <typename Service, typename Request, typename Reply>
  static grpc::Status Ask(Service* service,
                          grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*,
                                                                       const Request*, Reply*),
                          const Request& request, Reply* reply) {
    grpc::CallbackServerContext context;
    grpc::testing::DefaultReactorTestPeer peer(&context);
    (service->*method)(&context, &request, reply);
    Require(peer.test_status_set(), "every call is answered");
    Require(peer.test_status().error_message().size() <= kMaxMessageBytes,
            "a message fits into gRPC's trailers");
    return peer.test_status();
  }

  Table Snapshot() const {
    Table table;
    for (const auto& ns : namespaces_.List("")) {
      table[{ns->tenant(), ns->spec().name}] = {ns->id().value, ns->layout_id(), ns->live(),
                                                Text(ns->spec())};
    }
    Require(table.size() == namespaces_.count() && table.size() <= kMaxNamespaces,
            "namespaces within their bound");
    for (const auto& [name, entry] : table) {
      Require(entry.spec.size() <= kMaxSpecBytes, "a definition within its bounds");
    }
    return table;
  }

  void OpenSession(const v1::OpenRequest& request) {
    const size_t before = sessions_.session_count();
    grpc::CallbackServerContext context;
    auto* stream = session_service_.Open(&context, &request);
    streams_.push_back(stream);
    const bool opened = sessions_.session_count() == before + 1;
    Require(opened == (request.protocol_version() == kFrameVersion && before < kMaxSessions),
            "a session for who speaks this version, within the bound");
  }

  void Open(const v1::OpenNamespaceRequest& request, const Table& before) {
    v1::OpenNamespaceReply reply;
    const grpc::Status status =
        Ask(&session_service_, &SessionService::OpenNamespace, request, &reply);
    if (!status.ok()) return Require(Snapshot() == before, "what is refused changes nothing");
    Require(reply.created() == !before.contains(Own(request.name())), "created: was not there");
    Require(request.create() || !reply.created(), "created only when asked to");
    Require(Understood(request.layout()) && Understood(request.hash_scheme()),
            "what is not understood is not shared");
    Require(reply.layout_id() == LayoutId(request.layout()), "the layout asked for");
    const Table after = Snapshot();
    Table expected = before;
    expected[Own(request.name())] = {
        reply.id(), reply.layout_id(), true,
        Text(NamespaceSpec{{}, request.layout(), request.hash_scheme()})};
    Require(after == expected, "exactly this namespace came");
    JudgeAgain(request, reply, after);
  }

  // The same definition again, and another one under the same name.
  void JudgeAgain(v1::OpenNamespaceRequest request, const v1::OpenNamespaceReply& reply,
                  const Table& table) {
    v1::OpenNamespaceReply again;
    request.set_create(!request.create());
    Require(Ask(&session_service_, &SessionService::OpenNamespace, request, &again).ok() &&
                again.id() == reply.id() && again.secret() == reply.secret() &&
                again.layout_id() == reply.layout_id() && !again.created(),
            "opened twice, the same namespace");
    request.mutable_layout()->set_block_tokens(request.layout().block_tokens() == 1 ? 2 : 1);
    const grpc::Status other =
        Ask(&session_service_, &SessionService::OpenNamespace, request, &again);
    Require(other.error_code() == grpc::StatusCode::FAILED_PRECONDITION,
            "one name, one definition");
    Require(Snapshot() == table, "reading changes nothing");
  }

  void Create(const v1::CreateNamespaceRequest& request, const Table& before) {
    v1::NamespaceInfo info;
    const grpc::Status status =
        Ask(&admin_service_, &AdminService::CreateNamespace, request, &info);
    if (!status.ok()) return Require(Snapshot() == before, "what is refused changes nothing");
    Require(info.layout_id() == LayoutId(request.layout()), "the layout asked for");
    Require(Snapshot().at(Own(request.name())).id == info.id(), "it is there");
  }

  // As the service does; its stream needs gRPC.
  void Delete(const v1::DeleteNamespaceRequest& request, const Table& before) {
    const std::string tenant =
        request.tenant().empty() ? std::string(kOpenTenant) : request.tenant();
    const absl::Status status = namespaces_.Delete(tenant, request.name(), [](const auto&) {});
    Require(status.message().size() <= kMaxMessageBytes, "a message fits into gRPC's trailers");
    const auto it = before.find({tenant, request.name()});
    if (it == before.end()) {
      Require(absl::IsNotFound(status) && Snapshot() == before, "nothing to delete");
      return;
    }
    Require(status.ok() || absl::IsResourceExhausted(status), "deletes what is there");
    Require(namespaces_.Find(tenant, {it->second.id}) == nullptr, "deleted, not found");
    Table expected = before;
    expected[it->first].live = false;
    Require(Snapshot() == expected, "deletes nothing else");
  }

  void Locate(const v1::LocateRequest& request) {
    v1::LocateReply reply;
    const bool ok = Ask(&admin_service_, &AdminService::Locate, request, &reply).ok();
    const absl::StatusOr<BlockKey> key = ParseBlockKey(request.key());
    Require(ok == key.ok() && !reply.resident(), "an answer for each key");
    if (key.ok()) Require(*ParseBlockKey(ToString(*key)) == *key, "a key reads as it is written");
  }

  void Top(const v1::GetTopRequest& request) {
    v1::GetTopReply reply;
    const bool ok = Ask(&admin_service_, &AdminService::GetTop, request, &reply).ok();
    Require(ok == (request.count() <= 1000) && reply.blocks_size() == 0, "within the bound");
  }

  static std::pair<std::string, std::string> Own(const std::string& name) {
    return {std::string(kOpenTenant), name};
  }

  const Security security_;  // open: everybody is worker and admin of one tenant
  SessionTable sessions_{Clock::Real(), Limits()};
  NamespaceTable namespaces_{kMaxNamespaces, 1 << 20};
  MetricRegistry registry_;
  ControlPlane plane_;
  SessionService session_service_{plane_};
  AdminService admin_service_{plane_};
  std::vector<grpc::ServerWriteReactor<v1::SessionEvent>*> streams_;
};

}  // namespace
}  // namespace terrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  SetLogLevel(LogLevel::kError);
  // Refused words are logged for the programmer; they would drown the fuzzer's.
  static google::protobuf::LogSilencer silence;
  Node node;
  size_t at = 0;
  for (size_t calls = 0; calls < kMaxCalls && at + 3 <= size; ++calls) {
    uint16_t length;
    std::memcpy(&length, data + at + 1, sizeof(length));
    const uint8_t kind = data[at];
    at += 3;
    const size_t taken = std::min<size_t>(length, size - at);
    node.Call(kind, std::string(reinterpret_cast<const char*>(data) + at, taken));
    at += taken;
  }
  return 0;
}
