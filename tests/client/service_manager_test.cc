// A node whose whole service dies or is started anew: what systemd has kept for it is found again.
// The manager here is a twin that speaks sd_notify(3) and sd_listen_fds(3), on a real socket.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/descriptor.h"
#include "proto/mutex.h"
#include "tests/client/test_worker.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"

namespace terrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;

class Manager {
 public:
  Manager() {
    socket_ = Descriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path().c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(pipe2(end_, O_CLOEXEC), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Manager() {
    close(end_[1]);
    thread_.join();
    close(end_[0]);
  }

  std::string path() const { return folder_.path() + "/notify"; }
  bool Heard(const std::string& state) {
    MutexLock lock(&mutex_);
    return std::ranges::find(states_, state) != states_.end();
  }
  std::map<std::string, size_t> Kept() {  // name -> files of that name
    MutexLock lock(&mutex_);
    std::map<std::string, size_t> names;
    for (const auto& [name, file] : kept_) ++names[name];
    return names;
  }
  // terraced as a service: with what was kept from descriptor 3 on.
  ChildProcess Start(const std::string& flags) {
    MutexLock lock(&mutex_);
    std::string names, script = "export LISTEN_PID=$$;";
    std::vector<Descriptor> inherited;
    for (const auto& [name, file] : kept_) {
      inherited.emplace_back(fcntl(file.get(), F_DUPFD, 100));  // goes on over exec
      script += fmt::format(" exec {}<&{};", 2 + inherited.size(), inherited.back().get());
      names += (names.empty() ? "" : ":") + name;
    }
    script += fmt::format(
        " exec {} --listen=127.0.0.1:0 --http-listen=127.0.0.1:0 --transport=tcp --node-id=kept {}",
        BinaryPath("terraced"), flags);
    return *ChildProcess::Start({"bash", "-c", script},
                                {"NOTIFY_SOCKET=" + path(), "LISTEN_FDNAMES=" + names,
                                 fmt::format("LISTEN_FDS={}", inherited.size())});
  }

 private:
  void Run() {
    while (true) {
      pollfd wanted[] = {{socket_.get(), POLLIN, 0}, {end_[0], POLLIN, 0}};
      poll(wanted, 2, -1);
      if (wanted[1].revents != 0) return;
      char text[4096];
      alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
      iovec bytes{text, sizeof(text)};
      msghdr message{};
      message.msg_iov = &bytes;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      const ssize_t length = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
      if (length < 0) continue;
      std::vector<Descriptor> files;
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
          files.emplace_back(reinterpret_cast<int*>(CMSG_DATA(c))[i]);
        }
      }
      Take(std::string(text, static_cast<size_t>(length)), std::move(files));
    }
  }
  void Take(const std::string& text, std::vector<Descriptor> files) {
    MutexLock lock(&mutex_);
    std::string name;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      states_.push_back(line);
      if (line.starts_with("FDNAME=")) name = line.substr(7);
    }
    if (text.find("FDSTORE=1") != std::string::npos) {
      for (Descriptor& file : files) kept_.emplace(name, std::move(file));
    }
    if (text.find("FDSTOREREMOVE=1") != std::string::npos) kept_.erase(name);
  }

  testing::TempFolder folder_;
  Descriptor socket_;
  int end_[2] = {-1, -1};
  Mutex mutex_;
  std::vector<std::string> states_;
  std::multimap<std::string, Descriptor> kept_;
  std::thread thread_;
};

class ServiceManagerTest : public ::testing::Test {
 protected:
  void Start(const std::string& flags = "--host-bytes=64MiB") {
    node_ = manager_.Start(flags);
    auto ready = node_.WaitForLine("terraced ready");
    ASSERT_TRUE(ready.ok()) << ready.status();
    worker_.emplace(ClientOptions{.address = Field(*ready, "control")});
  }
  void End(int signal) {
    worker_.reset();
    node_.Signal(signal);
    EXPECT_TRUE(node_.Wait().has_value());
  }

  Manager manager_;
  ChildProcess node_;
  std::optional<TestWorker> worker_;
};

TEST_F(ServiceManagerTest, BlocksOutliveTheWholeService) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_TRUE(manager_.Heard("READY=1"));
  ASSERT_EQ(worker_->PutAll(), TestWorker::kBlocks);
  for (const int signal : {SIGKILL, SIGTERM}) {
    End(signal);
    EXPECT_EQ(manager_.Heard("STOPPING=1"), signal == SIGTERM);
    const std::map<std::string, size_t> kept = manager_.Kept();
    ASSERT_THAT(kept, Contains(Key("host-regions")));
    for (const auto& [name, files] : kept) EXPECT_EQ(files, 1u) << name;
    ASSERT_NO_FATAL_FAILURE(Start());
    EXPECT_EQ(worker_->GetAll(), TestWorker::kBlocks);
    EXPECT_THAT(node_.errors(), HasSubstr("host memory was kept: 64 blocks"));
  }
}

TEST_F(ServiceManagerTest, MemoryOfAnotherSizeIsGivenUp) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(worker_->PutAll(), TestWorker::kBlocks);
  End(SIGTERM);
  ASSERT_NO_FATAL_FAILURE(Start("--host-bytes=96MiB"));
  EXPECT_EQ(worker_->GetAll(), 0u);
  ASSERT_EQ(worker_->PutAll(), TestWorker::kBlocks);
  for (const auto& [name, files] : manager_.Kept()) EXPECT_EQ(files, 1u) << name;
  End(SIGKILL);
  ASSERT_NO_FATAL_FAILURE(Start("--host-bytes=96MiB"));
  EXPECT_EQ(worker_->GetAll(), TestWorker::kBlocks);
}

}  // namespace
}  // namespace terrace
