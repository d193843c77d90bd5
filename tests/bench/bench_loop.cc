#include "tests/bench/bench_loop.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "proto/clock.h"

extern char** environ;

namespace terrace {
namespace {

constexpr int kNearCpu = 0, kFarCpu = 1;

void StayOn(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

ColdMemory::ColdMemory() {
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  madvise(memory, kBytes, MADV_HUGEPAGE);
  memory_ = static_cast<std::byte*>(memory);
  std::memset(memory_, 0x5a, kBytes);
}

ColdMemory::~ColdMemory() { munmap(memory_, kBytes); }

MutableByteSpan ColdMemory::Next(uint64_t bytes) {
  if (next_ + bytes > kBytes) next_ = 0;
  const MutableByteSpan block(memory_ + next_, bytes);
  next_ += bytes;
  return block;
}

void StayNear() { StayOn(kNearCpu); }

StartingFar::StartingFar() {
  sched_getaffinity(0, sizeof(before_), &before_);
  StayOn(kFarCpu);
}

StartingFar::~StartingFar() { sched_setaffinity(0, sizeof(before_), &before_); }

double ProcessCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double NowSeconds() { return absl::ToDoubleSeconds(Clock::Real()->Now()); }

absl::StatusOr<std::unique_ptr<FarProcess>> FarProcess::Start(const std::string& role) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../bin/bench_far";
  int input[2];
  int output[2];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError("pipe");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(role.c_str()),
                             nullptr};
  pid_t pid = 0;
  const StartingFar far;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  std::string address;
  char byte = 0;
  while (error == 0 && read(output[0], &byte, 1) == 1 && byte != '\n') address += byte;
  close(output[0]);
  if (address.empty()) {
    close(input[1]);
    return absl::UnavailableError("cannot start " + program);
  }
  return std::unique_ptr<FarProcess>(new FarProcess(pid, input[1], address));
}

FarProcess::~FarProcess() {
  close(input_);
  waitpid(pid_, nullptr, 0);
}

}  // namespace terrace
