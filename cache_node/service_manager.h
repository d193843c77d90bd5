// What a service manager does for a node: it hears how it goes, and keeps its files while no
// process of it lives, so that memory outlives a restart of the whole service. It is systemd, or
// who speaks its protocol: sd_notify(3), sd_listen_fds(3). Without one (no NOTIFY_SOCKET in the
// environment) nothing happens.
#pragma once

#include <map>
#include <string>

#include "proto/descriptor.h"

namespace terrace {

using KeptFiles = std::map<std::string, Descriptor, std::less<>>;

// Stateless, and for one process alone: the one that the manager has started. No error is told:
// whoever asks goes on without a manager. No call blocks, but for WaitUntilDone.
class ServiceManager {
 public:
  // What it has kept, once.
  KeptFiles TakeKept();
  // How many it keeps the unit says (FileDescriptorStoreMax); it does not tell when there are more.
  void Keep(const std::string& name, const Descriptor& file);
  void Drop(const std::string& name);
  // Until it has done all that was asked; a second at most.
  void WaitUntilDone();
  // "READY=1", "STOPPING=1", "STATUS=...".
  void Tell(const std::string& state);
};

}  // namespace terrace
