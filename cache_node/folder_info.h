// A folder of the ssd tier as operators see it: its health in words, and where it lies.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "storage/cold_request.h"

namespace terrace {

// "ready", "loading, 40 %", "rebuilding the catalogue, 3 %", "load failed, …: why",
// "the device hangs: …", "writes fail: why"; the worst of what is true.
std::string HealthInWords(const ColdFolderStats& stats);

// `device` as of FileSystemOf.
control::v1::FolderInfo ToFolderInfo(const ColdFolderStats& stats, const std::string& device);

// "ext4 on /dev/nvme0n1" of what is at `path`; empty where the kernel does not tell. Asks the file
// system: not while its device may hang.
std::string FileSystemOf(const std::string& path);

}  // namespace terrace
