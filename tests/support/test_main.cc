// main() of every test program: gives each process a temporary folder of its own, which is what
// testing::TempDir() answers, so that cases that run beside each other share no file; removes it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  std::string folder = (std::filesystem::temp_directory_path() / "terrace-test-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 2;
  }
  setenv("TEST_TMPDIR", folder.c_str(), /*overwrite=*/1);
  const int result = RUN_ALL_TESTS();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}
