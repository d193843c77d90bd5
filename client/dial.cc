#include "client/dial.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "fmt/format.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/status.h"

namespace terrace {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path, const char* what) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || (in.peek() != EOF && !(text << in.rdbuf()))) {
    return absl::InvalidArgumentError(fmt::format("cannot read the {} '{}'", what, path));
  }
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const DialOptions& options) {
  if (options.cert_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError("a client certificate and its key go together");
  }
  if (options.ca_file.empty()) {
    if (!options.cert_file.empty()) {
      return absl::InvalidArgumentError(
          "a client certificate needs the CA file that switches TLS on");
    }
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions ssl;
  TERRACE_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadFile(options.ca_file, "CA file"));
  if (!options.cert_file.empty()) {
    TERRACE_ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadFile(options.cert_file, "certificate"));
    TERRACE_ASSIGN_OR_RETURN(ssl.pem_private_key, ReadFile(options.key_file, "key file"));
  }
  return grpc::SslCredentials(ssl);
}

grpc::ChannelArguments Arguments() {
  constexpr int kKeepaliveMs = 1000;
  constexpr int kConnectMs = 2000;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Also bounds one attempt to connect: a frozen node accepts but never answers.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kConnectMs);
  // Attempts are paced by our own backoff, not by that of a connection shared behind our back.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A proxy of the environment is for the web, not for a node on the local network.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

// gRPC wraps the system's words in its own: "failed to connect to all addresses; last error: …
// remote host: Connection refused".
std::string Innermost(const std::string& message) {
  for (const std::string_view wrapper : {"remote host: ", "last error: "}) {
    if (const size_t at = message.rfind(wrapper); at != std::string::npos) {
      return message.substr(at + wrapper.size());
    }
  }
  return message;
}

}  // namespace

absl::StatusOr<Dialed> Dial(const DialOptions& options) {
  Dialed dialed;
  TERRACE_ASSIGN_OR_RETURN(auto credentials, Credentials(options));
  if (!options.token_file.empty()) {
    TERRACE_ASSIGN_OR_RETURN(std::string token, ReadFile(options.token_file, "token file"));
    absl::StripAsciiWhitespace(&token);
    // Never shown: it may be somebody's secret in the wrong file.
    const auto printable = [](char c) { return c > ' ' && c < 127; };
    if (token.empty() || !std::all_of(token.begin(), token.end(), printable)) {
      return absl::InvalidArgumentError(
          fmt::format("the token file '{}' holds no token: one word of printable characters",
                      options.token_file));
    }
    dialed.authorization = absl::StrCat("Bearer ", token);
  }
  dialed.channel = grpc::CreateCustomChannel(options.address, credentials, Arguments());
  return dialed;
}

void Authorize(const Dialed& dialed, grpc::ClientContext* context) {
  if (!dialed.authorization.empty()) context->AddMetadata("authorization", dialed.authorization);
}

void Prepare(const Dialed& dialed, absl::Duration timeout, grpc::ClientContext* context) {
  Authorize(dialed, context);
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
}

absl::Status FromGrpc(const grpc::Status& status, const std::string& address) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return absl::UnavailableError(
          fmt::format("no node answers at {}: {}", address, Innermost(status.error_message())));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError(
          fmt::format("the node at {} did not answer in time", address));
    default:
      return absl::Status(code, status.error_message());
  }
}

}  // namespace terrace
