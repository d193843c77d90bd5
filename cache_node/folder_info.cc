#include "cache_node/folder_info.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "fmt/format.h"

namespace terrace {

std::string HealthInWords(const ColdFolderStats& stats) {
  if (!stats.load_error.empty()) {
    return fmt::format("load failed, no writes until the next start: {}", stats.load_error);
  }
  if (stats.overdue > 0) {
    return fmt::format("the device hangs: {} requests do not come back", stats.overdue);
  }
  if (!stats.writes_error.empty()) return fmt::format("writes fail: {}", stats.writes_error);
  if (!stats.loaded) {
    return fmt::format("{}, {:.0f} %", stats.rebuilding ? "rebuilding the catalogue" : "loading",
                       100 * stats.load_progress);
  }
  return "ready";
}

control::v1::FolderInfo ToFolderInfo(const ColdFolderStats& stats, const std::string& device) {
  control::v1::FolderInfo out;
  out.set_path(stats.path);
  out.set_health(HealthInWords(stats));
  out.set_healthy(stats.loaded && stats.health == FolderHealth::kHealthy);
  out.set_device(device);
  out.set_blocks(stats.blocks);
  out.set_value_bytes(stats.value_bytes);
  out.set_budget_bytes(stats.budget_bytes);
  out.set_disk_bytes(stats.capacity_bytes + stats.catalogue_bytes);
  out.set_occupied_bytes(stats.occupied_bytes + stats.catalogue_bytes);
  out.set_catalogue_bytes(stats.catalogue_bytes);
  out.set_quarantined_bytes(stats.extents.quarantined_bytes);
  out.set_set_aside_bytes(stats.extents.set_aside_bytes);
  out.set_commits(stats.syncs);
  out.set_failed_commits(stats.failed_syncs);
  return out;
}

std::string FileSystemOf(const std::string& path) {
  struct stat there {};
  if (stat(path.c_str(), &there) != 0) return "";
  const std::string device = fmt::format("{}:{}", major(there.st_dev), minor(there.st_dev));
  // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAGS]… - TYPE SOURCE …
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id, parent, number, word, type, source;
    if (!(words >> id >> parent >> number) || number != device) continue;
    while (words >> word && word != "-") continue;
    if (words >> type >> source) return fmt::format("{} on {}", type, source);
  }
  return "";
}

}  // namespace terrace
