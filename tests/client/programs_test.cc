// terracectl and terrace-load as people run them, against a real node.
#include <signal.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/clock.h"
#include "tests/client/node_process.h"

namespace terrace {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct Result {
  std::optional<int> code;
  std::string output, errors;
};

Result RunProgram(const std::string& name, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), BinaryPath(name));
  ChildProcess process = *ChildProcess::Start(arguments);
  const std::optional<int> code = process.Wait();
  return {code, process.output(), process.errors()};
}

class ProgramsTest : public ::testing::Test {
 protected:
  Result Ctl(std::vector<std::string> arguments) {
    arguments.push_back("--address=" + node_.address());
    return RunProgram("terracectl", std::move(arguments));
  }
  Result Load(std::vector<std::string> arguments) {
    arguments.push_back("--address=" + node_.address());
    arguments.push_back("--json=" + json_path_);
    return RunProgram("terrace-load", std::move(arguments));
  }
  json LoadJson() {
    std::ifstream in(json_path_);
    return json::parse(in);
  }

  NodeProcess node_;
  const std::string json_path_ = testing::TempDir() + "load.json";
};

TEST_F(ProgramsTest, CtlShowsANode) {
  EXPECT_THAT(Ctl({"ping"}).output, HasSubstr("under-test at " + node_.address() + " is ready"));
  const Result status = Ctl({"status"});
  EXPECT_EQ(status.code, 0);
  EXPECT_THAT(status.output, ContainsRegex("node +under-test\n"));
  EXPECT_EQ(json::parse(Ctl({"status", "--json"}).output)["node_id"], "under-test");
  EXPECT_EQ(json::parse(Ctl({"ping", "--json"}).output)["state"], "ready");
  EXPECT_THAT(Ctl({"tiers"}).output, HasSubstr("TIER"));
  const json tiers = json::parse(Ctl({"tiers", "--json"}).output);
  EXPECT_EQ(tiers["tiers"][0]["tier"], "host");
  EXPECT_GT(tiers["tiers"][0]["capacity_bytes"], 0);
  EXPECT_THAT(Ctl({"stats"}).output, HasSubstr("terrace_"));
  EXPECT_TRUE(json::parse(Ctl({"stats", "--json"}).output)["values"].is_object());
}

TEST_F(ProgramsTest, CtlHandlesNamespaces) {
  const Result created = Ctl({"namespace", "create", "chat", "--block-bytes=64KiB", "--segments=4",
                              "--model=m", "--block-tokens=16"});
  EXPECT_EQ(created.code, 0) << created.errors;
  EXPECT_THAT(created.output, HasSubstr("chat"));
  EXPECT_THAT(Ctl({"namespace", "list"}).output, HasSubstr("64.0 KiB"));
  EXPECT_THAT(Ctl({"namespace", "list"}).output, HasSubstr("HOST BLOCKS"));
  const json list = json::parse(Ctl({"namespace", "list", "--json"}).output);
  EXPECT_EQ(list["namespaces"][0]["layout"]["segments"], 4);
  EXPECT_THAT(
      Ctl({"namespace", "delete", "chat"}).output,
      HasSubstr("namespace chat is deleted; blocks forgotten: 0 in host memory, 0 on ssd\n"));
  EXPECT_THAT(Ctl({"namespace", "create", "chat", "--block-bytes=64KiB", "--model=m"}).errors,
              HasSubstr("--block-tokens"));
  const Result again = Ctl({"namespace", "delete", "chat"});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.errors, HasSubstr("terracectl: "));
}

TEST_F(ProgramsTest, CtlFindsBlocks) {
  ASSERT_EQ(Load({"--seconds=1", "--block-bytes=16KiB"}).code, 0);
  const Result top = Ctl({"top", "--count=3", "--json"});
  const json blocks = json::parse(top.output)["blocks"];
  ASSERT_EQ(blocks.size(), 3u);
  const std::string key = blocks[0]["key"];
  const Result found = Ctl({"locate", key});
  EXPECT_EQ(found.code, 0);
  EXPECT_THAT(found.output, HasSubstr("on under-test"));
  const std::string absent = key.substr(0, 17) + std::string(64, '0') + ":0";
  const Result missing = Ctl({"locate", absent});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.output, HasSubstr("not on under-test"));
  const Result wrong = Ctl({"locate", "nonsense"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.errors, HasSubstr("'nonsense' is not a key"));
}

