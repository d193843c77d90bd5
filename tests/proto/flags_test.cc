#include "proto/flags.h"

#include <cstdio>
#include <fstream>

#include "gtest/gtest.h"

namespace terrace {
namespace {

struct Values {
  uint64_t size = 1 << 20;
  absl::Duration time = absl::Seconds(1);
  uint64_t count = 3;
  std::string name = "x";
  bool loud = false;
  std::vector<std::string> places;
};

class FlagsTest : public testing::Test {
 protected:
  std::optional<int> Parse(std::vector<const char*> arguments) {
    Flags flags("program", "A program.");
    flags.AddBytes("--size", &values_.size, "a size");
    flags.AddDuration("--time", &values_.time, "a time");
    flags.AddUint("--count", &values_.count, "a count", 1, 10);
    flags.AddChoice("--name", &values_.name, "a name", {"x", "y"});
    flags.AddBool("--loud", &values_.loud, "a switch");
    flags.AddStrings("--place", &values_.places, "a place, repeatable");
    flags.AddConfigFile();
    arguments.insert(arguments.begin(), "program");
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    auto code = flags.Parse(static_cast<int>(arguments.size()), arguments.data());
    error_ = testing::internal::GetCapturedStderr();
    output_ = testing::internal::GetCapturedStdout();
    return code;
  }
  std::string ConfigFile(const std::string& text) {
    const std::string path = testing::TempDir() + "/flags_test_" +
                             testing::UnitTest::GetInstance()->current_test_info()->name() +
                             ".toml";
    std::ofstream(path) << text;
    return path;
  }

  Values values_;
  std::string error_, output_;
};

TEST_F(FlagsTest, ReadsUnits) {
  EXPECT_EQ(Parse({"--size", "2GiB", "--time=250ms", "--count", "4", "--name", "y", "--loud"}),
            std::nullopt);
  EXPECT_EQ(values_.size, 2ull << 30);
  EXPECT_EQ(values_.time, absl::Milliseconds(250));
  EXPECT_EQ(values_.count, 4u);
  EXPECT_EQ(values_.name, "y");
  EXPECT_TRUE(values_.loud);
}

TEST_F(FlagsTest, ErrorsNameTheFlagAndTheValue) {
  EXPECT_EQ(Parse({"--size", "12parsecs"}), 2);
  EXPECT_NE(error_.find("--size"), std::string::npos) << error_;
  EXPECT_NE(error_.find("12parsecs"), std::string::npos) << error_;
  EXPECT_EQ(Parse({"--count", "11"}), 2);
  EXPECT_NE(error_.find("--count"), std::string::npos) << error_;
  EXPECT_EQ(Parse({"--colour", "red"}), 2);
  EXPECT_NE(error_.find("--colour"), std::string::npos) << error_;
  EXPECT_EQ(Parse({"--name", "z"}), 2);
}

TEST_F(FlagsTest, HelpGoesToStandardOutputWithDefaults) {
  EXPECT_EQ(Parse({"--help"}), 0);
  EXPECT_NE(output_.find("1.00 MiB"), std::string::npos) << output_;
  EXPECT_TRUE(error_.empty());
  EXPECT_EQ(Parse({"--version"}), 0);
  EXPECT_NE(output_.find("terrace "), std::string::npos);
}

TEST_F(FlagsTest, ConfigFileHasTheSameNamesAndTheCommandLineWins) {
  const std::string path = ConfigFile("size = \"3MiB\"\ncount = 7\nloud = true\n");
  EXPECT_EQ(Parse({"--config", path.c_str(), "--count", "8"}), std::nullopt) << error_;
  EXPECT_EQ(values_.size, 3u << 20);
  EXPECT_EQ(values_.count, 8u);
  EXPECT_TRUE(values_.loud);
}

TEST_F(FlagsTest, ARepeatableFlagIsAListInTheConfigFile) {
  const std::string two = ConfigFile("place = [\"/a:1GiB\", \"/b\"]\ncount = 7\n");
  EXPECT_EQ(Parse({"--config", two.c_str()}), std::nullopt) << error_;
  EXPECT_EQ(values_.places, (std::vector<std::string>{"/a:1GiB", "/b"}));
  EXPECT_EQ(values_.count, 7u);
  const std::string one = ConfigFile("place = \"/c\"\n");
  values_.places.clear();
  EXPECT_EQ(Parse({"--config", one.c_str()}), std::nullopt) << error_;
  EXPECT_EQ(values_.places, std::vector<std::string>{"/c"});
  for (const char* text : {"place = []\n", "place = \"/a\"\ncount = 7\nplace = \"/b\"\n"}) {
    const std::string wrong = ConfigFile(text);
    EXPECT_EQ(Parse({"--config", wrong.c_str()}), 2) << text;
    EXPECT_NE(error_.find("one list is needed"), std::string::npos) << error_;
  }
}

TEST_F(FlagsTest, ATypoInTheConfigFileIsNamed) {
  const std::string path = ConfigFile("sise = \"3MiB\"\n");
  EXPECT_EQ(Parse({"--config", path.c_str()}), 2);
  EXPECT_NE(error_.find("sise"), std::string::npos) << error_;
  EXPECT_EQ(Parse({"--config", "/nonexistent.toml"}), 2);
  EXPECT_NE(error_.find("nonexistent"), std::string::npos) << error_;
}

TEST_F(FlagsTest, AKeyOfTheConfigFileStandsOnceWithOneValue) {
  for (const char* text : {"size = []\n", "count = []\n", "name = []\n", "count = [1, 2]\n",
                           "count = 1 2\n", "count = 1\nloud = true\ncount = 2\n"}) {
    const std::string path = ConfigFile(text);
    EXPECT_EQ(Parse({"--config", path.c_str()}), 2) << text;
    EXPECT_NE(error_.find("exactly one value is needed"), std::string::npos) << error_;
  }
  const std::string path = ConfigFile("[section]\nsize = \"1MiB\"\n");
  EXPECT_EQ(Parse({"--config", path.c_str()}), 2);
  EXPECT_NE(error_.find("'section.size', which is no flag"), std::string::npos) << error_;
}

TEST(FlagsCommands, OneMustBeChosenAndCompletionKnowsThem) {
  Flags flags("tool", "A tool.");
  bool json = false;
  Flags* ping = flags.AddCommand("ping", "Says hello.");
  ping->AddBool("--json", &json, "for programs");
  Flags* space = flags.AddCommand("namespace", "Namespaces.");
  Flags* list = space->AddCommand("list", "Lists them.");
  const char* argv[] = {"tool", "namespace", "list"};
  EXPECT_EQ(flags.Parse(3, argv), std::nullopt);
  EXPECT_TRUE(list->chosen());
  EXPECT_FALSE(ping->chosen());
  const std::string script = flags.BashCompletion();
  EXPECT_NE(script.find("'tool ping') words='--help --json"), std::string::npos) << script;
  EXPECT_NE(script.find("'tool namespace') words='list"), std::string::npos) << script;
  // The script must at least be bash.
  const std::string path = testing::TempDir() + "/completion.bash";
  std::ofstream(path) << script;
  EXPECT_EQ(std::system(("bash -n " + path).c_str()), 0);
}

}  // namespace
}  // namespace terrace
