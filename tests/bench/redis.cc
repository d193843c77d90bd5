#include "tests/bench/redis.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "fmt/format.h"
#include "proto/status.h"

namespace terrace::bench {
namespace {

absl::Status Broken(const std::string& what) {
  return absl::UnavailableError(fmt::format("redis: {}: {}", what, strerror(errno)));
}

std::string SocketPath(int port) {
  return std::filesystem::temp_directory_path() / fmt::format("terrace-bench-redis-{}", port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisServer>> RedisServer::Start() {
  // Redis binds no port 0, so a taken port is tried again with another one.
  std::mt19937 random(std::random_device{}());
  absl::Status last = absl::UnknownError("not tried");
  for (int attempt = 0; attempt < 10; ++attempt) {
    const int port = 20000 + static_cast<int>(random() % 10000);
    TERRACE_ASSIGN_OR_RETURN(
        ChildProcess process,
        ChildProcess::Start({"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1",
                             "--unixsocket", SocketPath(port), "--save", "", "--appendonly", "no",
                             "--daemonize", "no"}));
    // Redis ends at once when the port is taken; otherwise it says that it is ready.
    while (true) {
      auto line = process.WaitForLine("", absl::Seconds(10));
      if (!line.ok()) {
        last = line.status();
        break;
      }
      if (line->find("Ready to accept connections") != std::string::npos) {
        return std::unique_ptr<RedisServer>(new RedisServer(std::move(process), port));
      }
    }
  }
  return last;
}

RedisServer::~RedisServer() {
  process_ = ChildProcess();
  unlink(SocketPath(port_).c_str());
}

absl::StatusOr<std::unique_ptr<RedisClient>> RedisClient::Connect(int port) {
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return Connect(s, reinterpret_cast<sockaddr*>(&address), sizeof(address));
}

absl::StatusOr<std::unique_ptr<RedisClient>> RedisClient::ConnectLocal(int port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  SocketPath(port).copy(address.sun_path, sizeof(address.sun_path) - 1);
  return Connect(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
                 reinterpret_cast<sockaddr*>(&address), sizeof(address));
}

absl::StatusOr<std::unique_ptr<RedisClient>> RedisClient::Connect(int s, const sockaddr* address,
                                                                  socklen_t length) {
  std::unique_ptr<RedisClient> client(new RedisClient(s));
  if (s < 0 || connect(s, address, length) != 0) return Broken("connect");
  const timeval patience{10, 0};
  setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  return client;
}

RedisClient::~RedisClient() { close(socket_); }

absl::Status RedisClient::Get(const std::vector<std::string>& names,
                              const std::vector<MutableByteSpan>& destinations, int depth) {
  size_t sent = 0;
  for (size_t done = 0; done < names.size(); ++done) {
    for (; sent < names.size() && sent - done < static_cast<size_t>(depth); ++sent) {
      TERRACE_RETURN_IF_ERROR(Send(
          fmt::format("*2\r\n$3\r\nGET\r\n${}\r\n{}\r\n", names[sent].size(), names[sent]), {}));
    }
    TERRACE_ASSIGN_OR_RETURN(std::string head, ReadLine());
    if (head != fmt::format("${}", destinations[done].size())) return Broken("answer " + head);
    TERRACE_RETURN_IF_ERROR(ReadInto(destinations[done]));
    TERRACE_RETURN_IF_ERROR(ReadLine().status());
  }
  return absl::OkStatus();
}

absl::Status RedisClient::Set(const std::vector<std::string>& names,
                              const std::vector<ByteSpan>& values, int depth) {
  size_t sent = 0;
  for (size_t done = 0; done < names.size(); ++done) {
    for (; sent < names.size() && sent - done < static_cast<size_t>(depth); ++sent) {
      TERRACE_RETURN_IF_ERROR(
          Send(fmt::format("*3\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n", names[sent].size(),
                           names[sent], values[sent].size()),
               values[sent]));
    }
    TERRACE_ASSIGN_OR_RETURN(std::string head, ReadLine());
    if (head != "+OK") return Broken("answer " + head);
  }
  return absl::OkStatus();
}

absl::Status RedisClient::Clear() {
  TERRACE_RETURN_IF_ERROR(Send("*1\r\n$8\r\nFLUSHALL\r\n", {}));
  TERRACE_ASSIGN_OR_RETURN(std::string head, ReadLine());
  return head == "+OK" ? absl::OkStatus() : Broken("answer " + head);
}

absl::Status RedisClient::Send(const std::string& head, ByteSpan value) {
  static constexpr char kEnd[] = "\r\n";
  iovec parts[3] = {{const_cast<char*>(head.data()), head.size()},
                    {const_cast<std::byte*>(value.data()), value.size()},
                    {const_cast<char*>(kEnd), value.empty() ? 0u : 2u}};
  iovec* part = parts;
  int count = 3;
  while (count > 0) {
    ssize_t n = writev(socket_, part, count);
    if (n < 0) return Broken("send");
    while (count > 0 && static_cast<size_t>(n) >= part->iov_len) {
      n -= static_cast<ssize_t>(part->iov_len);
      ++part;
      --count;
    }
    if (count > 0) {
      part->iov_base = static_cast<char*>(part->iov_base) + n;
      part->iov_len -= static_cast<size_t>(n);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RedisClient::ReadLine() {
  while (true) {
    auto* from = buffer_.data() + begin_;
    if (auto* end = static_cast<char*>(memchr(from, '\n', end_ - begin_)); end != nullptr) {
      std::string line(from, end - 1);
      begin_ += line.size() + 2;
      return line;
    }
    TERRACE_RETURN_IF_ERROR(FillBuffer());
  }
}

absl::Status RedisClient::FillBuffer() {
  std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
  // Short reads only, so that values mostly go past the buffer.
  const ssize_t n =
      recv(socket_, buffer_.data() + end_, std::min<size_t>(512, buffer_.size() - end_), 0);
  if (n <= 0) return Broken("receive");
  end_ += static_cast<size_t>(n);
  return absl::OkStatus();
}

absl::Status RedisClient::ReadInto(MutableByteSpan destination) {
  const size_t buffered = std::min(destination.size(), end_ - begin_);
  std::memcpy(destination.data(), buffer_.data() + begin_, buffered);
  begin_ += buffered;
  for (size_t at = buffered; at < destination.size();) {
    const ssize_t n = recv(socket_, destination.data() + at, destination.size() - at, MSG_WAITALL);
    if (n <= 0) return Broken("receive");
    at += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace terrace::bench
