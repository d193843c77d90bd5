// Where a process listens, as the kernel tells it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace terrace {

// "address:port" of each TCP socket on which `pid` accepts connections, over IPv4 and IPv6, in the
// form of /proc/net/tcp: hexadecimal, "0100007F" is 127.0.0.1.
std::vector<std::string> ListeningSockets(pid_t pid);

// Those of them that other machines could reach.
std::vector<std::string> ListeningBeyondLoopback(pid_t pid);

}  // namespace terrace
