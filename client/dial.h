// How every program of this folder reaches a node's control plane: TLS, bearer token, keepalive.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace terrace {

struct DialOptions {
  std::string address;  // "host:port"
  std::string token_file;
  std::string ca_file, cert_file, key_file;
};

// A channel and the credential that its calls carry.
struct Dialed {
  std::shared_ptr<grpc::Channel> channel;
  std::string authorization;  // empty: none
};

// Reads the files anew, so that a renewed certificate or token is taken up. Does not connect.
// InvalidArgument names the file that cannot be read or the option that misses its partner.
absl::StatusOr<Dialed> Dial(const DialOptions& options);

// Gives a call its credential and its bound.
void Prepare(const Dialed& dialed, absl::Duration timeout, grpc::ClientContext* context);
void Authorize(const Dialed& dialed, grpc::ClientContext* context);

// The status of a call, its message led by the address where nothing answered there.
absl::Status FromGrpc(const grpc::Status& status, const std::string& address);

}  // namespace terrace
