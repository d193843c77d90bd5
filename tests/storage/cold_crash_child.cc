// Writes, reads and deletes cold blocks until it is killed. Each line of the journal is one write
// to it: "acked N", "durable N", "deleting N".
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <random>

#include "fmt/format.h"
#include "tests/storage/cold_support.h"

namespace terrace::testing {
namespace {

int Run(const std::string& path, const std::string& journal, uint64_t seed, uint64_t keys) {
  auto folder = OpenLoaded(SmallFolder(path));
  if (folder == nullptr) return 1;
  const int fd = ::open(journal.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const auto note = [fd](const char* what, uint64_t number) {
    const std::string line = fmt::format("{} {}\n", what, number);
    if (::write(fd, line.data(), line.size()) < 0) std::abort();
  };
  std::puts("ready");
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  while (true) {
    const uint64_t number = random() % keys;
    const BlockKey key = KeyOf(number);
    switch (random() % 8) {
      case 0:
        note("deleting", number);
        folder->Delete({&key, 1}, ColdLeave::kEvicted).IgnoreError();
        break;
      case 1:
        if (absl::IsInternal(GetAndCheck(*folder, key))) return 2;
        break;
      default: {
        TestBlock block(key, number % 3 == 0 ? 8192 : 65'536);
        const bool durable = random() % 16 == 0;
        const absl::Status put = PutAndWait(*folder, block, durable);
        if (put.ok()) note(durable ? "durable" : "acked", number);
      }
    }
  }
}

}  // namespace
}  // namespace terrace::testing

int main(int argc, char** argv) {
  if (argc != 5) return 64;
  return terrace::testing::Run(argv[1], argv[2], std::stoull(argv[3]), std::stoull(argv[4]));
}
