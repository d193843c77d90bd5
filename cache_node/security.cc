#include "cache_node/security.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {
namespace {

constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 256;
constexpr size_t kMaxFileBytes = 1 << 20;

bool IsLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool EqualInConstantTime(const Digest& a, const Digest& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.bytes.size(); ++i) difference |= a.bytes[i] ^ b.bytes[i];
  return difference == 0;
}

absl::Status ParseRoles(std::string_view text, Identity* identity) {
  constexpr size_t kLongestRoles = std::string_view("worker,admin").size();
  // Not shown: where words stand in the wrong order, this one is the token.
  if (text.size() > kLongestRoles) {
    return absl::InvalidArgumentError("the second word is no list of roles: worker or admin");
  }
  for (absl::string_view role : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    if (role == "worker") {
      identity->worker = true;
    } else if (role == "admin") {
      identity->admin = true;
    } else {
      return absl::InvalidArgumentError(
          fmt::format("'{}' is not a role: worker or admin", std::string(role)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) {
    return absl::NotFoundError(fmt::format("cannot read '{}'", path));
  }
  if (text.str().size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(fmt::format("'{}' is longer than 1 MiB", path));
  }
  return std::move(text).str();
}

absl::Status WithFlag(std::string_view flag, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", flag, std::string(status.message())));
}

absl::Status ReadPem(std::string_view flag, const std::string& path, std::string* out) {
  if (path.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return WithFlag(flag, text.status());
  if (text->find("-----BEGIN ") == std::string::npos) {
    return WithFlag(flag, absl::InvalidArgumentError(fmt::format("'{}' is no PEM file", path)));
  }
  *out = *std::move(text);
  return absl::OkStatus();
}

}  // namespace

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= 63 && IsLowerOrDigit(text[0]) &&
         std::ranges::all_of(
             text, [](char c) { return IsLowerOrDigit(c) || c == '.' || c == '_' || c == '-'; });
}

absl::StatusOr<Credentials> Credentials::Parse(std::string_view text) {
  Credentials credentials;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    const auto wrong = [&](const std::string& what) {
      return absl::InvalidArgumentError(fmt::format("line {}: {}", number, what));
    };
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty() || words[0][0] == '#') continue;
    if (words.size() != 3) return wrong("expected 'tenant role[,role] token'");
    Entry entry;
    if (!IsName(words[0])) return wrong("a tenant is [a-z0-9][a-z0-9._-]{0,62}");
    entry.identity.tenant = words[0];
    if (absl::Status roles = ParseRoles(words[1], &entry.identity); !roles.ok()) {
      return wrong(std::string(roles.message()));
    }
    const std::string& token = words[2];
    if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes ||
        !std::ranges::all_of(token, [](char c) { return c > ' ' && c < 127; })) {
      return wrong("a token has 16 to 256 printable characters");
    }
    entry.token_hash = Sha256(AsBytes(token));
    for (const Entry& other : credentials.entries_) {
      if (other.token_hash == entry.token_hash) return wrong("this token was given before");
    }
    credentials.entries_.push_back(std::move(entry));
  }
  if (credentials.entries_.empty()) return absl::InvalidArgumentError("holds no credential");
  return credentials;
}

absl::StatusOr<Credentials> Credentials::Load(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)) != 0) {
    return absl::FailedPreconditionError(fmt::format(
        "'{}' may be read by everybody or written by others: chmod g-w,o-rwx it", path));
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<Credentials> credentials = Parse(text);
  if (credentials.ok()) return credentials;
  return WithFlag(fmt::format("'{}'", path), credentials.status());
}

std::optional<Identity> Credentials::Find(std::string_view token) const {
  const Digest hash = Sha256(AsBytes(token));
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (EqualInConstantTime(entry.token_hash, hash)) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->identity;
}

absl::StatusOr<Security> Security::Load(const NodeOptions& options) {
  Security security;
  if (!options.credentials.empty()) {
    absl::StatusOr<Credentials> credentials = Credentials::Load(options.credentials);
    if (!credentials.ok()) return WithFlag("--credentials", credentials.status());
    security.credentials = *std::move(credentials);
  }
  TERRACE_RETURN_IF_ERROR(ReadPem("--tls-cert", options.tls_cert, &security.certificate));
  TERRACE_RETURN_IF_ERROR(ReadPem("--tls-key", options.tls_key, &security.key));
  TERRACE_RETURN_IF_ERROR(ReadPem("--tls-ca", options.tls_ca, &security.client_ca));
  return security;
}

std::string Security::Describe() const {
  if (certificate.empty()) return credentials ? "tokens, loopback only" : "open, loopback only";
  const std::string channel = client_ca.empty() ? "tls" : "mtls";
  return channel + (credentials ? " + tokens" : ", loopback only");
}

}  // namespace terrace
