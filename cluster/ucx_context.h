// The process's UCX context behind cluster/ucx_transport.h, as its transports see it.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cluster/ucx_handles.h"
#include "cluster/ucx_transport.h"
#include "proto/mutex.h"

namespace terrace {

class UcxContextImpl : public UcxContext {
 public:
  // `all` uses every interface, over IPv4.
  UcxContextImpl(UcxProfile profile, UcxContextHandle all);
  ~UcxContextImpl() override;

  UcxProfile profile() const override { return profile_; }
  std::string version() const override;

  // UCX 1.13 carries one address family per context, and its workers listen on each interface that
  // their context uses, each on a port of its own. So there is one context per family (AF_INET,
  // AF_INET6) and interface ("": all of them). Unavailable when it has no lanes. The rdma profile
  // uses all interfaces, since devices have names of their own there.
  absl::StatusOr<ucp_context_h> For(int family, const std::string& interface);
  // FailedPrecondition in a forked child: UCX's threads and sockets stayed with the parent.
  absl::Status CheckProcess() const;

  // Several transports may register the same memory; the last one to leave unmaps it.
  // InvalidArgument: none, or another size than the first time.
  absl::Status Register(MutableByteSpan memory);
  void Unregister(MutableByteSpan memory);

 private:
  struct Registered {
    size_t size = 0;
    uint32_t users = 0;
    std::vector<std::pair<ucp_context_h, ucp_mem_h>> handles;  // one per context
  };
  static absl::Status Map(MutableByteSpan memory, ucp_context_h context, Registered* into);
  static void Unmap(Registered* memory);

  const UcxProfile profile_;
  const pid_t process_;
  const UcxContextHandle all_;

  Mutex mutex_;
  std::map<std::pair<int, std::string>, UcxContextHandle> others_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::byte*, Registered> registered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
