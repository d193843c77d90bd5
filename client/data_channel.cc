#include "client/data_channel.h"

#include <vector>

#include "fmt/format.h"
#include "proto/status.h"

namespace terrace {

// ---- The session and its connection ----

void DataChannel::OpenSession(SessionInfo session) {
  session_ = std::move(session);
  ResetLanding();
  ending_ = false;
  backoff_.Reset();
  if (connection_ == 0) {
    Connect();
  } else {  // its OnClose connects anew
    CloseConnection(absl::UnavailableError("another session was opened"));
  }
}

void DataChannel::EndSession() { ending_ = true; }

void DataChannel::LoseSession(const absl::Status& why) {
  session_.reset();
  CloseConnection(why);
}

void DataChannel::Connect() {
  ++attempts_;
  const std::vector<std::string>& addresses = session_->data_addresses;
  absl::StatusOr<ConnectionId> connection =
      transport_->Connect(addresses[session_->session_id % addresses.size()], kConnectTimeout);
  if (connection.ok()) {
    connection_ = *connection;
  } else {
    listener_->OnDataDown(connection.status());
    ConnectLater();
  }
}

void DataChannel::ConnectLater() {
  transport_->PostAfter(backoff_.Next(), [this, attempt = attempts_] {
    if (session_ && connection_ == 0 && attempts_ == attempt) Connect();
  });
}

void DataChannel::CloseConnection(absl::Status why) {
  up_.store(false, std::memory_order_release);
  if (connection_ != 0) transport_->Close(connection_, std::move(why));
}

void DataChannel::OnOpen(ConnectionId connection, bool /*accepted*/) {
  if (connection != connection_ || !session_) return;
  transport_->Send(connection, {.frame = Encode(0, HelloFrame{session_->token})});
  transport_->PostAfter(kConnectTimeout, [this, connection] {
    if (connection == connection_ && !up()) {
      CloseConnection(absl::DeadlineExceededError("the node did not answer the greeting"));
    }
  });
}

void DataChannel::OnHelloReply(WireStatus status) {
  if (up() || !session_) return;
  if (status == WireStatus::kOk) {
    up_.store(true, std::memory_order_release);
    backoff_.Reset();
    if (was_up_) Count(&counters_.reconnects);
    was_up_ = true;
    listener_->OnDataUp();
    return;
  }
  const absl::Status why =
      absl::UnavailableError(fmt::format("the node refused the connection: {}", ToString(status)));
  if (status == WireStatus::kUnauthenticated) {
    session_.reset();
    listener_->OnTokenRefused();
  }
  CloseConnection(why);
}

void DataChannel::OnClose(ConnectionId connection, const absl::Status& why) {
  if (connection != connection_) return;
  connection_ = 0;
  up_.store(false, std::memory_order_release);
  ended_leases_.clear();  // with their session, or when they expire
  ResetLanding();
  EndAll(Outcome::kMiss);
  listener_->OnDataDown(why);
  if (session_) ConnectLater();
}

// ---- Operations ----

void DataChannel::Start(std::unique_ptr<Task> started) {
  Task* task = started.get();
  Running& running = tasks_[task->id()];
  running.task = std::move(started);
  if (task->finished()) {
    // Nothing to ask the node.
  } else if (up() && !ending_) {
    SetDue(running, task->deadline());
    WantTurn(task);
    Pump();
  } else {
    task->Abandon(*this, Outcome::kMiss);
  }
  Settle(task);
}

void DataChannel::Cancel(uint64_t task_id) {
  if (auto it = tasks_.find(task_id); it != tasks_.end()) {
    GiveUp(it->second, Outcome::kCancelled);
    Pump();
  }
}

void DataChannel::CancelAll() {
  EndAll(Outcome::kCancelled);
  session_.reset();
  CloseConnection(absl::OkStatus());
}

void DataChannel::Touch(NamespaceId ns, std::vector<WireKey> keys,
                        absl::AnyInvocable<void()> over) {
  if (!up()) return over();
  OutgoingMessage message{.frame = Encode(0, TouchFrame{ns, std::move(keys)})};
  message.sent = [over = std::move(over)](const absl::Status&) mutable { over(); };
  transport_->Send(connection_, std::move(message));
}

void DataChannel::Release(uint64_t session_id, uint64_t lease) {
  if (up() && session_id == this->session_id()) Send(0, ReleaseFrame{lease});
}

void DataChannel::ResetLanding() {
  landings_.clear();
  const bool lands = memory() != nullptr && !memory()->landing().empty();
  landing_slots_ = lands ? std::make_unique<LandingSlots>(memory()->landing().size()) : nullptr;
}

std::optional<DataChannel::Landed> DataChannel::Land(uint64_t request, uint16_t index,
                                                     uint64_t length) {
  if (resting_) return std::nullopt;
  const std::optional<uint64_t> offset = landing_slots_->Take(length);
  if (!offset) return std::nullopt;
  landings_[{request, index}] = *offset;
  landed_bytes_ += length;
  if (landed_bytes_ >= kMostLandedPerTurn) Rest();
  return Landed{*offset, memory()->landing().subspan(*offset, length)};
}

// Frames leave when this thread has come to the end of its turn. So that the node copies the first
// block while the second is copied here, what is announced leaves before more is copied: in the
// next turn, and the one after that goes on.
void DataChannel::Rest() {
  resting_ = true;
  landed_bytes_ = 0;
  transport_->Post([this] {
    transport_->Post([this] {
      resting_ = false;
      Pump();
    });
  });
}

void DataChannel::EndLease(uint64_t session_id, uint64_t lease) {
  if (!up() || session_id != this->session_id()) return;
  ended_leases_.push_back(lease);
  if (ended_leases_.size() >= kMostEndedLeases) return SendEndedLeases();
  if (std::exchange(ending_leases_, true)) return;
  transport_->PostAfter(kLeasePatience, [this] {
    ending_leases_ = false;
    SendEndedLeases();
  });
}

void DataChannel::SendEndedLeases() {
  for (const uint64_t lease : TakeEndedLeases()) Send(0, ReleaseFrame{lease});
}

void DataChannel::Copy(absl::AnyInvocable<void()> copy, absl::AnyInvocable<void()> copied) {
  copier_->Run([this, copy = std::move(copy), copied = std::move(copied)]() mutable {
    copy();
    transport_->Post(std::move(copied));
  });
}

void DataChannel::GiveUp(Running& running, Outcome why) {
  Task* const task = running.task.get();
  if (!running.abandoned) {
    running.abandoned = true;
    task->Abandon(*this, why);
    SetDue(running, Clock::Real()->Now() + kGrace);
    Settle(task);
  }
}

void DataChannel::EndAll(Outcome why) {
  std::vector<uint64_t> ids;
  ids.reserve(tasks_.size());
  for (const auto& [id, running] : tasks_) ids.push_back(id);
  for (uint64_t id : ids) {
    if (auto it = tasks_.find(id); it != tasks_.end()) GiveUp(it->second, why);
  }
}

void DataChannel::Settle(Task* task) {
  if (!task->finished()) return;
  auto it = tasks_.find(task->id());
  std::unique_ptr<Task> ending = std::move(it->second.task);
  deadlines_.erase({it->second.due, task->id()});
  tasks_.erase(it);
  std::erase(turns_, task);
  std::erase(sends_, task);
  ending->Complete(*this);
}

// ---- Deadlines: one timer for all ----

void DataChannel::SetDue(Running& running, absl::Duration due) {
  deadlines_.erase({running.due, running.task->id()});
  running.due = due;
  deadlines_.insert({due, running.task->id()});
  ArmTimer();
}

void DataChannel::ArmTimer() {
  if (deadlines_.empty() || deadlines_.begin()->first >= timer_) return;
  timer_ = deadlines_.begin()->first;
  transport_->PostAfter(std::max(timer_ - Clock::Real()->Now(), absl::ZeroDuration()),
                        [this] { OnTimer(); });
}

void DataChannel::OnTimer() {
  const absl::Duration now = Clock::Real()->Now();
  bool stuck = false;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Running& running = tasks_.find(deadlines_.begin()->second)->second;
    if (running.abandoned) {
      stuck = true;
      deadlines_.erase(deadlines_.begin());
    } else {
      GiveUp(running, Outcome::kTimeout);
    }
  }
  if (timer_ <= now) timer_ = absl::InfiniteDuration();
  ArmTimer();
  Pump();
  if (stuck) {
    CloseConnection(absl::DeadlineExceededError("a transfer did not end by its deadline"));
  }
}

