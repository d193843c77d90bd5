// The process's UCX context behind cluster/ucx_transport.h, as its transports see it.
#pragma once

#include <sys/types.h>

#include "absl/container/flat_hash_map.h"
#include "cluster/ucx_handles.h"
#include "cluster/ucx_transport.h"
#include "proto/mutex.h"

namespace terrace {

class UcxContextImpl : public UcxContext {
 public:
  UcxContextImpl(UcxProfile profile, UcxContextHandle inet);
  ~UcxContextImpl() override;

  UcxProfile profile() const override { return profile_; }
  std::string version() const override;

  // UCX 1.13 carries one address family per context. Unavailable when there are no lanes for
  // `family` (AF_INET, AF_INET6).
  absl::StatusOr<ucp_context_h> ForFamily(int family);
  // FailedPrecondition in a forked child: UCX's threads and sockets stayed with the parent.
  absl::Status CheckProcess() const;

  // Several transports may register the same memory; the last one to leave unmaps it.
  absl::Status Register(MutableByteSpan memory);
  void Unregister(MutableByteSpan memory);

 private:
  struct Registered {
    ucp_mem_h handle = nullptr;
    uint32_t users = 0;
  };

  const UcxProfile profile_;
  const pid_t process_;
  const UcxContextHandle inet_;

  Mutex mutex_;
  UcxContextHandle inet6_ ABSL_GUARDED_BY(mutex_);  // null until asked for
  absl::flat_hash_map<std::byte*, Registered> registered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