TEST(Ctl, HelpSaysWhatIsShown) {
  const std::string tiers = RunProgram("terracectl", {"tiers", "--help"}).output;
  for (const char* word : {"CAPACITY", "FULL", "TURNOVERS", "not_admitted"}) {
    EXPECT_THAT(tiers, HasSubstr(word));
  }
  EXPECT_THAT(RunProgram("terracectl", {"top", "--help"}).output, HasSubstr("in host memory"));
  EXPECT_THAT(RunProgram("terracectl", {"namespace", "list", "--help"}).output,
              HasSubstr("blocks on ssd are not counted"));
}

TEST(Ctl, ScrubRefusesRatesThatNeverEnd) {
  const Result slow = RunProgram("terracectl", {"--address=127.0.0.1:1", "scrub", "--rate=1"});
  EXPECT_EQ(slow.code, 2);
  EXPECT_EQ(slow.errors,
            "terracectl: --rate: 1 B per second are too few: give 64.0 KiB at least, or 0 for no "
            "bound\n");
}

TEST(Ctl, SaysWhatIsWrongAndHowToMendIt) {
  const Result down = RunProgram("terracectl", {"--address=127.0.0.1:1", "ping"});
  EXPECT_EQ(down.code, 1);
  EXPECT_EQ(down.errors,
            "terracectl: no node answers at 127.0.0.1:1: Connection refused; is terraced running "
            "there? (--address, or TERRACE_ADDRESS)\n");
  const Result usage = RunProgram("terracectl", {"frobnicate"});
  EXPECT_EQ(usage.code, 2);
  EXPECT_THAT(RunProgram("terracectl", {"--token-file=/nonexistent", "ping"}).errors,
              HasSubstr("cannot read the token file '/nonexistent'"));
  EXPECT_THAT(RunProgram("terracectl", {"completion", "bash"}).output,
              HasSubstr("complete -o default -F _terracectl terracectl"));
}

TEST_F(ProgramsTest, LoadJudgesGeneratedTraffic) {
  const Result run = Load({"--seconds=2", "--workers=3", "--block-bytes=32KiB", "--segments=2"});
  EXPECT_EQ(run.code, 0) << run.output << run.errors;
  EXPECT_THAT(run.output, HasSubstr("hit rate"));
  EXPECT_THAT(run.output, testing::Not(HasSubstr("hits in ssd"))) << "there is no such tier";
  const json summary = LoadJson();
  EXPECT_GT(summary["requests"], 0);
  EXPECT_GT(summary["hits"]["host"], 0);
  EXPECT_EQ(summary["wrong_bytes"], 0);
  EXPECT_EQ(summary["errors"], 0);
  EXPECT_EQ(summary["stuck"], 0);
  EXPECT_EQ(summary["blocks_requested"].get<int>(),
            summary["hits"]["host"].get<int>() + summary["misses"].get<int>());
  for (const char* name : {"requests_per_s", "put_GBps", "get_GBps", "match_p50_us", "match_p99_us",
                           "get_p50_us", "get_p99_us", "hit_rate"}) {
    EXPECT_GT(summary[name], 0) << name;
  }
}