// ---- Turns, room and frames ----

void DataChannel::Pump() {
  if (pumping_ || !up()) return;
  pumping_ = true;
  const auto serve = [](std::deque<Task*>* queue, auto take_turn) {
    while (!queue->empty()) {
      Task* const task = queue->front();
      queue->pop_front();
      const Turn turn = take_turn(task);
      if (turn == Turn::kNoRoom) {
        queue->push_front(task);
        break;
      }
      if (turn == Turn::kSent) queue->push_back(task);
    }
  };
  // Requests first: they are small, and some allow a value to be sent.
  serve(&turns_, [this](Task* task) { return task->SendRequest(*this); });
  serve(&sends_, [this](Task* task) { return task->SendValue(*this); });
  pumping_ = false;
}

bool DataChannel::HasRoom(uint64_t bytes, uint32_t reservations) const {
  return requests_.size() < limits().max_requests_in_flight &&
         (bytes_in_flight_ == 0 || bytes_in_flight_ + bytes <= limits().max_bytes_in_flight) &&
         (reservations_in_flight_ == 0 ||
          reservations_in_flight_ + reservations <= limits().max_reservations);
}

uint64_t DataChannel::OpenRequest(Task* task, uint64_t bytes, uint32_t reservations) {
  bytes_in_flight_ += bytes;
  reservations_in_flight_ += reservations;
  requests_.emplace(next_request_, Request{task, bytes, reservations});
  return next_request_++;
}

