// Redis as a peer: a server of its own on a free loopback port and a unix socket, and the fastest
// client that we can write for it: requests pipelined, values received straight into their
// destinations (hiredis would allocate and copy each).
#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/bytes.h"
#include "tests/support/child_process.h"

namespace terrace::bench {

class RedisServer {
 public:
  // NotFound when redis-server is not installed.
  static absl::StatusOr<std::unique_ptr<RedisServer>> Start();
  ~RedisServer();
  int port() const { return port_; }
  const ChildProcess& process() const { return process_; }

 private:
  RedisServer(ChildProcess process, int port) : process_(std::move(process)), port_(port) {}

  ChildProcess process_;
  int port_;
};

class RedisClient {
 public:
  static absl::StatusOr<std::unique_ptr<RedisClient>> Connect(int port);
  // To the same server, over its unix socket.
  static absl::StatusOr<std::unique_ptr<RedisClient>> ConnectLocal(int port);
  ~RedisClient();

  // Requests i = 0 … names.size()-1, at most `depth` unanswered at a time.
  absl::Status Get(const std::vector<std::string>& names,
                   const std::vector<MutableByteSpan>& destinations, int depth);
  absl::Status Set(const std::vector<std::string>& names, const std::vector<ByteSpan>& values,
                   int depth);
  // Forgets everything.
  absl::Status Clear();

 private:
  static absl::StatusOr<std::unique_ptr<RedisClient>> Connect(int socket, const sockaddr* address,
                                                              socklen_t length);
  explicit RedisClient(int socket) : socket_(socket), buffer_(64 << 10) {}

  absl::Status Send(const std::string& head, ByteSpan value);
  absl::StatusOr<std::string> ReadLine();
  absl::Status ReadInto(MutableByteSpan destination);
  absl::Status FillBuffer();

  const int socket_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  // unread part of buffer_
};

}  // namespace terrace::bench
