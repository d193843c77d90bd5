// The process's UCX context behind cluster/ucx_transport.h, as its transports see it.
#pragma once

#include <sys/types.h>

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
  explicit UcxContextImpl(UcxContextHandle inet);
  ~UcxContextImpl() override;

  std::string version() const override;

  // UCX 1.13 carries one address family per context: AF_INET or AF_INET6. Unavailable when that has
  // no lanes.
  absl::StatusOr<ucp_context_h> For(int family);
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

  const pid_t process_;
  const UcxContextHandle inet_;

  Mutex mutex_;
  UcxContextHandle inet6_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::byte*, Registered> registered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
