// Hands the memory of a tenant to that tenant's clients on this machine (proto/local_memory.h). One
// thread; it sleeps while nobody asks. Whatever a peer sends or leaves out, it is answered or
// dropped within a second, and holds up nobody else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/local_socket.h"
#include "proto/clock.h"
#include "proto/descriptor.h"
#include "proto/local_memory.h"
#include "proto/metrics.h"

namespace terrace {

struct SharedMemory {
  uint64_t bytes = 0, landing_bytes = 0;
  std::vector<Descriptor> descriptors;  // as LocalWelcome has them
};

struct LocalServiceOptions {
  std::string address;  // cluster/local_socket.h
  // What a client with this token may read; called on the service's thread. Unauthenticated: the
  // token is not that of a live session.
  std::function<absl::StatusOr<SharedMemory>(const SessionToken&, uid_t peer)> share;
  MetricRegistry* registry = nullptr;
};

class LocalService {
 public:
  // Errors of ListenLocal; ResourceExhausted without descriptors.
  static absl::StatusOr<std::unique_ptr<LocalService>> Start(LocalServiceOptions options);
  ~LocalService();

 private:
  struct Peer {
    Descriptor socket;
    absl::Duration deadline;
  };

  LocalService(LocalServiceOptions options, Descriptor listener, Descriptor end);
  void Run();
  void Accept();
  absl::StatusOr<SharedMemory> Judge(const Descriptor& peer);
  void Serve(const Descriptor& peer);

  const LocalServiceOptions options_;
  Counter* const shared_;
  Counter* const refused_;
  const Descriptor listener_;
  const Descriptor end_;  // an eventfd
  std::vector<Peer> peers_;
  std::thread thread_;
};

}  // namespace terrace
