// The control plane of a whole node over real gRPC: sessions, roles, TLS, operators' calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "cache_node/folder_info.h"
#include "fmt/format.h"
#include "grpcpp/health_check_service_interface.h"
#include "httplib.h"
#include "proto/clock.h"
#include "tests/cache_node/certificates.h"
#include "tests/cache_node/node_fixture.h"

namespace terrace {
namespace {

namespace v1 = control::v1;
using testing::HasSubstr;

constexpr char kWorker[] = "worker-token-0123456789";
constexpr char kOther[] = "other-token-0123456789";
constexpr char kAdmin[] = "admin-token-0123456789";

class ControlTest : public testing::Test {
 protected:
  void StartNode(NodeOptions options = SmallNode()) {
    NodeHooks hooks;
    hooks.make_transport = [this](TransportHandler* handler) { return wires_->Make(handler); };
    absl::StatusOr<std::unique_ptr<Node>> node = Node::Start(options, hooks);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    channel_ = PlainChannel(node_->addresses().control);
  }
  static NodeOptions WithCredentials() {
    const std::string path = testing::TempDir() + "control-credentials";
    std::ofstream(path) << "alpha worker " << kWorker << "\nbeta worker " << kOther
                        << "\nops admin " << kAdmin << "\n";
    chmod(path.c_str(), 0600);
    NodeOptions options = SmallNode();
    options.credentials = path;
    return options;
  }

  template <typename Method, typename Request, typename Reply>
  grpc::Status Call(Method method, const std::string& token, const Request& request, Reply* reply) {
    auto stub = v1::Admin::NewStub(channel_);
    grpc::ClientContext context;
    Prepare(&context, token);
    return (stub.get()->*method)(&context, request, reply);
  }
  uint32_t SessionCount(const std::string& token = "") {
    v1::NodeStatus status;
    EXPECT_TRUE(Call(&v1::Admin::Stub::GetStatus, token, v1::GetStatusRequest(), &status).ok());
    return status.sessions();
  }

  std::unique_ptr<Wires> wires_ = Wires::Loopback();
  std::unique_ptr<Node> node_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ControlTest, ASessionLearnsWhatItNeedsAndHearsHeartbeats) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  ControlSession session(channel_);
  ASSERT_TRUE(session.ok());
  const v1::SessionOpened& opened = session.opened();
  EXPECT_EQ(opened.token().size(), kSessionTokenBytes);
  EXPECT_EQ(opened.node_id(), "test-node");
  EXPECT_EQ(opened.tenant(), "default");
  EXPECT_EQ(opened.data_addresses_size(), 1);
  EXPECT_FALSE(opened.host_id().empty());
  EXPECT_NE(opened.incarnation(), 0);
  EXPECT_EQ(opened.limits().max_keys_per_frame(), kMaxKeysPerFrame);
  EXPECT_EQ(opened.limits().max_lease_ms(), 30'000);
  const absl::Duration start = Clock::Real()->Now();
  v1::SessionEvent event;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(session.Next(&event));
    EXPECT_TRUE(event.has_heartbeat());
  }
  EXPECT_LT(Clock::Real()->Now() - start, absl::Seconds(4));
  EXPECT_EQ(SessionCount(), 1);
}

TEST_F(ControlTest, SessionsAreBounded) {
  NodeOptions options = SmallNode();
  options.limits.max_sessions = 2;
  ASSERT_NO_FATAL_FAILURE(StartNode(options));
  ControlSession a(channel_), b(channel_);
  ASSERT_TRUE(a.ok() && b.ok());
  ControlSession c(channel_);
  EXPECT_FALSE(c.ok());
  EXPECT_EQ(c.status().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ControlTest, AnotherProtocolVersionIsRefused) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  auto stub = v1::Session::NewStub(channel_);
  grpc::ClientContext context;
  v1::OpenRequest request;
  request.set_protocol_version(99);
  auto reader = stub->Open(&context, request);
  v1::SessionEvent event;
  EXPECT_FALSE(reader->Read(&event));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("version 99 of the data plane"));
  EXPECT_THAT(status.error_message(), HasSubstr(fmt::format("version {}: run", kFrameVersion)));
}

