#include "client/load/traffic.h"

#include <algorithm>
#include <fstream>
#include <random>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace terrace {
namespace {

class Trace : public Traffic {
 public:
  Trace(std::string path, std::ifstream in, uint64_t limit)
      : path_(std::move(path)), in_(std::move(in)), limit_(limit) {}

  absl::StatusOr<bool> Next(TrafficRequest* request) override {
    std::string line;
    while (limit_ == 0 || given_ < limit_) {
      if (!std::getline(in_, line)) return false;
      ++line_;
      if (line.empty()) continue;
      const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*exceptions=*/false);
      if (!Read(object, request)) {
        return absl::InvalidArgumentError(fmt::format(
            "{}:{}: not a request: expected an object with a list of numbers 'hash_ids'", path_,
            line_));
      }
      ++given_;
      return true;
    }
    return false;
  }

 private:
  static bool Read(const nlohmann::json& object, TrafficRequest* request) {
    if (!object.is_object() || !object.contains("hash_ids")) return false;
    const nlohmann::json& ids = object["hash_ids"];
    const auto is_id = [](const nlohmann::json& id) { return id.is_number_integer(); };
    if (!ids.is_array() || !std::all_of(ids.begin(), ids.end(), is_id)) return false;
    request->hash_ids = ids.get<std::vector<uint64_t>>();
    return true;
  }

  const std::string path_;
  std::ifstream in_;
  const uint64_t limit_;
  uint64_t line_ = 0;
  uint64_t given_ = 0;
};

class Conversations : public Traffic {
 public:
  explicit Conversations(uint64_t seed) : random_(seed), conversations_(kConversations) {
    for (Conversation& each : conversations_) Begin(&each);
  }

  absl::StatusOr<bool> Next(TrafficRequest* request) override {
    Conversation& conversation = conversations_[Draw(0, kConversations - 1)];
    if (conversation.turns_left == 0) {
      Rest(std::move(conversation.hash_ids));
      Begin(&conversation);
    }
    --conversation.turns_left;
    for (uint64_t more = Draw(1, kMaxTurnBlocks); more > 0; --more) {
      conversation.hash_ids.push_back(next_id_++);
    }
    request->hash_ids = conversation.hash_ids;
    return true;
  }

 private:
  struct Conversation {
    std::vector<uint64_t> hash_ids;
    uint64_t turns_left = 0;
  };
  static constexpr uint64_t kConversations = 64;
  static constexpr uint64_t kPrompts = 8;
  static constexpr uint64_t kPromptBlocks = 8;
  static constexpr uint64_t kMaxTurns = 12;
  static constexpr uint64_t kMaxTurnBlocks = 6;
  // Of conversations one in so many is an old one that somebody comes back to. By then it has left
  // a small host tier: without such a slower tier had nothing to show.
  static constexpr uint64_t kReturnOneIn = 3;
  static constexpr size_t kResting = 1024;
  static constexpr size_t kMaxBlocks = 128;

  uint64_t Draw(uint64_t from, uint64_t to) {
    return from + random_() % (to - from + 1);  // the same on every platform
  }

  // Keeps it for later, in the place of the one that has rested longest.
  void Rest(std::vector<uint64_t> hash_ids) {
    if (hash_ids.size() > kMaxBlocks) return;  // it was long enough
    if (resting_.size() < kResting) {
      resting_.push_back(std::move(hash_ids));
    } else {
      resting_[rested_++ % kResting] = std::move(hash_ids);
    }
  }

  void Begin(Conversation* conversation) {
    conversation->turns_left = Draw(1, kMaxTurns);
    if (!resting_.empty() && Draw(1, kReturnOneIn) == 1) {
      conversation->hash_ids = resting_[Draw(0, resting_.size() - 1)];
      return;
    }
    const uint64_t prompt = Draw(0, kPrompts - 1);
    conversation->hash_ids.clear();
    for (uint64_t i = 0; i < kPromptBlocks; ++i) {
      conversation->hash_ids.push_back(prompt * kPromptBlocks + i);
    }
  }

  std::mt19937_64 random_;
  uint64_t next_id_ = kPrompts * kPromptBlocks;
  std::vector<Conversation> conversations_;
  std::vector<std::vector<uint64_t>> resting_;
  size_t rested_ = 0;  // in the place of another
};

}  // namespace

absl::StatusOr<std::unique_ptr<Traffic>> OpenTrace(const std::string& path, uint64_t limit) {
  std::ifstream in(path);
  if (!in) return absl::InvalidArgumentError(fmt::format("cannot read the trace '{}'", path));
  return std::make_unique<Trace>(path, std::move(in), limit);
}

std::unique_ptr<Traffic> MakeConversations(uint64_t seed) {
  return std::make_unique<Conversations>(seed);
}

}  // namespace terrace
