// terraced as people start it: a process, its output, its signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "fmt/format.h"
#include "httplib.h"
#include "proto/clock.h"
#include "tests/cache_node/certificates.h"
#include "tests/cache_node/node_fixture.h"
#include "tests/support/child_process.h"
#include "tests/support/listening.h"

namespace terrace {
namespace {

using testing::HasSubstr;

std::vector<std::string> Command(std::vector<std::string> more = {}) {
  std::vector<std::string> argv = {BinaryPath("terraced"),      "--listen=127.0.0.1:0",
                                   "--http-listen=127.0.0.1:0", "--host-bytes=64MiB",
                                   "--max-block-bytes=8MiB",    "--transport=tcp"};
  for (std::string& argument : more) argv.push_back(std::move(argument));
  return argv;
}

struct Ended {
  std::optional<int> code;
  std::string output, errors;
};

Ended RunToEnd(const std::vector<std::string>& argv) {
  ChildProcess process = *ChildProcess::Start(argv);
  const std::optional<int> code = process.Wait();
  return {code, process.output(), process.errors()};
}

// A started node and the addresses of its ready line.
struct RunningNode {
  explicit RunningNode(std::vector<std::string> more = {})
      : process(*ChildProcess::Start(Command(std::move(more)))) {
    ready = process.WaitForLine("terraced ready").value_or("");
    control = Field(ready, "control");
    data = Field(ready, "data");
    http = Field(ready, "http");
  }
  int HttpStatus(const std::string& path) {
    auto response = httplib::Client("http://" + http).Get(path);
    return response ? response->status : 0;
  }
  std::string Metrics() {
    auto response = httplib::Client("http://" + http).Get("/metrics");
    return response ? response->body : "";
  }