TEST_F(ControlTest, TokensDecideTheTenant) {
  ASSERT_NO_FATAL_FAILURE(StartNode(WithCredentials()));
  ControlSession none(channel_), wrong(channel_, "wrong-token-0123456789");
  EXPECT_EQ(none.status().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(wrong.status().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  ControlSession admin(channel_, kAdmin);
  EXPECT_EQ(admin.status().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  ControlSession alpha(channel_, kWorker), beta(channel_, kOther);
  ASSERT_TRUE(alpha.ok() && beta.ok());
  EXPECT_EQ(alpha.opened().tenant(), "alpha");
  EXPECT_EQ(beta.opened().tenant(), "beta");
  EXPECT_NE(alpha.opened().token(), beta.opened().token());

  v1::OpenNamespaceReply a, b;
  ASSERT_TRUE(alpha.OpenNamespace("chat", 4096, 1, &a).ok());
  ASSERT_TRUE(beta.OpenNamespace("chat", 8192, 2, &b).ok());
  EXPECT_TRUE(a.created() && b.created());
  EXPECT_NE(a.id(), b.id());
  EXPECT_EQ(a.secret().size(), 32);
  // Each sees its own, the admin all.
  v1::ListNamespacesReply list;
  ASSERT_TRUE(
      Call(&v1::Admin::Stub::ListNamespaces, kWorker, v1::ListNamespacesRequest(), &list).ok());
  ASSERT_EQ(list.namespaces_size(), 1);
  EXPECT_EQ(list.namespaces(0).tenant(), "alpha");
  ASSERT_TRUE(
      Call(&v1::Admin::Stub::ListNamespaces, kAdmin, v1::ListNamespacesRequest(), &list).ok());
  EXPECT_EQ(list.namespaces_size(), 2);
  EXPECT_EQ(
      Call(&v1::Admin::Stub::ListNamespaces, "", v1::ListNamespacesRequest(), &list).error_code(),
      grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ControlTest, ChangingNeedsAdmin) {
  ASSERT_NO_FATAL_FAILURE(StartNode(WithCredentials()));
  v1::CreateNamespaceRequest create;
  create.set_name("chat");
  *create.mutable_layout() = TestLayout(4096, 1);
  v1::NamespaceInfo info;
  EXPECT_EQ(Call(&v1::Admin::Stub::CreateNamespace, kWorker, create, &info).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  ASSERT_TRUE(Call(&v1::Admin::Stub::CreateNamespace, kAdmin, create, &info).ok());
  EXPECT_EQ(info.tenant(), "ops");
  ControlSession alpha(channel_, kWorker);
  v1::OpenNamespaceReply reply;
  ASSERT_TRUE(alpha.OpenNamespace("chat", 4096, 1, &reply).ok());

  const auto remove = [&](const std::string& token, const std::string& tenant) {
    auto stub = v1::Admin::NewStub(channel_);
    grpc::ClientContext context;
    Prepare(&context, token);
    v1::DeleteNamespaceRequest request;
    request.set_name("chat");
    request.set_tenant(tenant);
    auto reader = stub->DeleteNamespace(&context, request);
    v1::DeleteNamespaceProgress progress;
    bool done = false;
    while (reader->Read(&progress)) done = progress.done();
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.ok(), done);
    return status.error_code();
  };
  EXPECT_EQ(remove(kWorker, ""), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(remove(kAdmin, "gamma"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(remove(kAdmin, "alpha"), grpc::StatusCode::OK);
  EXPECT_EQ(remove(kAdmin, "alpha"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(remove(kAdmin, ""), grpc::StatusCode::OK);
}

TEST_F(ControlTest, ADifferentDefinitionNamesItsFields) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  ControlSession session(channel_);
  v1::OpenNamespaceReply reply;
  ASSERT_TRUE(session.OpenNamespace("chat", 4096, 1, &reply).ok());
  EXPECT_TRUE(reply.created());
  ASSERT_TRUE(session.OpenNamespace("chat", 4096, 1, &reply).ok());
  EXPECT_FALSE(reply.created());
  const grpc::Status status = session.OpenNamespace("chat", 8192, 1, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("block_bytes is '4096', not '8192'"));
}

TEST_F(ControlTest, OperatorsSeeTheNode) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  v1::NodeStatus status;
  ASSERT_TRUE(Call(&v1::Admin::Stub::GetStatus, "", v1::GetStatusRequest(), &status).ok());
  EXPECT_EQ(status.state(), "ready");
  EXPECT_EQ(status.security(), "open, loopback only");
  EXPECT_EQ(status.control_address(), node_->addresses().control);
  EXPECT_EQ(status.http_address(), node_->addresses().http);
  EXPECT_GT(status.resident_memory_bytes(), 64 << 20);
  EXPECT_GT(status.memory_size(), 1);
  v1::GetTiersReply tiers;
  ASSERT_TRUE(Call(&v1::Admin::Stub::GetTiers, "", v1::GetTiersRequest(), &tiers).ok());
  EXPECT_EQ(tiers.tiers(0).tier(), "host");
  EXPECT_EQ(tiers.tiers(0).capacity_bytes(), 64 << 20);
  v1::GetTopReply top;
  v1::GetTopRequest top_request;
  EXPECT_TRUE(Call(&v1::Admin::Stub::GetTop, "", top_request, &top).ok());
  top_request.set_count(1001);
  EXPECT_EQ(Call(&v1::Admin::Stub::GetTop, "", top_request, &top).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::LocateRequest locate;
  v1::LocateReply located;
  locate.set_key("nonsense");
  EXPECT_EQ(Call(&v1::Admin::Stub::Locate, "", locate, &located).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  locate.set_key(ToString(BlockKey{{1}, TestKey(1).digest, 0}));
  ASSERT_TRUE(Call(&v1::Admin::Stub::Locate, "", locate, &located).ok());
  EXPECT_FALSE(located.resident());
  v1::GetStatsReply stats;
  ASSERT_TRUE(Call(&v1::Admin::Stub::GetStats, "", v1::GetStatsRequest(), &stats).ok());
  EXPECT_TRUE(stats.values().contains("terrace_sessions"));
  EXPECT_TRUE(stats.values().contains("process_cpu_seconds_total"));
}

TEST(FolderInfo, SaysTheWorstThatIsTrueOfAFolder) {
  ColdFolderStats stats;
  stats.load_progress = 0.4;
  EXPECT_EQ(HealthInWords(stats), "loading, 40 %");
  stats.rebuilding = true;
  EXPECT_EQ(HealthInWords(stats), "rebuilding the catalogue, 40 %");
  EXPECT_FALSE(ToFolderInfo(stats, "").healthy());
  stats.loaded = true;
  EXPECT_EQ(HealthInWords(stats), "ready");
  EXPECT_TRUE(ToFolderInfo(stats, "").healthy());
  stats.writes_error = "No space left on device";
  EXPECT_EQ(HealthInWords(stats), "writes fail: No space left on device");
  stats.overdue = 2;
  EXPECT_THAT(HealthInWords(stats), HasSubstr("2 requests do not come back"));
  stats.load_error = "ssd: broken";
  EXPECT_THAT(HealthInWords(stats), HasSubstr("load failed, no writes until the next start: ssd"));
  EXPECT_EQ(FileSystemOf("/proc"), "proc on proc");
  EXPECT_EQ(FileSystemOf("/not/there"), "");
}

TEST_F(ControlTest, FoldersOfTheSsdTierAreShownWithTheirHealth) {
  const std::string path = testing::TempDir() + "control-ssd";
  std::filesystem::remove_all(path);
  NodeOptions options = SmallNode();
  options.ssd = {path + ":256MiB"};
  ASSERT_NO_FATAL_FAILURE(StartNode(options));
  v1::NodeStatus status;
  while (status.folders_size() == 0 || status.folders(0).health() != "ready") {
    ASSERT_TRUE(Call(&v1::Admin::Stub::GetStatus, "", v1::GetStatusRequest(), &status).ok());
  }
  v1::GetTiersReply tiers;
  ASSERT_TRUE(Call(&v1::Admin::Stub::GetTiers, "", v1::GetTiersRequest(), &tiers).ok());
  EXPECT_EQ(tiers.tiers(0).folders_size(), 0);
  EXPECT_TRUE(tiers.tiers(0).demotions().contains("no_room"));
  EXPECT_TRUE(tiers.tiers(0).fills().contains("filled"));
  ASSERT_EQ(tiers.tiers(1).folders_size(), 1);
  const v1::FolderInfo& folder = tiers.tiers(1).folders(0);
  EXPECT_EQ(folder.path(), path);
  EXPECT_EQ(folder.budget_bytes(), 256 << 20);
  EXPECT_GE(folder.disk_bytes(), 128 << 20) << "whole extents";
  EXPECT_LE(folder.disk_bytes(), 256 << 20);
  EXPECT_EQ(folder.failed_commits(), 0);
  node_.reset();
  std::filesystem::remove_all(path);
}

TEST_F(ControlTest, HttpServesMetricsAndHealth) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  httplib::Client http("http://" + node_->addresses().http);
  auto metrics = http.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  for (const char* name : {"terrace_frames_total{type=\"get\"}", "terrace_sessions",
                           "terrace_tier_evictions_total{", "process_resident_memory_bytes"}) {
    EXPECT_THAT(metrics->body, HasSubstr(name));
  }
  EXPECT_EQ(http.Get("/healthz")->status, 200);
  EXPECT_EQ(http.Get("/readyz")->status, 200);
  EXPECT_EQ(http.Get("/")->status, 404);
  EXPECT_EQ(http.Post("/metrics", std::string(100'000, 'x'), "text/plain")->status, 413);
}

TEST_F(ControlTest, StoppingIsToldAndBounded) {
  NodeOptions options = SmallNode();
  options.stop_timeout = absl::Seconds(1);
  ASSERT_NO_FATAL_FAILURE(StartNode(options));
  ControlSession session(channel_);
  ASSERT_TRUE(session.ok());
  v1::OpenNamespaceReply ns;
  ASSERT_TRUE(session.OpenNamespace("chat", 4096, 1, &ns).ok());
  FrameClient client(wires_.get(), node_->addresses().data.front());
  ASSERT_TRUE(client.Hello(session.token()));
  ReserveFrame reserve{{ns.id()}, 0, {{TestKey(1), {4096, 1}, 0, 0}}};
  ASSERT_TRUE(client.Call<ReserveReplyFrame>(1, reserve));  // never used: never quiet
  const absl::Duration start = Clock::Real()->Now();
  std::thread stopper([this] { node_->Stop(); });
  v1::SessionEvent event;
  bool goaway = false;
  while (session.Next(&event)) goaway |= event.has_goaway();
  EXPECT_TRUE(goaway);
  stopper.join();
  EXPECT_LT(Clock::Real()->Now() - start, absl::Seconds(4));
  EXPECT_EQ(session.status().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(client.WaitUntilClosed());
}

class TlsTest : public ControlTest {
 protected:
  void StartTls(bool client_certificates) {
    NodeOptions options = WithCredentials();
    options.tls_cert = files_.server_certificate;
    options.tls_key = files_.server_key;
    if (client_certificates) options.tls_ca = files_.ca;
    ASSERT_NO_FATAL_FAILURE(StartNode(options));
  }
  std::shared_ptr<grpc::Channel> Channel(bool with_certificate) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = Read(files_.ca);
    if (with_certificate) {
      options.pem_cert_chain = Read(files_.client_certificate);
      options.pem_private_key = Read(files_.client_key);
    }
    return grpc::CreateChannel(node_->addresses().control, grpc::SslCredentials(options));
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const CertificateFiles files_ = MakeCertificates(testing::TempDir());
};

TEST_F(TlsTest, TlsKeepsPlainTextOut) {
  StartTls(false);
  EXPECT_THAT(node_->Describe(), HasSubstr("security=\"tls + tokens\""));
  ControlSession good(Channel(false), kWorker);
  EXPECT_TRUE(good.ok());
  ControlSession plain(channel_, kWorker);
  EXPECT_FALSE(plain.ok());
  EXPECT_EQ(plain.status().error_code(), grpc::StatusCode::UNAVAILABLE);
  ControlSession no_token(Channel(false));
  EXPECT_EQ(no_token.status().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(TlsTest, MutualTlsAsksForACertificate) {
  StartTls(true);
  EXPECT_THAT(node_->Describe(), HasSubstr("security=\"mtls + tokens\""));
  ControlSession good(Channel(true), kWorker);
  EXPECT_TRUE(good.ok());
  ControlSession without(Channel(false), kWorker);
  EXPECT_FALSE(without.ok());
  EXPECT_EQ(without.status().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, AKeyThatDoesNotFitIsRefused) {
  NodeOptions options = WithCredentials();
  options.tls_cert = files_.server_certificate;
  options.tls_key = files_.client_key;
  absl::StatusOr<std::unique_ptr<Node>> node = Node::Start(options);
  EXPECT_FALSE(node.ok());
}

}  // namespace
}  // namespace terrace
