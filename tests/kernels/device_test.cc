// One contract for every device; the CUDA half is skipped, visibly, where there is none.
#include "kernels/device.h"

#include <cstring>
#include <functional>

#include "gtest/gtest.h"

namespace terrace::kernels {
namespace {

struct Backend {
  const char* name;
  std::function<std::unique_ptr<Device>(std::string* why)> create;
};

std::unique_ptr<Device> FirstCudaDevice(std::string* why) {
  std::vector<std::unique_ptr<Device>> devices;
  const Status status = CudaDevices(&devices);
  *why = status.message();
  return devices.empty() ? nullptr : std::move(devices.front());
}

class DeviceContract : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    std::string why;
    device_ = GetParam().create(&why);
    if (device_ == nullptr) GTEST_SKIP() << why;
  }

  std::unique_ptr<Device> device_;
};

TEST_P(DeviceContract, BytesSurviveTheWayThroughDeviceMemory) {
  constexpr size_t kBytes = 1 << 20;
  void* in = nullptr;
  void* out = nullptr;
  void* there = nullptr;
  ASSERT_TRUE(device_->Allocate(MemoryKind::kPinnedHost, kBytes, &in).ok());
  ASSERT_TRUE(device_->Allocate(MemoryKind::kPinnedHost, kBytes, &out).ok());
  ASSERT_TRUE(device_->Allocate(MemoryKind::kDevice, kBytes, &there).ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(there) % 256, 0u);
  for (size_t i = 0; i < kBytes; ++i) static_cast<unsigned char*>(in)[i] = (i * 2654435761u) >> 24;
  std::memset(out, 0, kBytes);

  std::unique_ptr<Stream> up, down;
  ASSERT_TRUE(device_->CreateStream(&up).ok());
  ASSERT_TRUE(device_->CreateStream(&down).ok());
  std::unique_ptr<Event> arrived;
  ASSERT_TRUE(up->Copy(there, in, kBytes).ok());
  ASSERT_TRUE(up->Record(&arrived).ok());
  ASSERT_TRUE(down->WaitFor(*arrived).ok());
  ASSERT_TRUE(down->Copy(out, there, kBytes).ok());
  ASSERT_TRUE(down->Synchronize().ok());
  EXPECT_TRUE(arrived->done());
  EXPECT_EQ(std::memcmp(in, out, kBytes), 0);

  EXPECT_TRUE(device_->Free(MemoryKind::kDevice, there).ok());
  EXPECT_TRUE(device_->Free(MemoryKind::kPinnedHost, in).ok());
  EXPECT_TRUE(device_->Free(MemoryKind::kPinnedHost, out).ok());
}

TEST_P(DeviceContract, RefusesMoreThanItHasAndKeepsWorking) {
  DeviceInfo before;
  ASSERT_TRUE(device_->Info(&before).ok());
  void* memory = &before;
  const Status refused = device_->Allocate(MemoryKind::kDevice, before.total_bytes + 1, &memory);
  EXPECT_EQ(refused.code(), Code::kOutOfMemory) << refused.message();
  EXPECT_EQ(memory, nullptr);
  ASSERT_TRUE(device_->Allocate(MemoryKind::kDevice, 4096, &memory).ok());
  EXPECT_TRUE(device_->Free(MemoryKind::kDevice, memory).ok());
  EXPECT_EQ(device_->Allocate(MemoryKind::kDevice, 0, &memory).code(), Code::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, DeviceContract,
    testing::Values(Backend{"HostTwin", [](std::string*) { return CreateHostTwin(8 << 20); }},
                    Backend{"Cuda", FirstCudaDevice}),
    [](const auto& backend) { return backend.param.name; });

TEST(CudaDevices, SaysWhyThereAreNone) {
  std::vector<std::unique_ptr<Device>> devices;
  const Status status = CudaDevices(&devices);
  EXPECT_EQ(status.ok(), !devices.empty());
  if (!status.ok()) {
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_FALSE(status.message().empty());
  }
}

}  // namespace
}  // namespace terrace::kernels
