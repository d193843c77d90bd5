#include "cache_node/tier_metrics.h"

#include <functional>
#include <string>
#include <utility>

namespace terrace {
namespace {

// Samples of one name stay together: they are one family.
class Samples {
 public:
  Samples(std::vector<MetricLabels> labels, std::vector<MetricSample>* out)
      : labels_(std::move(labels)), out_(*out) {}

  void Add(bool counter, const char* name, const char* help,
           const std::function<double(size_t)>& value) {
    for (size_t i = 0; i < labels_.size(); ++i) {
      out_.push_back({name, help, counter, labels_[i], value(i)});
    }
  }
  void AddBy(bool counter, const char* name, const char* help, const char* label,
             const std::function<NamedCounts(size_t)>& values) {
    for (size_t i = 0; i < labels_.size(); ++i) {
      for (const auto& [key, value] : values(i)) {
        MetricLabels labels = labels_[i];
        labels[label] = key;
        out_.push_back({name, help, counter, std::move(labels), static_cast<double>(value)});
      }
    }
  }

 private:
  const std::vector<MetricLabels> labels_;
  std::vector<MetricSample>& out_;
};

double IsHealth(const ColdFolderStats& folder, FolderHealth health) {
  return folder.health == health ? 1 : 0;
}

}  // namespace

NamedCounts EvictionsOf(const TierStats& tier) {
  if (tier.tier == Tier::kSsd) {
    return {{"space", tier.evicted},
            {"expired", tier.expired},
            {"corrupt", tier.corrupt},
            {"forgotten", tier.forgotten}};
  }
  return {{"space", tier.evicted_for_space},
          {"copied", tier.evicted_copied},
          {"watermark", tier.evicted_watermark},
          {"region_move", tier.evicted_region_move},
          {"corrupt", tier.corrupt},
          {"forgotten", tier.forgotten}};
}

NamedCounts DemotionsOf(const TierStats& host) {
  return {{"written", host.demoted},
          {"there_already", host.demoted_by_name},
          {"not_admitted", host.not_admitted},
          {"no_room", host.demotions_no_room},
          {"failed", host.demotions_failed}};
}

NamedCounts FillsOf(const TierStats& host) {
  return {{"filled", host.fills}, {"failed", host.fills_failed}, {"refused", host.fills_refused}};
}

std::function<void(IoKind, absl::Duration)> RequestTimes(const std::string& folder,
                                                         MetricRegistry* registry) {
  const std::vector<double> bounds = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01,
                                      0.02,   0.05,   0.1,    0.2,   0.5,   1,     5};
  const auto add = [&](const char* kind) {
    return registry->AddHistogram("terrace_ssd_request_seconds",
                                  "Time of a block's read or write, commit included", bounds,
                                  {{"folder", folder}, {"kind", kind}});
  };
  return [read = add("read"), write = add("write")](IoKind kind, absl::Duration took) {
    (kind == IoKind::kRead ? read : write)->Observe(absl::ToDoubleSeconds(took));
  };
}

void CollectTiers(const std::vector<TierStats>& tiers, std::vector<MetricSample>* out) {
  std::vector<MetricLabels> labels;
  for (const TierStats& tier : tiers) labels.push_back({{"tier", ToString(tier.tier)}});
  Samples samples(labels, out);
  const auto add = [&](bool counter, const char* name, const char* help, auto field) {
    samples.Add(counter, name, help,
                [&](size_t i) { return static_cast<double>(tiers[i].*field); });
  };
  add(false, "terrace_tier_capacity_bytes", "Size of the tier", &TierStats::capacity_bytes);
  add(false, "terrace_tier_value_bytes", "Lengths of the resident blocks", &TierStats::value_bytes);
  add(false, "terrace_tier_occupied_bytes", "Places in use", &TierStats::occupied_bytes);
  add(false, "terrace_tier_reserved_bytes", "Places being written", &TierStats::reserved_bytes);
  add(false, "terrace_tier_blocks", "Resident blocks", &TierStats::blocks);
  add(false, "terrace_tier_referenced_blocks", "Blocks leased or being sent",
      &TierStats::referenced_blocks);
  add(false, "terrace_tier_index_bytes", "Index and order of eviction", &TierStats::index_bytes);
  add(true, "terrace_tier_hits_total", "Blocks asked for and found here first", &TierStats::hits);
  add(true, "terrace_tier_misses_total", "Blocks asked for and not here, nor in a faster tier",
      &TierStats::misses);
  add(true, "terrace_tier_turnovers_total", "The policy's clock", &TierStats::turnovers);
  samples.AddBy(true, "terrace_tier_puts_total", "Blocks to be written, by outcome", "outcome",
                [&](size_t i) {
                  return NamedCounts{{"published", tiers[i].puts},
                                     {"existing", tiers[i].puts_existing},
                                     {"no_space", tiers[i].puts_no_space},
                                     {"never_fit", tiers[i].puts_never_fit},
                                     {"aborted", tiers[i].puts_aborted}};
                });
  samples.AddBy(true, "terrace_tier_evictions_total", "Blocks dropped, by reason", "reason",
                [&](size_t i) { return EvictionsOf(tiers[i]); });
  if (tiers.size() < 2) return;
  const TierStats& host = tiers.front();
  Samples moves({{}}, out);
  moves.AddBy(true, "terrace_demotions_total",
              "Blocks that left host memory, by what became of them in the ssd tier", "outcome",
              [&](size_t) { return DemotionsOf(host); });
  moves.AddBy(true, "terrace_fills_total", "Blocks asked of the ssd tier, by outcome", "outcome",
              [&](size_t) { return FillsOf(host); });
}

