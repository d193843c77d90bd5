#include "cache_node/local_service.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "proto/log.h"
#include "proto/status.h"

namespace terrace {
namespace {

// Those who have connected and not yet said who they are. Past it the others wait in the kernel.
constexpr size_t kMostPeers = 32;
constexpr absl::Duration kPatience = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<LocalService>> LocalService::Start(LocalServiceOptions options) {
  TERRACE_ASSIGN_OR_RETURN(Descriptor listener, ListenLocal(options.address));
  Descriptor end(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!end) {
    return absl::ResourceExhaustedError(fmt::format("eventfd: {}", std::strerror(errno)));
  }
  std::unique_ptr<LocalService> service(
      new LocalService(std::move(options), std::move(listener), std::move(end)));
  service->thread_ = std::thread([self = service.get()] { self->Run(); });
  return service;
}

LocalService::LocalService(LocalServiceOptions options, Descriptor listener, Descriptor end)
    : options_(std::move(options)),
      shared_(options_.registry->AddCounter("terrace_local_clients_total",
                                            "Clients on this machine by what they got",
                                            {{"outcome", "shared"}})),
      refused_(options_.registry->AddCounter("terrace_local_clients_total",
                                             "Clients on this machine by what they got",
                                             {{"outcome", "refused"}})),
      listener_(std::move(listener)),
      end_(std::move(end)) {}

LocalService::~LocalService() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(end_.get(), &one, sizeof(one));
  thread_.join();
  if (options_.address.starts_with('/')) unlink(options_.address.c_str());
}

void LocalService::Run() {
  std::vector<pollfd> wanted;
  while (true) {
    wanted.assign({{end_.get(), POLLIN, 0}});
    const bool full = peers_.size() >= kMostPeers;
    wanted.push_back({full ? -1 : listener_.get(), POLLIN, 0});
    absl::Duration patience = absl::InfiniteDuration();
    const absl::Duration now = Clock::Real()->Now();
    for (const Peer& peer : peers_) {
      wanted.push_back({peer.socket.get(), POLLIN, 0});
      patience = std::min(patience, std::max(peer.deadline - now, absl::ZeroDuration()));
    }
    const int timeout =
        peers_.empty() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(patience)) + 1;
    if (poll(wanted.data(), wanted.size(), timeout) < 0 && errno != EINTR) return;
    if (wanted[0].revents != 0) return;
    std::vector<Peer> left;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (wanted[2 + i].revents != 0) {
        Serve(peers_[i].socket);
      } else if (Clock::Real()->Now() < peers_[i].deadline) {
        left.push_back(std::move(peers_[i]));
      } else {
        refused_->Add();
      }
    }
    peers_ = std::move(left);
    if (wanted[1].revents != 0) Accept();
  }
}

void LocalService::Accept() {
  absl::StatusOr<Descriptor> peer = AcceptLocal(listener_);
  // Without descriptors the connection stays where it is; poll would come back at once.
  if (!peer.ok()) return absl::SleepFor(absl::Milliseconds(10));
  peers_.push_back({*std::move(peer), Clock::Real()->Now() + kPatience});
}

absl::StatusOr<SharedMemory> LocalService::Judge(const Descriptor& peer) {
  TERRACE_ASSIGN_OR_RETURN(const LocalPacket packet,
                           ReceivePacket(peer, kMaxLocalPacketBytes, absl::ZeroDuration()));
  TERRACE_ASSIGN_OR_RETURN(const LocalHello hello, DecodeLocalHello(packet.bytes));
  TERRACE_ASSIGN_OR_RETURN(const uid_t user, PeerUser(peer));
  return options_.share(hello.token, user);
}

void LocalService::Serve(const Descriptor& peer) {
  const absl::StatusOr<SharedMemory> memory = Judge(peer);
  absl::Status told = memory.status();
  if (memory.ok()) {
    told = SendPacket(peer,
                      Encode(LocalWelcome{WireStatus::kOk, memory->bytes, memory->landing_bytes}),
                      memory->descriptors);
  } else {
    SendPacket(peer, Encode(LocalWelcome{WireStatus::kUnauthenticated})).IgnoreError();
  }
  (told.ok() ? shared_ : refused_)->Add();
  if (!told.ok()) Log(LogLevel::kDebug, "local", "{}", told.ToString());
}

}  // namespace terrace
