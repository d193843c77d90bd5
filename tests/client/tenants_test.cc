// Two tenants of one node, on its machine: what one tries with the other's blocks.
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/node_process.h"
#include "tests/client/test_worker.h"
#include "tests/support/temp_folder.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBlocks = TestWorker::kBlocks;

// The node's memory as this process has it mapped, each mapping whole.
std::vector<MutableByteSpan> MappedMemory() {
  std::vector<MutableByteSpan> mapped;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:terrace-host-tier") == std::string::npos) continue;
    const auto begin = std::stoull(line, nullptr, 16);
    const auto end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
    mapped.emplace_back(reinterpret_cast<std::byte*>(begin), end - begin);
  }
  return mapped;
}

bool Holds(ByteSpan memory, ByteSpan bytes) {
  for (size_t at = 0; at + bytes.size() <= memory.size(); at += 4096) {  // as places are aligned
    if (std::ranges::equal(memory.subspan(at, bytes.size()), bytes)) return true;
  }
  return false;
}

class TenantsTest : public ::testing::Test {
 protected:
  TenantsTest() {
    Write("credentials",
          "one worker token-of-one-0123456789\n"
          "two worker token-of-two-0123456789\n"
          "operator admin token-of-operator-0123456789\n");
    for (const char* who : {"one", "two", "operator"}) {
      Write(who, fmt::format("token-of-{}-0123456789\n", who));
    }
    node_.emplace(std::vector<std::string>{"--credentials=" + Path("credentials")});
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(Path(name)) << text;
    chmod(Path(name).c_str(), S_IRUSR | S_IWUSR);
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  TestWorker Worker(const std::string& tenant, uint8_t seed) {
    TestWorker worker({.address = node_->address(), .token_file = Path(tenant)}, seed);
    EXPECT_TRUE(worker.client().Stats().local) << worker.client().Stats().local_reason;
    return worker;
  }
  // What terracectl prints with that tenant's token, and complains.
  std::string Ctl(const std::string& tenant, std::vector<std::string> arguments) {
    std::vector<std::string> argv = {BinaryPath("terracectl"), "--address", node_->address(),
                                     "--token-file", Path(tenant)};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    ChildProcess ctl = *ChildProcess::Start(argv);
    std::string output;
    for (auto line = ctl.WaitForLine(""); line.ok(); line = ctl.WaitForLine("")) output += *line;
    EXPECT_TRUE(ctl.Wait().has_value());
    return output + ctl.errors();
  }

  terrace::testing::TempFolder folder_;
  std::optional<NodeProcess> node_;
};

TEST_F(TenantsTest, NeitherMapsTheOthersBlocks) {
  {
    TestWorker one = Worker("one", 1);
    ASSERT_EQ(one.PutAll(), kBlocks);
    ASSERT_EQ(MappedMemory().size(), 1u);
    EXPECT_TRUE(Holds(MappedMemory()[0], one.Payload(5)));  // so it would be seen
  }
  TestWorker two = Worker("two", 2);
  ASSERT_EQ(two.PutAll(), kBlocks);
  const std::vector<MutableByteSpan> mapped = MappedMemory();
  ASSERT_EQ(mapped.size(), 1u);
  EXPECT_TRUE(Holds(mapped[0], two.Payload(5)));
  std::vector<std::byte> of_one(4096);
  for (size_t at = 0; at < of_one.size(); ++at) {
    of_one[at] = static_cast<std::byte>(at % 2 == 0 ? 5 : 0x41);
  }
  EXPECT_FALSE(Holds(mapped[0], of_one));
  // Nor may it write what it reads.
  EXPECT_EQ(mprotect(mapped[0].data(), mapped[0].size(), PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(Worker("one", 1).GetAll(), kBlocks);
}

// Even with everything that the owner knows: the id and the secret of its namespace, and the keys.
TEST_F(TenantsTest, NeitherReadsOrChangesTheOthersBlocks) {
  TestWorker one = Worker("one", 1), two = Worker("two", 2);
  ASSERT_EQ(one.PutAll(), kBlocks);
  const std::string before = Ctl("operator", {"--json", "tiers"});
  EXPECT_THAT(before, HasSubstr("misses"));

  std::vector<std::byte> bytes(TestWorker::kBlockBytes);
  Operation get = two.client().Get(one.ns(), {{one.chain().key(0), {MutableByteSpan(bytes)}}});
  get.Wait();
  EXPECT_EQ(get.results()[0].outcome, Outcome::kRefused);
  for (const BlockView& view : two.client().View(one.ns(), one.keys())) EXPECT_FALSE(view);
  Operation put = two.client().Put(one.ns(), {{one.chain().key(1), {ByteSpan(bytes)}, {}}});
  put.Wait();
  EXPECT_EQ(put.results()[0].outcome, Outcome::kRefused);
  // What is there and what is not look alike.
  const Chain absent = *Chain::FromTokens(one.ns(), std::vector<uint32_t>(kBlocks * 16, 99));
  const auto there = two.client().Match(one.chain(), {.lease = absl::Seconds(5)});
  const auto not_there = two.client().Match(absent, {.lease = absl::Seconds(5)});
  ASSERT_TRUE(there.ok() && not_there.ok());
  EXPECT_EQ(there->blocks, 0u);
  EXPECT_EQ(not_there->blocks, 0u);
  EXPECT_EQ(there->ask_again, not_there->ask_again);
  EXPECT_FALSE(there->lease || not_there->lease);
  two.client().Touch(one.chain(), kBlocks);
  // None of it came as far as the blocks: no hit, no miss, no use; so there is nothing to time.
  EXPECT_EQ(Ctl("operator", {"--json", "tiers"}), before);
  EXPECT_EQ(one.GetAll(), kBlocks);
}

TEST_F(TenantsTest, NeitherDrivesTheOthersBlocksOut) {
  TestWorker one = Worker("one", 1), two = Worker("two", 2);
  ASSERT_EQ(one.PutAll(), kBlocks);
  EXPECT_THAT(Ctl("two", {"namespace", "delete", "test"}), HasSubstr("admin"));
  // Four times what the node has, put once each: they make room for one another, not at the cost of
  // what is in use.
  const std::vector<std::byte> bytes(TestWorker::kBlockBytes);
  for (uint32_t i = 0; i < 1024; ++i) {
    const Chain chain =
        *Chain::FromTokens(two.ns(), std::vector<uint32_t>(TestWorker::kBlockTokens, 1000 + i));
    if (i % 64 == 0) {  // as a worker does: it asks, which counts as use, and reads
      ASSERT_EQ(one.client().Match(one.chain())->blocks, kBlocks) << i;
      ASSERT_EQ(one.GetAll(), kBlocks) << i;
    }
    two.client().Put(two.ns(), {{chain.key(0), {ByteSpan(bytes)}, {}}}).Wait();
  }
  EXPECT_EQ(one.GetAll(), kBlocks);
}

}  // namespace
}  // namespace terrace
