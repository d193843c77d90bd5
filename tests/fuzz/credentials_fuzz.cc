// Credentials::Parse: what it accepts is found again, by whole tokens only, and an error never
// shows a word that may be a token.
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "cache_node/security.h"
#include "tests/fuzz/require.h"

namespace terrace {
namespace {

constexpr size_t kShortestToken = 16;
constexpr std::string_view kNamePattern = "[a-z0-9][a-z0-9._-]{0,62}";  // part of a message

std::vector<std::vector<std::string>> WordsOf(const std::string& text) {
  std::vector<std::vector<std::string>> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    lines.push_back(absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty()));
  }
  return lines;
}

void JudgeError(const absl::Status& status, const std::string& text) {
  Require(status.code() == absl::StatusCode::kInvalidArgument, "a malformed file is named so");
  const std::string_view message(status.message().data(), status.message().size());
  for (const auto& line : WordsOf(text)) {
    for (const std::string& word : line) {
      if (word.size() < kShortestToken || kNamePattern.find(word) != std::string_view::npos) {
        continue;
      }
      Require(message.find(word) == std::string_view::npos, "an error shows no token");
    }
  }
}

}  // namespace
}  // namespace terrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<Credentials> credentials = Credentials::Parse(text);
  if (!credentials.ok()) {
    JudgeError(credentials.status(), text);
    return 0;
  }
  Require(!credentials->Find(""), "no token, no identity");
  std::string canonical;
  for (const auto& words : WordsOf(text)) {
    if (words.empty() || words[0][0] == '#') continue;
    Require(words.size() == 3, "three words");
    const std::string& token = words[2];
    const std::optional<Identity> found = credentials->Find(token);
    Require(found && found->tenant == words[0] && IsName(words[0]), "a token has its tenant");
    Require(found->worker == (words[1].find("worker") != std::string::npos), "role worker");
    Require(found->admin == (words[1].find("admin") != std::string::npos), "role admin");
    Require(found->worker || found->admin, "no identity without a role");
    Require(!credentials->Find(token.substr(0, kShortestToken - 1)), "no token in part");
    canonical += words[0] + " " + words[1] + " " + token + "\n";
  }
  Require(Credentials::Parse(canonical).ok(), "blanks and comments mean nothing");
  return 0;
}