TEST_F(ProgramsTest, LoadReplaysATrace) {
  const std::string path = testing::TempDir() + "small.jsonl";
  std::ofstream out(path);
  for (int i = 0; i < 50; ++i) {
    out << "{\"timestamp\": 0, \"hash_ids\": [1, 2, " << 100 + i << "]}\n";
  }
  out.close();
  // One at a time: every request finds the prefix that those before it have put.
  EXPECT_EQ(Load({"--trace=" + path, "--workers=1"}).code, 0);
  EXPECT_EQ(LoadJson()["requests"], 50);
  EXPECT_EQ(LoadJson()["blocks_requested"], 150);
  EXPECT_EQ(LoadJson()["hits"]["host"], 49 * 2);
  EXPECT_EQ(Load({"--trace=" + path, "--limit=10"}).code, 0);
  EXPECT_EQ(LoadJson()["hits"]["host"], 30);
  const Result missing = Load({"--trace=/nonexistent"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.errors, HasSubstr("cannot read the trace '/nonexistent'"));
}

TEST_F(ProgramsTest, LoadEndsCleanlyWhenInterrupted) {
  ChildProcess load =
      *ChildProcess::Start({BinaryPath("terrace-load"), "--address=" + node_.address(),
                            "--seconds=600", "--json=" + json_path_});
  // Once its namespace is there it runs, and hears signals.
  const absl::Duration until = Clock::Real()->Now() + absl::Seconds(60);
  while (Ctl({"top", "--count=1"}).output.find("host") == std::string::npos) {
    ASSERT_LT(Clock::Real()->Now(), until);
  }
  load.Signal(SIGINT);
  EXPECT_EQ(load.Wait(), 130);
  EXPECT_GT(LoadJson()["requests"], 0);
}

TEST(Load, SaysWhatIsWrong) {
  const Result down = RunProgram("terrace-load", {"--address=127.0.0.1:1"});
  EXPECT_EQ(down.code, 2);
  EXPECT_THAT(down.errors, HasSubstr("no node answers at 127.0.0.1:1"));
  EXPECT_EQ(RunProgram("terrace-load", {"--block-bytes=lots"}).code, 2);
  const Result huge = RunProgram("terrace-load", {"--block-bytes=4295032832"});
  EXPECT_EQ(huge.code, 2);
  EXPECT_THAT(huge.errors, HasSubstr("--block-bytes"));
}

TEST_F(ProgramsTest, LoadWithNothingToDoIsNotAllWell) {
  const std::string empty = testing::TempDir() + "empty.jsonl";
  std::ofstream(empty).flush();
  const Result run = Load({"--trace=" + empty});
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.errors, HasSubstr("--trace holds none"));
}

TEST_F(ProgramsTest, LostOutputIsAnError) {
  for (const char* program : {"terracectl status", "terracectl stats", "terraced --check-config"}) {
    const std::string words = program;
    const std::string name = words.substr(0, words.find(' '));
    std::string command = BinaryPath(name) + words.substr(name.size());
    if (name == "terracectl") command += " --address=" + node_.address();
    ChildProcess shell = *ChildProcess::Start({"/bin/sh", "-c", command + " > /dev/full"});
    EXPECT_EQ(shell.Wait(), 1) << program;
    EXPECT_THAT(shell.errors(), HasSubstr("standard output could not be written")) << program;
  }
  // A node whose messages nobody takes starts all the same.
  ChildProcess node = *ChildProcess::Start(
      {"/bin/sh", "-c",
       "exec " + BinaryPath("terraced") +
           " --listen=127.0.0.1:0 --http-listen=127.0.0.1:0 --host-bytes=64MiB "
           "--max-block-bytes=8MiB --transport=tcp 2> /dev/full"});
  EXPECT_TRUE(node.WaitForLine("terraced ready").ok());
  node.Signal(SIGTERM);
  EXPECT_EQ(node.Wait(), 0);
}

TEST(Ctl, ATokenFileThatHoldsNoTokenIsNamedAndNotShown) {
  const std::string path = testing::TempDir() + "token";
  for (const char* text : {"", "two words", "two\nlines-of-secret", "caf\xc3\xa9"}) {
    std::ofstream(path) << text;
    const Result result = RunProgram("terracectl", {"--token-file=" + path, "ping"});
    EXPECT_EQ(result.code, 2) << text;
    EXPECT_THAT(result.errors, HasSubstr("the token file '" + path + "' holds no token"));
    EXPECT_THAT(result.errors, testing::Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace terrace
