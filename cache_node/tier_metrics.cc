#include "cache_node/tier_metrics.h"

#include <string>
#include <utility>

namespace terrace {

void CollectTier(const TierStats& stats, std::vector<MetricSample>* out) {
  const MetricLabels tier = {{"tier", ToString(stats.tier)}};
  const auto add = [&](bool counter, const char* name, const char* help, auto value) {
    out->push_back({name, help, counter, tier, static_cast<double>(value)});
  };
  // Samples of one name stay together: they are one family.
  const auto add_by = [&](const char* name, const char* help, const char* label,
                          std::initializer_list<std::pair<const char*, uint64_t>> values) {
    for (const auto& [key, value] : values) {
      MetricLabels labels = tier;
      labels[label] = key;
      out->push_back({name, help, true, std::move(labels), static_cast<double>(value)});
    }
  };
  add(false, "terrace_tier_capacity_bytes", "Memory of the tier", stats.capacity_bytes);
  add(false, "terrace_tier_value_bytes", "Lengths of the resident blocks", stats.value_bytes);
  add(false, "terrace_tier_occupied_bytes", "Places in use", stats.occupied_bytes);
  add(false, "terrace_tier_reserved_bytes", "Places being written", stats.reserved_bytes);
  add(false, "terrace_tier_blocks", "Resident blocks", stats.blocks);
  add(false, "terrace_tier_referenced_blocks", "Blocks leased or being sent",
      stats.referenced_blocks);
  add(false, "terrace_tier_index_bytes", "Index and order of eviction", stats.index_bytes);
  add(true, "terrace_tier_hits_total", "Blocks asked for and there", stats.hits);
  add(true, "terrace_tier_misses_total", "Blocks asked for and not there", stats.misses);
  add(true, "terrace_tier_turnovers_total", "The policy's clock", stats.turnovers);
  add_by("terrace_tier_puts_total", "Blocks to be written, by outcome", "outcome",
         {{"published", stats.puts},
          {"existing", stats.puts_existing},
          {"no_space", stats.puts_no_space},
          {"never_fit", stats.puts_never_fit},
          {"aborted", stats.puts_aborted}});
  add_by("terrace_tier_evictions_total", "Blocks dropped, by reason", "reason",
         {{"space", stats.evicted_for_space},
          {"watermark", stats.evicted_watermark},
          {"region_move", stats.evicted_region_move},
          {"forgotten", stats.forgotten}});
}

}  // namespace terrace
