#include "cache_node/session_table.h"

#include <algorithm>

#include "fmt/format.h"

namespace terrace {
namespace {

Digest HashOf(const SessionToken& token) { return Sha256(std::as_bytes(std::span(token))); }

}  // namespace

absl::StatusOr<OpenedSession> SessionTable::Open(const std::string& tenant,
                                                 const std::string& client_name) {
  OpenedSession opened;
  const std::vector<uint8_t> random = RandomBytes(opened.token.size());
  std::ranges::copy(random, opened.token.begin());
  const Digest hash = HashOf(opened.token);

  MutexLock lock(&mutex_);
  if (sessions_.size() >= limits_.max_sessions) {
    return absl::ResourceExhaustedError(
        fmt::format("the node serves {} sessions already (--max-sessions)", sessions_.size()));
  }
  opened.session = std::make_shared<Session>();
  opened.session->id = next_session_++;
  opened.session->tenant = tenant;
  opened.session->client_name = client_name;
  by_token_[hash.bytes] = opened.session->id;
  sessions_[opened.session->id] = {opened.session, hash, {}};
  return opened;
}

void SessionTable::End(uint64_t session_id) {
  std::vector<std::vector<BlockRef>> released;
  MutexLock lock(&mutex_);
  auto it = sessions_.find(session_id);
  if (it == sessions_.end()) return;
  const absl::flat_hash_set<uint64_t> leases = std::move(it->second.leases);
  by_token_.erase(it->second.token_hash.bytes);
  sessions_.erase(it);
  for (uint64_t lease : leases) released.push_back(Take(lease));
}

std::shared_ptr<Session> SessionTable::Authenticate(const SessionToken& token) const {
  const Digest hash = HashOf(token);
  MutexLock lock(&mutex_);
  auto it = by_token_.find(hash.bytes);
  return it == by_token_.end() ? nullptr : sessions_.at(it->second).session;
}

uint64_t SessionTable::GrantLease(uint64_t session_id, std::vector<BlockRef> refs,
                                  absl::Duration duration) {
  const absl::Duration now = clock_->Now();
  const absl::Duration expires = now + std::min(duration, limits_.max_lease);
  uint64_t bytes = 0;
  for (const BlockRef& ref : refs) bytes += ref.value().size();
  std::vector<std::vector<BlockRef>> released;  // outside the lock
  MutexLock lock(&mutex_);
  released = TakeExpired(now);
  auto it = sessions_.find(session_id);
  if (it == sessions_.end()) return 0;
  if (it->second.leases.size() >= limits_.max_leases ||
      leased_bytes_ + bytes > limits_.max_leased_bytes) {
    ++leases_refused_;
    return 0;
  }
  leased_bytes_ += bytes;
  const uint64_t id = next_lease_++;
  it->second.leases.insert(id);
  leases_[id] = {session_id, expires, bytes, std::move(refs)};
  expiries_.emplace(expires, id);
  return id;
}

bool SessionTable::ReleaseLease(uint64_t session_id, uint64_t lease_id) {
  std::vector<BlockRef> released;
  MutexLock lock(&mutex_);
  auto it = leases_.find(lease_id);
  if (it == leases_.end() || it->second.session_id != session_id) return false;
  released = Take(lease_id);
  return true;
}

absl::Duration SessionTable::ExpireLeases() {
  const absl::Duration now = clock_->Now();
  std::vector<std::vector<BlockRef>> released;
  MutexLock lock(&mutex_);
  released = TakeExpired(now);
  return expiries_.empty() ? absl::InfiniteDuration() : expiries_.begin()->first - now;
}

std::vector<std::vector<BlockRef>> SessionTable::TakeExpired(absl::Duration now) {
  std::vector<std::vector<BlockRef>> released;
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    released.push_back(Take(expiries_.begin()->second));
  }
  return released;
}

std::vector<BlockRef> SessionTable::Take(uint64_t lease_id) {
  auto it = leases_.find(lease_id);
  Lease lease = std::move(it->second);
  leases_.erase(it);
  leased_bytes_ -= lease.bytes;
  expiries_.erase({lease.expires, lease_id});
  if (auto session = sessions_.find(lease.session_id); session != sessions_.end()) {
    session->second.leases.erase(lease_id);
  }
  return std::move(lease.refs);
}

size_t SessionTable::session_count() const {
  MutexLock lock(&mutex_);
  return sessions_.size();
}

size_t SessionTable::lease_count() const {
  MutexLock lock(&mutex_);
  return leases_.size();
}

uint64_t SessionTable::leased_bytes() const {
  MutexLock lock(&mutex_);
  return leased_bytes_;
}

uint64_t SessionTable::leases_refused() const {
  MutexLock lock(&mutex_);
  return leases_refused_;
}

size_t SessionTable::reservation_count() const {
  MutexLock lock(&mutex_);
  size_t count = 0;
  for (const auto& [id, entry] : sessions_) count += entry.session->reservations.load();
  return count;
}

}  // namespace terrace
