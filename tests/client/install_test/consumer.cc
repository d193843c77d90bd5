// What a user of the installed library would write first.
#include <iostream>

#include "client/client.h"

int main() {
  terrace::Namespace ns;
  ns.block_tokens = 2;
  const uint32_t tokens[] = {1, 2, 3, 4};
  auto chain = terrace::Chain::FromTokens(ns, tokens);
  if (!chain.ok() || chain->blocks() != 2) return 1;
  std::cout << terrace::ToString(chain->key(1)) << "\n";

  auto client = terrace::Client::Connect({.address = "127.0.0.1:1"});
  std::cout << client.status() << "\n";  // nobody listens there
  return absl::IsUnavailable(client.status()) ? 0 : 1;
}