  ChildProcess process;
  std::string ready, control, data, http;
};

TEST(TerracedTest, HelpVersionAndCheckConfig) {
  Ended help = RunToEnd({BinaryPath("terraced"), "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* flag : {"--listen", "--host-bytes", "--credentials", "--config", "--tls-ca"}) {
    EXPECT_THAT(help.output, HasSubstr(flag));
  }
  EXPECT_EQ(RunToEnd({BinaryPath("terraced"), "--version"}).code, 0);
  Ended check = RunToEnd(Command({"--check-config"}));
  EXPECT_EQ(check.code, 0);
  for (const char* text :
       {"control:", "data:", "http:", "open, loopback only", "64.0 MiB", "in all"}) {
    EXPECT_THAT(check.output, HasSubstr(text));
  }
}

TEST(TerracedTest, CheckConfigPrintsTheSsdFoldersWithTheirBudgets) {
  const std::string sized = testing::TempDir() + "check-a", whole = testing::TempDir() + "check-b";
  const Ended check =
      RunToEnd(Command({"--check-config", "--ssd=" + sized + ":2GiB", "--ssd=" + whole}));
  EXPECT_EQ(check.code, 0) << check.errors;
  EXPECT_THAT(check.output, HasSubstr(fmt::format("ssd:      {}, 2.00 GiB\n", sized)));
  EXPECT_THAT(check.output, HasSubstr(fmt::format("ssd:      {}, ", whole)));
  EXPECT_THAT(check.output, HasSubstr("B (four fifths of the device)\n"));
  EXPECT_FALSE(std::filesystem::exists(sized)) << "a check makes nothing";
}

TEST(TerracedTest, CheckConfigPrintsWhatBoundsTheSsdTier) {
  const std::string ssd = "--ssd=" + testing::TempDir() + "check-a:2GiB";
  EXPECT_THAT(RunToEnd(Command({"--check-config", ssd})).output,
              testing::Not(HasSubstr("write budget")));
  const Ended check = RunToEnd(
      Command({"--check-config", ssd, "--ssd-write-budget=3200GiB", "--ssd-write-rate=200MiB",
               "--ssd-endurance=6366TiB", "--ssd-max-age=48h"}));
  EXPECT_EQ(check.code, 0) << check.errors;
  for (const char* line :
       {"ssd:      write budget 3.12 TiB per day\n", "ssd:      write rate 200.0 MiB per second\n",
        "ssd:      endurance 6.22 PiB of each device\n", "ssd:      max age 48h\n"}) {
    EXPECT_THAT(check.output, HasSubstr(line));
  }
}

TEST(TerracedTest, CheckConfigLooksAtTheSsdFoldersAndMakesNothing) {
  const std::string top = testing::TempDir() + "check-ssd";
  std::filesystem::remove_all(top);
  const auto make = [&top](const std::string& name, const std::string& file,
                           const std::string& text) {
    std::filesystem::create_directories(top + "/" + name);
    std::ofstream(top + "/" + name + "/" + file) << text;
    return top + "/" + name;
  };
  const std::string foreign = make("foreign", "holiday.jpg", "x");
  const struct {
    std::string path, expected;
  } wrong[] = {
      {foreign, "is not empty and no ssd folder of Terrace: it holds holiday.jpg; name"},
      {foreign + "/holiday.jpg", "Not a directory; name a folder"},
      {foreign + "/holiday.jpg/below", "Not a directory; name a folder"},
      {make("others", "terrace-ssd",
            "format 1\ncluster local\nnode x\nfolder 1\nextent-bytes 4194304\n"),
       "belongs to node x of cluster local, not to node n1 of cluster local: start that node "
       "(--node-id x), or empty the folder"},
      {make("later", "terrace-ssd", "format 2\n"), "it is of format 2, this build knows 1: start"},
      {make("damaged", "terrace-ssd", "format 1\n"), "is missing; the file is damaged: empty"},
  };
  for (const auto& [path, expected] : wrong) {
    for (const bool check : {true, false}) {  // a start says the same
      std::vector<std::string> argv = Command({"--node-id=n1", "--ssd=" + path + ":512MiB"});
      if (check) argv.push_back("--check-config");
      const Ended ended = RunToEnd(argv);
      EXPECT_EQ(ended.code, check ? 2 : 1) << path;
      EXPECT_THAT(ended.errors, HasSubstr("terraced: --ssd: ")) << path;
      EXPECT_THAT(ended.errors, HasSubstr(expected)) << path;
      EXPECT_TRUE(!check || !std::filesystem::exists(path + "/lock"));
    }
  }
  std::filesystem::remove_all(top);
}

// By the node, perhaps, that is to be started again with what is checked.
TEST(TerracedTest, AnSsdFolderInUseIsAWarningOfTheCheck) {
  const std::string folder = testing::TempDir() + "check-in-use";
  std::filesystem::remove_all(folder);
  const std::vector<std::string> ssd = {"--node-id=n1", "--ssd=" + folder + ":256MiB"};
  {
    RunningNode node(ssd);
    ASSERT_NE(node.control, "") << node.process.errors();
    std::vector<std::string> argv = Command(ssd);
    argv.push_back("--check-config");
    const Ended check = RunToEnd(argv);
    EXPECT_EQ(check.code, 0);
    EXPECT_THAT(check.errors, HasSubstr("terraced: warning: --ssd: " + folder +
                                        " is in use by another process: stop that, or name"));
  }
  std::filesystem::remove_all(folder);
}

TEST(TerracedTest, SaysHowDataTravelsAndWhy) {
  RunningNode asked;
  asked.process.Signal(SIGTERM);
  EXPECT_EQ(asked.process.Wait(), 0);
  EXPECT_THAT(asked.process.errors(),
              HasSubstr("data travels by tcp (--transport tcp): asked for\n"));
  RunningNode chosen({"--transport=auto"});
  chosen.process.Signal(SIGTERM);
  EXPECT_EQ(chosen.process.Wait(), 0);
  EXPECT_THAT(
      chosen.process.errors(),
      testing::ContainsRegex("data travels by [a-z]+ [(]--transport auto[)]: .*RDMA device"));
}

TEST(TerracedTest, MemoryThatIsNotThereIsAWarningOfTheCheckAndAnErrorOfTheStart) {
  Ended check = RunToEnd(Command({"--check-config", "--host-bytes=100TiB"}));
  EXPECT_EQ(check.code, 0);
  EXPECT_THAT(check.errors, HasSubstr("warning: --host-bytes: host_bytes is "));
  Ended start = RunToEnd(Command({"--host-bytes=100TiB"}));
  EXPECT_EQ(start.code, 1);
  EXPECT_THAT(start.errors, HasSubstr("terraced: --host-bytes: host_bytes is "));
  const std::string top = testing::TempDir() + "terrace_memory_";
  std::vector<std::string> arguments = {"--check-config", "--host-bytes=64MiB"};
  for (int i = 0; i < 200; ++i) arguments.push_back(fmt::format("--ssd={}{}:16TiB", top, i));
  Ended large = RunToEnd(Command(arguments));
  EXPECT_EQ(large.code, 0);
  EXPECT_THAT(large.errors, testing::ContainsRegex("warning: memory: all of it is .* leaves only "
                                                   ".*; lower --host-bytes or --ssd"));
}

TEST(TerracedTest, WrongConfigurationsEndWithTwoAndNameTheFlag) {
  const struct {
    std::vector<std::string> arguments;
    const char* expected;
  } cases[] = {
      {{"--check-config", "--listen=0.0.0.0:7470"}, "--listen: "},
      {{"--check-config", "--credentials=not-there"}, "--credentials: "},
      {{"--check-config", "--host-bytes=1MiB"}, "--host-bytes: "},
      {{"--check-config", "--host-bytes=99999999TiB"}, "--host-bytes: '99999999TiB' is too large"},
      {{"--check-config", "--ssd=/x:99999999TiB"}, "'99999999TiB' is too large"},
      {{"--host-byte=1MiB"}, "--host-byte"},
      {{"--transport=pigeon"}, "--transport"},
      {{"--config=not-there.toml"}, "not-there.toml"},
  };
  for (const auto& c : cases) {
    Ended ended = RunToEnd(Command(c.arguments));
    EXPECT_EQ(ended.code, 2) << c.expected;
    EXPECT_THAT(ended.errors, HasSubstr(c.expected));
    EXPECT_EQ(ended.output, "");
  }
}

TEST(TerracedTest, PortsInUseAreNamed) {
  RunningNode first;
  ASSERT_NE(first.control, "") << first.process.errors();
  const std::string data = first.data.substr(0, first.data.find(','));
  for (const auto& [flag, address] : std::vector<std::pair<std::string, std::string>>{
           {"--listen", first.control}, {"--http-listen", first.http}, {"--data-listen", data}}) {
    Ended second = RunToEnd(Command({fmt::format("{}={}", flag, address)}));
    EXPECT_EQ(second.code, 1);
    EXPECT_THAT(second.errors, HasSubstr(fmt::format("{}: {}: Address already in use; stop who "
                                                     "uses it or choose another port",
                                                     flag, address)));
  }
  EXPECT_EQ(first.HttpStatus("/readyz"), 200);
}

TEST(TerracedTest, MoreMemoryThanThereIsIsRefused) {
  Ended ended = RunToEnd(Command({"--host-bytes=512TiB"}));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.errors, HasSubstr("--host-bytes: "));
  EXPECT_THAT(ended.errors, HasSubstr("GiB"));
}

TEST(TerracedTest, ServesOnIpv6Loopback) {
  RunningNode node({"--listen=[::1]:0", "--http-listen=[::1]:0", "--data-listen=[::1]:0"});
  ASSERT_THAT(node.control, testing::StartsWith("[::1]:")) << node.process.errors();
  ControlSession session(PlainChannel(node.control));
  EXPECT_TRUE(session.ok()) << session.status().error_message();
  httplib::Client http("::1", std::stoi(node.http.substr(node.http.rfind(':') + 1)));
  EXPECT_EQ(http.Get("/readyz")->status, 200);
}

// An IPv6 address of this machine that is neither loopback nor of one link; empty: there is none.
std::string GlobalIpv6Address() {
  std::ifstream table("/proc/net/if_inet6");
  std::string address, index, prefix, scope, flags, name;
  while (table >> address >> index >> prefix >> scope >> flags >> name) {
    if (scope != "00") continue;
    for (size_t at = 28; at > 0; at -= 4) address.insert(at, ":");
    return address;
  }
  return "";
}

TEST(TerracedTest, SecuredOnAnIpv6Interface) {
  const std::string host = GlobalIpv6Address();
  if (host.empty()) GTEST_SKIP() << "no global IPv6 address here";
  const std::string folder = testing::TempDir();
  const CertificateFiles files = MakeCertificates(folder);
  const std::string token = "worker-token-0123456789";
  std::ofstream(folder + "tenants") << "alpha worker " << token << "\n";
  chmod((folder + "tenants").c_str(), 0600);
  RunningNode node({fmt::format("--data-listen=[{}]:0", host),
                    "--credentials=" + folder + "tenants", "--tls-cert=" + files.server_certificate,
                    "--tls-key=" + files.server_key});
  ASSERT_EQ(Field(node.ready, "security"), "tls + tokens") << node.process.errors();
  grpc::SslCredentialsOptions tls;
  std::ostringstream ca;
  ca << std::ifstream(files.ca).rdbuf();
  tls.pem_root_certs = ca.str();
  ControlSession session(grpc::CreateChannel(node.control, grpc::SslCredentials(tls)), token);
  ASSERT_TRUE(session.ok()) << session.status().error_message();
  std::unique_ptr<Wires> wires = Wires::Tcp();
  FrameClient client(wires.get(), session.opened().data_addresses(0));
  EXPECT_TRUE(client.Hello(session.token()));
}

TEST(TerracedTest, TheReadyLineCanBeParsed) {
  RunningNode node({"--node-id=node-7", "--data-threads=2"});
  EXPECT_THAT(node.ready,
              testing::MatchesRegex(
                  "terraced ready control=127\\.0\\.0\\.1:[0-9]+ "
                  "data=127\\.0\\.0\\.1:[0-9]+,127\\.0\\.0\\.1:[0-9]+ http=127\\.0\\.0\\.1:[0-9]+ "
                  "node=node-7 security=\"open, loopback only\""))
      << node.process.errors();
}

TEST(TerracedTest, LoopbackOnlyMeansEachOfItsPorts) {
  RunningNode node({"--supervisor=off"});
  ASSERT_NE(node.control, "");
  ControlSession session(PlainChannel(node.control));
  std::unique_ptr<Wires> wires = Wires::Tcp();
  FrameClient client(wires.get(), session.opened().data_addresses(0));
  ASSERT_TRUE(client.Hello(session.token()));
  EXPECT_GE(ListeningSockets(node.process.pid()).size(), 3u);
  EXPECT_THAT(ListeningBeyondLoopback(node.process.pid()), testing::IsEmpty());
}

// Its own end of the connections stays in TIME_WAIT for a minute, on the port that it needs.
TEST(TerracedTest, ANodeThatWasKilledTakesItsPortsBackAtOnce) {
  auto first = std::make_unique<RunningNode>(
      std::vector<std::string>{"--data-threads=1", "--supervisor=off"});
  ASSERT_NE(first->control, "");
  const std::string control = first->control, data = Field(first->ready, "data");
  {
    ControlSession session(PlainChannel(control));
    std::unique_ptr<Wires> wires = Wires::Tcp();
    FrameClient client(wires.get(), data);
    ASSERT_TRUE(client.Hello(session.token()));
    first->process.Signal(SIGKILL);
    EXPECT_TRUE(client.WaitUntilClosed());
  }
  first.reset();
  RunningNode second({"--listen=" + control, "--data-listen=" + data, "--data-threads=1"});
  EXPECT_EQ(second.control, control) << second.process.errors();
}

TEST(TerracedTest, AnIdleNodeUsesNoCpu) {
  RunningNode node;
  ASSERT_NE(node.control, "");
  ControlSession session(PlainChannel(node.control));  // idle workers cost next to nothing, too
  ASSERT_TRUE(session.ok());
  const absl::Duration before = node.process.CpuTime();
  const absl::Duration start = Clock::Real()->Now();
  control::v1::SessionEvent event;  // heartbeats tell the time
  while (Clock::Real()->Now() - start < absl::Seconds(2)) ASSERT_TRUE(session.Next(&event));
  const absl::Duration elapsed = Clock::Real()->Now() - start;
  EXPECT_LT(absl::FDivDuration(node.process.CpuTime() - before, elapsed), 0.01);
}

TEST(TerracedTest, SigtermDuringTrafficFinishesAndEndsWithZero) {
  RunningNode node;
  ASSERT_NE(node.control, "");
  ControlSession session(PlainChannel(node.control));
  ASSERT_TRUE(session.ok());
  constexpr uint32_t kBytes = 256 << 10;
  control::v1::OpenNamespaceReply ns;
  ASSERT_TRUE(session.OpenNamespace("load", kBytes, 4, &ns).ok());
  std::unique_ptr<Wires> wires = Wires::Tcp();
  FrameClient client(wires.get(), session.opened().data_addresses(0));
  ASSERT_TRUE(client.Hello(session.token()));
  uint64_t published = 0;
  bool stopping = false;
  for (uint64_t i = 0; !stopping; ++i) {
    const WireKey key = TestKey(i);
    ReserveFrame reserve{{ns.id()}, 0, {{key, {kBytes, 4}, 0, 0}}};
    auto reserved = client.Call<ReserveReplyFrame>(1, reserve);
    if (!reserved || reserved->items[0].status == WireStatus::kStopping) break;
    ASSERT_EQ(reserved->items[0].status, WireStatus::kOk);
    const std::vector<std::byte> value = PatternValue(key, kBytes);
    const Envelope envelope = MakeEnvelope({ns.id()}, key, ns.layout_id(), 4, value);
    // From the moment of the signal on, what was granted is still finished.
    if (i == 20) node.process.Signal(SIGTERM);
    auto put = client.Call<PutReplyFrame>(
        2, ValueFrame{0, reserved->items[0].reservation, Encoded(envelope)}, value);
    ASSERT_TRUE(put) << i;
    ASSERT_EQ(put->status, WireStatus::kOk);
    ++published;
  }
  EXPECT_GT(published, 20);
  const absl::Duration start = Clock::Real()->Now();
  EXPECT_EQ(node.process.Wait(), 0) << node.process.errors();
  EXPECT_LT(Clock::Real()->Now() - start, absl::Seconds(8));
}

TEST(TerracedTest, ASecondSignalEndsAtOnce) {
  RunningNode node({"--stop-timeout=10m"});
  ASSERT_NE(node.control, "");
  ControlSession session(PlainChannel(node.control));
  control::v1::OpenNamespaceReply ns;
  ASSERT_TRUE(session.OpenNamespace("busy", 4096, 1, &ns).ok());
  std::unique_ptr<Wires> wires = Wires::Tcp();
  FrameClient client(wires.get(), session.opened().data_addresses(0));
  ASSERT_TRUE(client.Hello(session.token()));
  ReserveFrame reserve{{ns.id()}, 60'000, {{TestKey(1), {4096, 1}, 0, 0}}};
  ASSERT_TRUE(client.Call<ReserveReplyFrame>(1, reserve));  // keeps the node from being quiet
  node.process.Signal(SIGTERM);
  control::v1::SessionEvent event;
  while (!event.has_goaway()) ASSERT_TRUE(session.Next(&event));
  EXPECT_EQ(node.HttpStatus("/readyz"), 503);
  node.process.Signal(SIGTERM);
  EXPECT_EQ(node.process.Wait(), 128 + SIGTERM);
}

// The worker of the test below, in a process of its own that can be frozen.
TEST(FrozenWorkerTest, DISABLED_Worker) {
  const std::string control = std::getenv("TERRACE_TEST_CONTROL");
  ControlSession session(PlainChannel(control));
  ASSERT_TRUE(session.ok());
  std::unique_ptr<Wires> wires = Wires::Tcp();
  FrameClient client(wires.get(), session.opened().data_addresses(0));
  ASSERT_TRUE(client.Hello(session.token()));
  std::cout << "worker is up" << std::endl;
  control::v1::SessionEvent event;
  while (session.Next(&event)) continue;
}

TEST(FrozenWorkerTest, IsNoticedAndItsSessionEnds) {
  RunningNode node;
  ASSERT_NE(node.control, "");
  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  ChildProcess worker = *ChildProcess::Start(
      {self, "--gtest_filter=FrozenWorkerTest.DISABLED_Worker", "--gtest_also_run_disabled_tests"},
      {"TERRACE_TEST_CONTROL=" + node.control});
  const auto line = worker.WaitForLine("worker is up");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(node.Metrics(), HasSubstr("\nterrace_sessions 1\n"));
  EXPECT_THAT(node.Metrics(), HasSubstr("\nterrace_connections 1\n"));
  worker.Signal(SIGSTOP);
  const absl::Duration start = Clock::Real()->Now();
  const auto gone = [&] {
    const std::string metrics = node.Metrics();
    return metrics.find("\nterrace_sessions 0\n") != std::string::npos &&
           metrics.find("\nterrace_connections 0\n") != std::string::npos;
  };
  while (!gone()) ASSERT_LT(Clock::Real()->Now() - start, absl::Seconds(20));
  EXPECT_LT(Clock::Real()->Now() - start, absl::Seconds(6));
}

}  // namespace
}  // namespace terrace
