// UCX's objects as owners: what is destroyed when, in which order, follows from who holds what.
// The only files that see UCX are the cluster/ucx_* ones.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace terrace {

// The status of a failed UCX call in UCX's words; OK for UCS_OK. Everything that a peer or the
// network can cause is Unavailable.
absl::Status FromUcx(ucs_status_t status, const std::string& what);

template <typename T, void (*kDestroy)(T*)>
struct UcxDeleter {
  void operator()(T* handle) const { kDestroy(handle); }
};

// A worker is destroyed after its listener and endpoints, a context after its workers.
using UcxContextHandle = std::unique_ptr<ucp_context, UcxDeleter<ucp_context, &ucp_cleanup>>;
using UcxWorker = std::unique_ptr<ucp_worker, UcxDeleter<ucp_worker, &ucp_worker_destroy>>;
using UcxListener = std::unique_ptr<ucp_listener, UcxDeleter<ucp_listener, &ucp_listener_destroy>>;
using UcxConfig = std::unique_ptr<ucp_config, UcxDeleter<ucp_config, &ucp_config_release>>;

// The lanes of a connected endpoint as "tcp/lo", or "" where UCX does not tell.
std::string DescribeLanes(ucp_ep_h endpoint);

}  // namespace terrace
