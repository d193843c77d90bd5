#include "client/terracectl/call.h"

#include "absl/strings/match.h"
#include "fmt/format.h"
#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"
#include "proto/status.h"

namespace terrace::ctl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

nlohmann::json ToValue(const Message& message);

// Field `field` of `message`, or element `i` of it where it is repeated.
nlohmann::json ToValue(const Message& message, const FieldDescriptor* field, int i) {
  const Reflection& r = *message.GetReflection();
  const bool list = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return list ? r.GetRepeatedUInt32(message, field, i) : r.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return list ? r.GetRepeatedUInt64(message, field, i) : r.GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return list ? r.GetRepeatedDouble(message, field, i) : r.GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return list ? r.GetRepeatedBool(message, field, i) : r.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_STRING:
      return list ? r.GetRepeatedString(message, field, i) : r.GetString(message, field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToValue(list ? r.GetRepeatedMessage(message, field, i) : r.GetMessage(message, field));
    default:
      return nullptr;  // control.proto has no other types
  }
}

nlohmann::json ToValue(const Message& message) {
  nlohmann::json object = nlohmann::json::object();
  const auto* descriptor = message.GetDescriptor();
  for (int f = 0; f < descriptor->field_count(); ++f) {
    const FieldDescriptor* field = descriptor->field(f);
    if (!field->is_repeated()) {
      object[field->name()] = ToValue(message, field, 0);
      continue;
    }
    const int size = message.GetReflection()->FieldSize(message, field);
    nlohmann::json items = field->is_map() ? nlohmann::json::object() : nlohmann::json::array();
    for (int i = 0; i < size; ++i) {
      nlohmann::json item = ToValue(message, field, i);
      if (field->is_map()) {
        items[item["key"].get<std::string>()] = item["value"];
      } else {
        items.push_back(std::move(item));
      }
    }
    object[field->name()] = std::move(items);
  }
  return object;
}

}  // namespace

absl::StatusOr<Connection> Connection::Open(const GlobalOptions& options) {
  Connection connection;
  TERRACE_ASSIGN_OR_RETURN(connection.dialed_, Dial(options.dial));
  connection.address_ = options.dial.address;
  connection.timeout_ = options.timeout;
  connection.stub_ = control::v1::Admin::NewStub(connection.dialed_.channel);
  return connection;
}

std::string ToJson(const Message& message) { return ToValue(message).dump() + "\n"; }

std::string ErrorLine(const absl::Status& status, const GlobalOptions& options) {
  std::string mend;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      mend = "; is terraced running there? (--address, or TERRACE_ADDRESS)";
      // What a node that speaks TLS does to those who do not, or not as it wants.
      if (absl::StrContains(status.message(), "Socket closed") ||
          absl::StrContains(status.message(), "andshake")) {
        mend += " does it speak TLS? (--ca; --cert and --key)";
      }
      break;
    case absl::StatusCode::kDeadlineExceeded:
      mend = fmt::format("; --timeout is {}", absl::FormatDuration(options.timeout));
      break;
    case absl::StatusCode::kUnauthenticated:
      mend = "; give a token of the node's credentials file with --token-file";
      break;
    case absl::StatusCode::kPermissionDenied:
      mend = "; give a token with the role that is needed with --token-file";
      break;
    default:
      break;
  }
  return fmt::format("terracectl: {}{}\n", std::string(status.message()), mend);
}

}  // namespace terrace::ctl