void DataChannel::GiveBack(uint64_t request, uint64_t bytes, uint32_t reservations) {
  Request& open = requests_.find(request)->second;
  open.bytes -= bytes;
  open.reservations -= reservations;
  bytes_in_flight_ -= bytes;
  reservations_in_flight_ -= reservations;
}

void DataChannel::EndRequest(uint64_t request) {
  auto it = requests_.find(request);
  bytes_in_flight_ -= it->second.bytes;
  reservations_in_flight_ -= it->second.reservations;
  requests_.erase(it);
}

void DataChannel::CancelRequest(uint64_t request) {
  EndRequest(request);
  Send(request, CancelFrame{});
}

void DataChannel::Send(uint64_t request, const FrameBody& frame) {
  if (!up()) return;
  OutgoingMessage message{.frame = Encode(request, frame)};
  message.sent = [this, connection = connection_](const absl::Status& status) {
    if (!absl::IsResourceExhausted(status) || connection != connection_) return;
    CloseConnection(status);
  };
  transport_->Send(connection_, std::move(message));
}

void DataChannel::SendPayload(uint64_t request, const FrameBody& frame, OutgoingMessage message) {
  uint64_t bytes = 0;
  for (ByteSpan piece : message.payload) bytes += piece.size();
  unsent_bytes_ += bytes;
  message.frame = Encode(request, frame);
  message.sent = [this, bytes, sent = std::move(message.sent)](absl::Status status) mutable {
    unsent_bytes_ -= bytes;
    sent(std::move(status));
    Pump();
  };
  transport_->Send(connection_, std::move(message));
}

Landing DataChannel::OnMessage(ConnectionId connection, ByteSpan bytes, uint64_t payload_bytes) {
  if (connection != connection_) return {};
  absl::StatusOr<Frame> frame = Decode(bytes);
  if (!frame.ok()) {
    CloseConnection(frame.status());
    return {};
  }
  if (const auto* hello = std::get_if<HelloReplyFrame>(&frame->body)) {
    OnHelloReply(hello->status);
    return {};
  }
  Landing landing = OnReply(*std::move(frame), payload_bytes);
  Pump();
  return landing;
}

Landing DataChannel::OnReply(Frame frame, uint64_t payload_bytes) {
  if (const auto* put = std::get_if<PutReplyFrame>(&frame.body); put && !landings_.empty()) {
    const auto landed = landings_.find({frame.request_id, put->index});
    if (landed != landings_.end()) {
      landing_slots_->Free(landed->second);
      landings_.erase(landed);
    }
  }
  auto it = requests_.find(frame.request_id);
  if (it == requests_.end()) {
    // Nobody waits any more: bytes go nowhere, and a lease that came too late goes back.
    uint64_t lease = 0;
    if (const auto* match = std::get_if<MatchReplyFrame>(&frame.body)) lease = match->lease;
    if (const auto* lent = std::get_if<LentFrame>(&frame.body)) lease = lent->lease;
    if (lease != 0) Send(0, ReleaseFrame{lease});
    return {};
  }
  Task* const task = it->second.task;
  Landing landing;
  absl::Status sane = task->OnReply(*this, frame.request_id, frame.body, payload_bytes, &landing);
  if (!sane.ok()) CloseConnection(std::move(sane));
  Settle(task);
  return landing;
}

}  // namespace terrace
