// Who may do what: bearer tokens of tenants, and the certificates of the control plane.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_node/options.h"
#include "proto/block_key.h"

namespace terrace {

struct Identity {
  std::string tenant;
  bool worker = false;  // opens sessions and its tenant's namespaces, reads its tenant's state
  bool admin = false;   // sees every tenant, creates and deletes namespaces
};

// The tenant of a node without credentials.
constexpr std::string_view kOpenTenant = "default";

// The tokens of a credentials file, kept as hashes only. Immutable.
class Credentials {
 public:
  // One line per token, `tenant role[,role] token`; blank lines and lines that begin with # are
  // skipped. A tenant is [a-z0-9][a-z0-9._-]{0,62}, a token 16 to 256 printable characters.
  // InvalidArgument has the number of the first wrong line, never a token.
  static absl::StatusOr<Credentials> Parse(std::string_view text);
  // The same from a file. FailedPrecondition when others than its owner and group may read it.
  static absl::StatusOr<Credentials> Load(const std::string& path);

  // Compares with every token in constant time each, so that timing tells nothing.
  std::optional<Identity> Find(std::string_view token) const;

 private:
  struct Entry {
    Digest token_hash;
    Identity identity;
  };
  std::vector<Entry> entries_;
};

struct Security {
  std::optional<Credentials> credentials;   // none: everybody is kOpenTenant, with both roles
  std::string certificate, key, client_ca;  // PEM; empty: plain text, no client certificates

  // Reads the files that `options` (validated) names. Errors name the flag.
  static absl::StatusOr<Security> Load(const NodeOptions& options);
  // For people: "open, loopback only", "tls + tokens", …
  std::string Describe() const;
};

// [a-z0-9][a-z0-9._-]{0,62}: tenants and namespaces.
bool IsName(std::string_view text);

}  // namespace terrace
