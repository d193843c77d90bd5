#include "tests/sim/trace.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace terrace {
namespace {

constexpr uint64_t kTokensPerBlock = 512;

// The standard's distributions differ between libraries; a trace must not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  // Exponential, so that most pauses are short and some are long.
  uint64_t Pause(double mean_ms) {
    const double uniform = (static_cast<double>(random_() >> 11) + 0.5) / 9007199254740992.0;
    return static_cast<uint64_t>(-mean_ms * std::log(uniform));
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(fmt::format("trace {} cannot be opened", path));
  Trace trace;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto invalid = [&] {
      return absl::InvalidArgumentError(
          fmt::format("{}: request {} has no timestamp and hash_ids", path, trace.size() + 1));
    };
    if (!json.is_object() || !json.contains("timestamp") || !json.contains("hash_ids") ||
        !json["timestamp"].is_number() || !json["hash_ids"].is_array()) {
      return invalid();
    }
    TraceRequest request{json["timestamp"].get<uint64_t>(), {}};
    for (const auto& id : json["hash_ids"]) {
      if (!id.is_number_unsigned()) return invalid();
      request.blocks.push_back(id.get<uint64_t>());
    }
    trace.push_back(std::move(request));
  }
  return trace;
}

absl::Status WriteTrace(const Trace& trace, const std::string& path) {
  std::ofstream file(path);
  for (const TraceRequest& request : trace) {
    const nlohmann::json json = {{"timestamp", request.timestamp_ms},
                                 {"input_length", request.blocks.size() * kTokensPerBlock},
                                 {"output_length", 0},
                                 {"hash_ids", request.blocks}};
    file << json.dump() << '\n';
  }
  file.close();
  if (!file) return absl::UnavailableError(fmt::format("trace {} cannot be written", path));
  return absl::OkStatus();
}

Trace GenerateTrace(const TraceOptions& options) {
  Dice dice(options.seed);
  uint64_t next_id = 0;
  const auto append = [&](std::vector<uint64_t>* blocks, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) blocks->push_back(next_id++);
  };
  std::vector<std::vector<uint64_t>> prompts(options.system_prompts);
  for (auto& prompt : prompts) append(&prompt, dice.Between(1, 12));

  // The lower of two throws: the first prompts are the popular ones.
  const auto choose_prompt = [&]() -> const std::vector<uint64_t>& {
    return prompts[std::min(dice.Below(prompts.size()), dice.Below(prompts.size()))];
  };

  Trace trace;
  uint64_t start_ms = 0;
  for (uint64_t i = 0; i < options.conversations; ++i) {
    start_ms += dice.Pause(500);
    TraceRequest request{start_ms, choose_prompt()};
    const uint64_t turns = dice.Between(1, dice.Between(1, options.most_turns));
    for (uint64_t turn = 0; turn < turns; ++turn) {
      append(&request.blocks, dice.Between(1, 16));
      trace.push_back(request);
      request.timestamp_ms += 2'000 + dice.Pause(60'000);
    }
  }
  for (uint64_t i = 0; i < options.single_shots; ++i) {
    TraceRequest request{dice.Below(start_ms + 1), choose_prompt()};
    append(&request.blocks, dice.Between(20, 200));
    trace.push_back(std::move(request));
  }
  std::ranges::stable_sort(trace, {}, &TraceRequest::timestamp_ms);
  return trace;
}

}  // namespace terrace