void CollectFolders(const std::vector<ColdFolderStats>& folders, uint64_t endurance,
                    absl::Duration up, std::vector<MetricSample>* out) {
  std::vector<MetricLabels> labels;
  for (const ColdFolderStats& folder : folders) labels.push_back({{"folder", folder.path}});
  Samples samples(labels, out);
  const auto add = [&](bool counter, const char* name, const char* help, auto field) {
    samples.Add(counter, name, help,
                [&](size_t i) { return static_cast<double>(folders[i].*field); });
  };
  using Stats = ColdFolderStats;
  add(false, "terrace_ssd_budget_bytes", "What the folder may take", &Stats::budget_bytes);
  add(false, "terrace_ssd_extent_bytes", "Extents made so far", &Stats::capacity_bytes);
  add(false, "terrace_ssd_catalogue_bytes", "Catalogue on disk", &Stats::catalogue_bytes);
  add(false, "terrace_ssd_requests_in_flight", "Requests to the device", &Stats::in_flight);
  add(false, "terrace_ssd_requests_overdue", "Requests that hang", &Stats::overdue);
  add(false, "terrace_ssd_load_progress", "Entries loaded after a start, 0 to 1",
      &Stats::load_progress);
  add(true, "terrace_ssd_user_bytes_written_total", "Lengths of the blocks written",
      &Stats::user_bytes_written);
  add(true, "terrace_ssd_device_bytes_written_total", "Bytes written to extents",
      &Stats::device_bytes_written);
  add(true, "terrace_ssd_gets_failed_total", "Reads that gave no block", &Stats::gets_failed);
  add(true, "terrace_ssd_syncs_total", "Group commits", &Stats::syncs);
  add(true, "terrace_ssd_failed_syncs_total", "Group commits that failed", &Stats::failed_syncs);
  samples.Add(false, "terrace_ssd_quarantined_bytes", "Slots that wait for a commit",
              [&](size_t i) { return static_cast<double>(folders[i].extents.quarantined_bytes); });
  samples.Add(false, "terrace_ssd_set_aside_bytes", "Slots that failed and are not used",
              [&](size_t i) { return static_cast<double>(folders[i].extents.set_aside_bytes); });
  samples.Add(false, "terrace_ssd_healthy", "1: reads and writes go on",
              [&](size_t i) { return IsHealth(folders[i], FolderHealth::kHealthy); });
  if (endurance > 0) {
    samples.Add(false, "terrace_ssd_projected_life_seconds",
                "How long a new device would last at the pace since the start", [&](size_t i) {
                  const auto written = static_cast<double>(folders[i].device_bytes_written);
                  return static_cast<double>(endurance) / written * absl::ToDoubleSeconds(up);
                });
  }
  for (size_t i = 0; i < folders.size(); ++i) {
    for (const ArenaStats::Class& size : folders[i].extents.sizes) {
      MetricLabels slot = labels[i];
      slot["slot_bytes"] = std::to_string(size.size.place_bytes);
      out->push_back(
          {"terrace_ssd_slots", "Slots by size", false, slot, static_cast<double>(size.places)});
    }
  }
}

}  // namespace terrace
