// The far process of the wire benchmarks.
#include <cstdio>
#include <string_view>

#include "tests/bench/transport_loop.h"
#include "tests/bench/ucx_loop.h"

int main(int argc, char** argv) {
  const std::string_view role = argc == 2 ? argv[1] : "";
  if (role == "loop") return terrace::ServeUcxLoop();
  if (role == "transport") return terrace::ServeTransportLoop({});
  if (role == "transport-checksum") return terrace::ServeTransportLoop({.checksum = true});
  std::fprintf(stderr, "usage: bench_far loop|transport|transport-checksum\n");
  return 2;
}
