#include "storage/tier_policy.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"

namespace terrace {

absl::Status Validate(const Watermarks& marks) {
  if (marks.low > 0 && marks.low <= marks.high && marks.high <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("low_mark {} and high_mark {} must satisfy 0 < low_mark <= high_mark <= 1",
                  marks.low, marks.high));
}

Watermarks HostMarksOverSsd(uint64_t capacity_bytes) {
  constexpr double kRoomBytes = 64 << 20;
  const double room =
      std::clamp(kRoomBytes / static_cast<double>(std::max<uint64_t>(capacity_bytes, 1)), .05, .25);
  return {.high = 1 - room, .low = 1 - 1.4 * room};
}

uint64_t BytesToFree(const Watermarks& marks, uint64_t occupied_bytes, uint64_t capacity_bytes) {
  const double capacity = static_cast<double>(capacity_bytes);
  if (static_cast<double>(occupied_bytes) <= marks.high * capacity) return 0;
  return occupied_bytes - static_cast<uint64_t>(marks.low * capacity);
}

double CapacityInBlocks(uint64_t capacity_bytes, uint64_t blocks, uint64_t place_bytes) {
  if (place_bytes == 0) return 1;
  return static_cast<double>(capacity_bytes) * static_cast<double>(blocks) /
         static_cast<double>(place_bytes);
}

bool AdmitsToSsd(TrafficClass traffic_class, bool seen_again, bool has_room) {
  if (traffic_class == TrafficClass::kReasoning) return false;
  return traffic_class != TrafficClass::kSingleShot || seen_again || has_room;
}

double Worth(double score, uint64_t bytes) { return score + std::log2(static_cast<double>(bytes)); }

double Offer::worth_per_byte() const { return worth - std::log2(static_cast<double>(bytes)); }

std::optional<size_t> ChooseWindow(const std::optional<Offer>& own,
                                   std::span<const Offer> windows) {
  std::optional<size_t> chosen;
  std::optional<double> least;
  if (own) least = own->worth_per_byte();
  for (size_t i = 0; i < windows.size(); ++i) {
    const double worth = windows[i].worth_per_byte();
    if (least && worth >= *least) continue;
    chosen = i;
    least = worth;
  }
  return chosen;
}

}  // namespace terrace
