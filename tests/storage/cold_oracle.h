// What an ssd store may hold after its process was killed or its machine lost power, judged by a
// journal. Whoever works on a block writes one line before and after each step:
//
//   put N V       version V of block N is about to be written
//   ok N V        it is here (or another version was), as acknowledged; durable N V: durably
//   del N 0       it is about to be deleted; gone N 0: acknowledged
//   is N V        version V was read after a start, 0: nothing was there
//   cutting 0 0   the power is about to be cut: answers from here on prove nothing, since a file
//                 system that is shut down under a sync may still say that it went well
//   cut 0 0       the power was cut
//   last 0 V      no version after V has been begun
//
// Steps on one block follow one another; a last line that was cut short counts as not written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "fmt/ranges.h"

namespace terrace::testing {

// Thread-compatible, and compatible among threads that work on different blocks.
class ColdOracle {
 public:
  static constexpr uint64_t kAbsent = 0;  // versions begin at 1
  enum class After { kKill, kCut };

  explicit ColdOracle(uint64_t blocks) : states_(blocks) {}

  void Read(const std::string& journal) {
    std::ifstream file(journal);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      const size_t first = line.find(' '), second = line.rfind(' ');
      const uint64_t version = std::stoull(line.substr(second + 1));
      Apply(line.substr(0, first), std::stoull(line.substr(first + 1)), version);
      latest_ = std::max(latest_, version);
    }
  }

  void Apply(const std::string& what, uint64_t number, uint64_t version) {
    if (what == "cut") return Cut();
    if (what == "cutting") dark_ = true;
    if (what == "is") dark_ = false;
    if (dark_ && (what == "ok" || what == "durable" || what == "gone")) return;
    State& state = states_.at(number);
    if (what == "put") {
      // Nothing is written over a block that is here.
      if (Has(state.now, kAbsent)) Add(&state.now, version);
    } else if (what == "ok" || what == "durable") {
      std::erase(state.now, kAbsent);
    } else if (what == "del") {
      Add(&state.now, kAbsent);
    } else if (what == "gone") {
      state.now = {kAbsent};
    }
    if (what == "is") state.now = state.after_cut = {version};
    // All that was done to the block before is in the same commit or an earlier one.
    if (what == "durable") state.after_cut = state.now;
    for (const uint64_t possible : state.now) Add(&state.after_cut, possible);
  }

  bool Allows(uint64_t number, uint64_t version, After after) const {
    const State& state = states_.at(number);
    return Has(after == After::kKill ? state.now : state.after_cut, version);
  }
  std::string Expected(uint64_t number, After after) const {
    const State& state = states_.at(number);
    return fmt::format("{}",
                       fmt::join(after == After::kKill ? state.now : state.after_cut, " or "));
  }
  uint64_t latest() const { return latest_; }  // version that Read has met
  uint64_t blocks() const { return states_.size(); }

 private:
  void Cut() {
    dark_ = false;
    for (State& state : states_) state.now = state.after_cut;
  }

  using Versions = std::vector<uint64_t>;
  struct State {
    Versions now{kAbsent}, after_cut{kAbsent};
  };
  static bool Has(const Versions& versions, uint64_t version) {
    return std::ranges::find(versions, version) != versions.end();
  }
  static void Add(Versions* versions, uint64_t version) {
    if (!Has(*versions, version)) versions->push_back(version);
  }

  std::vector<State> states_;
  uint64_t latest_ = 0;
  bool dark_ = false;
};

}  // namespace terrace::testing
