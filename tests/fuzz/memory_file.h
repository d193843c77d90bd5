// Bytes under a path of their own, for parsers that open files; nothing touches a disk.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "tests/fuzz/require.h"

namespace terrace {

class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("input", MFD_CLOEXEC)) { Require(fd_ >= 0, "memfd_create"); }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void Assign(const void* data, size_t size) {
    Require(ftruncate(fd_, 0) == 0, "ftruncate");
    Require(pwrite(fd_, data, size, 0) == static_cast<ssize_t>(size), "pwrite");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

}  // namespace terrace
