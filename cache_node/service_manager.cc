#include "cache_node/service_manager.h"

#include <fcntl.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>
#include <utility>

#include "absl/time/time.h"

namespace terrace {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(1);

}  // namespace

KeptFiles ServiceManager::TakeKept() {
  KeptFiles kept;
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  for (int i = 0; i < count; ++i) {
    Descriptor file(SD_LISTEN_FDS_START + i);
    fcntl(file.get(), F_SETFD, FD_CLOEXEC);
    if (names != nullptr && names[i] != nullptr) kept[names[i]] = std::move(file);
  }
  for (int i = 0; names != nullptr && names[i] != nullptr; ++i) std::free(names[i]);
  std::free(names);
  return kept;
}

void ServiceManager::Keep(const std::string& name, const Descriptor& file) {
  const std::string state = "FDSTORE=1\nFDNAME=" + name;
  const int fd = file.get();
  sd_pid_notify_with_fds(0, /*unset_environment=*/0, state.c_str(), &fd, 1);
}

void ServiceManager::Drop(const std::string& name) { Tell("FDSTOREREMOVE=1\nFDNAME=" + name); }

void ServiceManager::WaitUntilDone() {
  sd_notify_barrier(/*unset_environment=*/0, absl::ToInt64Microseconds(kPatience));
}

void ServiceManager::Tell(const std::string& state) {
  sd_notify(/*unset_environment=*/0, state.c_str());
}

}  // namespace terrace
