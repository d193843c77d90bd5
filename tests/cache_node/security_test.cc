#include "cache_node/security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr char kGood[] =
    "# tenants of the test\n"
    "\n"
    "alpha worker alpha-token-0123456789\n"
    "  ops  admin,worker\tops-token-0123456789\r\n";

TEST(CredentialsTest, FindsIdentitiesByToken) {
  absl::StatusOr<Credentials> credentials = Credentials::Parse(kGood);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  std::optional<Identity> alpha = credentials->Find("alpha-token-0123456789");
  ASSERT_TRUE(alpha);
  EXPECT_EQ(alpha->tenant, "alpha");
  EXPECT_TRUE(alpha->worker);
  EXPECT_FALSE(alpha->admin);
  std::optional<Identity> ops = credentials->Find("ops-token-0123456789");
  ASSERT_TRUE(ops);
  EXPECT_TRUE(ops->worker && ops->admin);
  for (const char* wrong : {"", "alpha", "alpha-token-012345678", "alpha-token-01234567890"}) {
    EXPECT_FALSE(credentials->Find(wrong)) << wrong;
  }
}

TEST(CredentialsTest, ErrorsHaveALineAndNoToken) {
  const struct {
    const char* text;
    const char* expected;
  } cases[] = {
      {"", "no credential"},
      {"# nothing\n", "no credential"},
      {"alpha worker\n", "line 1"},
      {"\nalpha worker secret-0123456789 extra\n", "line 2"},
      {"Alpha worker secret-0123456789\n", "line 1: a tenant"},
      {"alpha root secret-0123456789\n", "'root' is not a role"},
      {"alpha worker, secret-0123456789\n", "'' is not a role"},
      {"alpha worker secret\n", "16 to 256"},
      {"alpha secret-0123456789 worker\n", "line 1: the second word"},
      {"a worker secret-0123456789\nb worker secret-0123456789\n", "line 2: this token"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Credentials::Parse(c.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.expected));
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("secret")));
  }
}

TEST(CredentialsTest, AFileThatEverybodyMayReadIsRefused) {
  const std::string path = testing::TempDir() + "credentials";
  std::ofstream(path) << kGood;
  chmod(path.c_str(), 0644);
  EXPECT_THAT(std::string(Credentials::Load(path).status().message()), HasSubstr("chmod"));
  chmod(path.c_str(), 0640);
  EXPECT_TRUE(Credentials::Load(path).ok());
  NodeOptions options;
  options.credentials = path;
  EXPECT_EQ(Security::Load(options)->Describe(), "tokens, loopback only");
  options.credentials = path + "-not-there";
  EXPECT_THAT(std::string(Security::Load(options).status().message()),
              testing::StartsWith("--credentials: "));
}

TEST(SecurityTest, SaysWhatItIs) {
  Security security;
  EXPECT_EQ(security.Describe(), "open, loopback only");
  security.certificate = "pem";
  EXPECT_EQ(security.Describe(), "tls, loopback only");
  security.credentials = *Credentials::Parse(kGood);
  EXPECT_EQ(security.Describe(), "tls + tokens");
  security.client_ca = "pem";
  EXPECT_EQ(security.Describe(), "mtls + tokens");
}

TEST(SecurityTest, AFileThatIsNoPemIsRefused) {
  const std::string path = testing::TempDir() + "no.pem";
  std::ofstream(path) << "hello";
  NodeOptions options;
  options.tls_cert = options.tls_key = path;
  EXPECT_THAT(std::string(Security::Load(options).status().message()),
              testing::StartsWith("--tls-cert: "));
}

TEST(NameTest, LowerCaseLettersDigitsAndMarks) {
  for (const char* good : {"a", "0", "llama-3.1_8b"}) EXPECT_TRUE(IsName(good)) << good;
  for (const char* bad : {"", "-a", ".a", "A", "a b", "a/b"}) EXPECT_FALSE(IsName(bad)) << bad;
  EXPECT_TRUE(IsName(std::string(63, 'a')));
  EXPECT_FALSE(IsName(std::string(64, 'a')));
}

}  // namespace
}  // namespace terrace
