#include "tests/support/listening.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

namespace terrace {
namespace {

// The inodes of the process's sockets: its descriptors link to "socket:[INODE]".
std::set<std::string> SocketInodes(pid_t pid) {
  constexpr std::string_view kPrefix = "socket:[";
  std::set<std::string> inodes;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;  // closed meanwhile
    const std::string link = std::filesystem::read_symlink(entry.path(), gone).string();
    if (gone || !link.starts_with(kPrefix)) continue;
    inodes.insert(link.substr(kPrefix.size(), link.size() - kPrefix.size() - 1));
  }
  return inodes;
}

}  // namespace

std::vector<std::string> ListeningSockets(pid_t pid) {
  const std::set<std::string> mine = SocketInodes(pid);
  std::vector<std::string> listening;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      constexpr std::string_view kListen = "0A";
      if (state == kListen && mine.contains(inode)) listening.push_back(local);
    }
  }
  return listening;
}

std::vector<std::string> ListeningBeyondLoopback(pid_t pid) {
  constexpr std::string_view kLoopback6 = "00000000000000000000000001000000:";
  constexpr std::string_view kMapped = "0000000000000000FFFF0000";  // of an IPv4 address
  std::vector<std::string> beyond;
  for (const std::string& local : ListeningSockets(pid)) {
    std::string_view address = local;
    if (address.starts_with(kMapped)) address.remove_prefix(kMapped.size());
    const bool v4 = address.find(':') == 8;
    // Little-endian: the first byte of the address comes last.
    const bool loopback = v4 ? address.substr(6, 2) == "7F" : address.starts_with(kLoopback6);
    if (!loopback) beyond.push_back(local);
  }
  return beyond;
}

}  // namespace terrace
