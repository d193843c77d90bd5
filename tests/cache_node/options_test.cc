#include "cache_node/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace terrace {
namespace {

using testing::HasSubstr;

std::string TempFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

absl::Status Validated(void (*change)(NodeOptions*)) {
  NodeOptions options;
  change(&options);
  return options.Validate();
}

TEST(OptionsTest, DefaultsAreValidAndOfThisMachineOnly) {
  const NodeOptions options;
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  EXPECT_FALSE(options.secured());
  EXPECT_GE(options.data_threads, 1);
  EXPECT_LE(options.data_threads, 2);
  EXPECT_FALSE(options.node_id.empty());
}

TEST(OptionsTest, EachErrorNamesItsFlag) {
  const struct {
    void (*change)(NodeOptions*);
    const char* flag;
  } cases[] = {
      {[](NodeOptions* o) { o->listen = "7470"; }, "--listen"},
      {[](NodeOptions* o) { o->listen = "host.example:7470"; }, "--listen"},
      {[](NodeOptions* o) { o->listen = "127.0.0.1:70000"; }, "--listen"},
      {[](NodeOptions* o) { o->listen = "::1:7470"; }, "--listen"},
      {[](NodeOptions* o) { o->listen = "[127.0.0.1]:7470"; }, "--listen"},
      {[](NodeOptions* o) { o->data_listen = "0.0.0.0:0"; }, "--data-listen"},
      {[](NodeOptions* o) { o->http_listen = "10.0.0.5:80"; }, "--http-listen"},
      {[](NodeOptions* o) { o->data_listen = "127.0.0.1:65535", o->data_threads = 2; },
       "--data-listen"},
      {[](NodeOptions* o) { o->advertise = "0.0.0.0"; }, "--advertise"},
      {[](NodeOptions* o) { o->advertise = "[::]"; }, "--advertise"},
      {[](NodeOptions* o) { o->tls_cert = "a"; }, "--tls-key"},
      {[](NodeOptions* o) { o->tls_key = "a"; }, "--tls-cert"},
      {[](NodeOptions* o) { o->tls_ca = "a"; }, "--tls-ca"},
      {[](NodeOptions* o) { o->max_block_bytes = 1; }, "--max-block-bytes"},
      {[](NodeOptions* o) { o->host_bytes = 1 << 20; }, "--host-bytes"},
      {[](NodeOptions* o) { o->node_id = ""; }, "--node-id"},
      {[](NodeOptions* o) { o->limits.max_lease = absl::ZeroDuration(); }, "--max-lease"},
      {[](NodeOptions* o) { o->stop_timeout = absl::Hours(1); }, "--stop-timeout"},
      {[](NodeOptions* o) { o->ssd = {"/x:0"}; }, "--ssd"},
      {[](NodeOptions* o) { o->ssd_write_budget = 1; }, "--ssd-write-budget"},
      {[](NodeOptions* o) { o->ssd_write_rate = 1; }, "--ssd-write-rate"},
      {[](NodeOptions* o) { o->ssd_endurance = 1; }, "--ssd-endurance"},
      {[](NodeOptions* o) { o->ssd_max_age = absl::Hours(1); }, "--ssd-max-age"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Validated(c.change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.flag;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(std::string(c.flag) + ":"));
  }
}

TEST(OptionsTest, WhatTheSsdTierLacksIsSaidWithTheMend) {
  NodeOptions options;
  options.ssd_write_budget = options.ssd_write_rate = options.ssd_endurance = 1 << 30;
  options.ssd_max_age = absl::Hours(1);
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("has no effect without --ssd"));
  options.ssd = {"/x:1GiB"};
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  options.ssd = {"/x:0"};
  EXPECT_THAT(std::string(options.Validate().message()),
              HasSubstr("a budget of 0 holds nothing: give 256.0 MiB at least, or leave ':0' out"));
}

TEST(OptionsTest, OtherInterfacesNeedCredentialsAndTls) {
  const absl::Status open = Validated([](NodeOptions* o) { o->listen = "0.0.0.0:7470"; });
  EXPECT_THAT(std::string(open.message()), HasSubstr("--credentials"));
  NodeOptions options;
  options.tls_cert = options.tls_key = options.credentials = "file";
  options.listen = "0.0.0.0:7470";
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  options.data_listen = "[::]:0";
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("--advertise"));
  options.advertise = "node7.example";
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  options.credentials.clear();
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("--listen"));
}

TEST(OptionsTest, Ipv6Loopback) {
  NodeOptions options;
  options.listen = options.http_listen = "[::1]:0";
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  options.data_listen = "[::1]:0";
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  options.transport = "rdma";
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("--data-listen"));
}

TEST(OptionsTest, FileAndFlagsHaveTheSameNames) {
  const std::string file = TempFile("node.toml",
                                    "listen = \"127.0.0.1:1\"\nhost-bytes = \"2GiB\"\n"
                                    "data-threads = 3\nmax-lease = \"5s\"\n");
  CommandLine line;
  const char* argv[] = {"terraced", "--config", file.c_str(), "--listen", "127.0.0.1:2"};
  ASSERT_FALSE(ParseCommandLine(5, argv, &line).has_value());
  EXPECT_EQ(line.options.listen, "127.0.0.1:2");  // a flag wins
  EXPECT_EQ(line.options.host_bytes, uint64_t{2} << 30);
  EXPECT_EQ(line.options.data_threads, 3);
  EXPECT_EQ(line.options.limits.max_lease, absl::Seconds(5));
}

TEST(OptionsTest, TyposAreErrors) {
  const std::string file = TempFile("typo.toml", "host-byte = \"2GiB\"\n");
  CommandLine line;
  const char* config[] = {"terraced", "--config", file.c_str()};
  testing::internal::CaptureStderr();
  EXPECT_EQ(ParseCommandLine(3, config, &line), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("host-byte"));
  const char* flag[] = {"terraced", "--host-byte", "2GiB"};
  testing::internal::CaptureStderr();
  EXPECT_EQ(ParseCommandLine(3, flag, &line), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("--host-byte"));
  const char* value[] = {"terraced", "--host-bytes", "2GB"};
  testing::internal::CaptureStderr();
  EXPECT_EQ(ParseCommandLine(3, value, &line), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("--host-bytes"));
}

}  // namespace
}  // namespace terrace
