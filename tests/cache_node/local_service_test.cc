// The socket that hands out memory, against those who do not keep to its protocol.
#include "cache_node/local_service.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "client/local_memory.h"
#include "gtest/gtest.h"
#include "proto/status.h"
#include "tests/support/descriptors.h"
#include "tests/support/temp_folder.h"

namespace terrace {
namespace {

constexpr uint64_t kBytes = 2 << 20;
constexpr absl::Duration kPatience = absl::Seconds(5);

SessionToken TokenOf(uint8_t number) {
  SessionToken token;
  token.fill(number);
  return token;
}

class LocalServiceTest : public ::testing::Test {
 protected:
  LocalServiceTest() {
    fd_ = Descriptor(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd_.get(), kBytes), 0);
    fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK);
    service_ = Start();
  }
  std::unique_ptr<LocalService> Start() {
    auto service = LocalService::Start(
        {address_,
         [this](const SessionToken& token, uid_t) -> absl::StatusOr<SharedMemory> {
           if (token != TokenOf(7)) return absl::UnauthenticatedError("no such session");
           SharedMemory memory{.bytes = kBytes};
           memory.descriptors.emplace_back(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
           return memory;
         },
         &registry_});
    EXPECT_TRUE(service.ok()) << service.status();
    return service.ok() ? *std::move(service) : nullptr;
  }
  // What the service says to a packet.
  absl::StatusOr<LocalWelcome> Ask(ByteSpan packet, std::span<const Descriptor> with = {}) {
    TERRACE_ASSIGN_OR_RETURN(const Descriptor socket, ConnectLocal(address_));
    TERRACE_RETURN_IF_ERROR(SendPacket(socket, packet, with));
    TERRACE_ASSIGN_OR_RETURN(const LocalPacket answer,
                             ReceivePacket(socket, kMaxLocalPacketBytes, kPatience));
    EXPECT_TRUE(answer.descriptors.empty());
    return DecodeLocalWelcome(answer.bytes);
  }
  bool Shares() { return LocalMemory::Open(address_, TokenOf(7), kPatience).ok(); }

  testing::TempFolder folder_;
  const std::string address_ = folder_.path() + "/socket";
  MetricRegistry registry_;
  Descriptor fd_;
  std::unique_ptr<LocalService> service_;
};

TEST_F(LocalServiceTest, SharesWithTheSessionsThatItKnows) {
  const auto memory = LocalMemory::Open(address_, TokenOf(7), kPatience);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->bytes().size(), kBytes);
  const auto stranger = LocalMemory::Open(address_, TokenOf(8), kPatience);
  EXPECT_TRUE(absl::IsUnavailable(stranger.status())) << stranger.status();
}

TEST_F(LocalServiceTest, GarbageIsRefused) {
  const std::vector<std::byte> hello = Encode(LocalHello{TokenOf(7)});
  for (size_t length = 1; length <= 200; ++length) {
    std::vector<std::byte> bytes(length, std::byte{0x5a});
    if (length == hello.size()) bytes = hello, bytes[0] ^= std::byte{1};
    if (length == hello.size() + 1) std::ranges::copy(hello, bytes.begin());
    const auto answer = Ask(bytes);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_NE(answer->status, WireStatus::kOk) << length;
  }
  EXPECT_TRUE(Shares());
}

TEST_F(LocalServiceTest, DescriptorsThatNobodyAskedForAreClosed) {
  const Descriptor gift(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<std::byte> garbage(10);
  EXPECT_TRUE(Ask(garbage, {&gift, 1}).ok());
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Ask(garbage, {&gift, 1}).ok());
  EXPECT_LE(OpenDescriptors(), before + 1);
}

TEST_F(LocalServiceTest, ThoseWhoSayNothingHoldUpNobody) {
  std::vector<Descriptor> silent;
  for (int i = 0; i < 60; ++i) {
    auto socket = ConnectLocal(address_);
    if (socket.ok()) silent.push_back(*std::move(socket));
  }
  EXPECT_GE(silent.size(), 32u);
  EXPECT_TRUE(Shares());  // within its patience, although more are silent than may be
  // And each is let go, not only those that make room.
  char byte;
  for (const Descriptor& socket : silent) {
    timeval patience{5, 0};
    fcntl(socket.get(), F_SETFL, 0);
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(recv(socket.get(), &byte, 1, 0), 0);
  }
}

TEST_F(LocalServiceTest, ASocketThatIsLeftBehindIsReplaced) {
  EXPECT_TRUE(absl::IsAlreadyExists(ListenLocal(address_).status()));
  {
    // As after a kill: bound, and nobody there.
    const std::string stale = folder_.path() + "/stale";
    ListenLocal(stale).IgnoreError();
    EXPECT_TRUE(std::filesystem::exists(stale));
    EXPECT_TRUE(ListenLocal(stale).ok());
  }
  service_.reset();
  EXPECT_FALSE(std::filesystem::exists(address_));
  service_ = Start();
  EXPECT_TRUE(Shares());
}

TEST_F(LocalServiceTest, OtherFilesAreLeftAlone) {
  const std::string file = folder_.path() + "/file";
  std::ofstream(file) << "mine";
  EXPECT_TRUE(absl::IsAlreadyExists(ListenLocal(file).status()));
  EXPECT_EQ(std::filesystem::file_size(file), 4u);
  EXPECT_FALSE(ListenLocal(folder_.path() + "/no/such/folder").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ListenLocal("relative").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ListenLocal("/" + std::string(200, 'a')).status()));
}

// A node that is not what it says could hand over a file, and cut it off under its reader.
TEST_F(LocalServiceTest, OnlySealedMemoryIsMapped) {
  fd_ = Descriptor(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd_.get(), kBytes), 0);
  const auto unsealed = LocalMemory::Open(address_, TokenOf(7), kPatience);
  EXPECT_TRUE(absl::IsDataLoss(unsealed.status())) << unsealed.status();
  fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  EXPECT_TRUE(Shares());
  ASSERT_EQ(ftruncate(fd_.get(), kBytes + 4096), 0);
  EXPECT_TRUE(Shares());
  fd_ = Descriptor(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd_.get(), kBytes - 4096), 0);
  fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  EXPECT_FALSE(Shares());
}

}  // namespace
}  // namespace terrace
