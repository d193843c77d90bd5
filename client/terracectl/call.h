// What each command of terracectl needs: a stub that is authorised, and one way to print.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/dial.h"
#include "google/protobuf/message.h"
#include "proto/control.grpc.pb.h"

namespace terrace::ctl {

struct GlobalOptions {
  DialOptions dial;
  absl::Duration timeout = absl::Seconds(5);
  bool json = false;
};

class Connection {
 public:
  static absl::StatusOr<Connection> Open(const GlobalOptions& options);

  // One unary call, bounded by --timeout:
  //   connection.Call(&Admin::Stub::GetStatus, control::v1::GetStatusRequest())
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (control::v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                              const Request&,
                                                                              Reply*),
                             const Request& request) {
    grpc::ClientContext context;
    Prepare(dialed_, timeout_, &context);
    Reply reply;
    grpc::Status status = (stub_.get()->*method)(&context, request, &reply);
    if (!status.ok()) return FromGrpc(status, address_);
    return reply;
  }

  control::v1::Admin::Stub* stub() { return stub_.get(); }
  const Dialed& dialed() const { return dialed_; }
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  absl::Duration timeout_;
  Dialed dialed_;
  std::unique_ptr<control::v1::Admin::Stub> stub_;
};

// One JSON object on one line; field names as in control.proto, numbers as numbers.
std::string ToJson(const google::protobuf::Message& message);

// "terracectl: <what is wrong>; <the mend, naming the flag>".
std::string ErrorLine(const absl::Status& status, const GlobalOptions& options);

}  // namespace terrace::ctl
