// Status helpers. Errors cross folder borders as absl::Status, never as exceptions; a miss is
// not an error.
//
// Codes and what they mean in Terrace:
//   InvalidArgument     the caller's input is wrong; the message names the field and the bound
//   NotFound            a named thing (namespace, session, key) does not exist
//   AlreadyExists       a name is taken with a different definition
//   FailedPrecondition  a definition disagrees (layout fingerprint, version); retry won't help
//   ResourceExhausted   a bound is reached now ("no space now"); retry later may help
//   Unauthenticated / PermissionDenied   credential missing or wrong / role too small
//   Unavailable         the peer is gone or silent; a reader treats it as a miss
//   DeadlineExceeded    the deadline passed first
//   Cancelled           the caller gave up
//   DataLoss            bytes failed their checksum or carry another key: never handed out
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TERRACE_CONCAT_INNER(a, b) a##b
#define TERRACE_CONCAT(a, b) TERRACE_CONCAT_INNER(a, b)

#define TERRACE_RETURN_IF_ERROR(expression)                                                      \
  do {                                                                                           \
    if (absl::Status terrace_status = (expression); !terrace_status.ok()) return terrace_status; \
  } while (false)

#define TERRACE_ASSIGN_OR_RETURN(declaration, expression) \
  TERRACE_ASSIGN_OR_RETURN_IMPL(TERRACE_CONCAT(terrace_result_, __LINE__), declaration, expression)

#define TERRACE_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                          \
  if (!result.ok()) return std::move(result).status();                 \
  declaration = *std::move(result)
