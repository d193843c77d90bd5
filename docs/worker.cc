// A worker's part of the work, whole: what is stored of a prompt is loaded, the rest is computed
// and stored. Build it against the installed library (docs/client.md), run it twice.
#include <cstdint>
#include <iostream>
#include <vector>

#include "client/client.h"

int main(int argc, char** argv) {
  auto connected = terrace::Client::Connect({.address = argc > 1 ? argv[1] : "127.0.0.1:7470"});
  if (!connected.ok()) {
    std::cerr << connected.status().message() << "\n";
    return 1;
  }
  terrace::Client& client = **connected;

  // Everything that must agree before bytes may be shared; segments divide block_bytes.
  terrace::NamespaceDefinition definition;
  definition.name = "example";
  definition.layout.model = "llama-3-8b";
  definition.layout.block_tokens = 16;
  definition.layout.layers = 32;
  definition.layout.kv_heads = 8;
  definition.layout.head_dim = 128;
  definition.layout.block_bytes = 2 << 20;
  definition.layout.segments = 32;
  auto ns = client.OpenNamespace(definition);
  if (!ns.ok()) {
    std::cerr << ns.status().message() << "\n";
    return 1;
  }

  const std::vector<uint32_t> prompt(8 * definition.layout.block_tokens, 42);
  auto chain = terrace::Chain::FromTokens(*ns, prompt);  // eight blocks
  std::vector<std::vector<std::byte>> pages(chain->blocks());
  for (auto& page : pages) page.resize(definition.layout.block_bytes);

  auto match = client.Match(*chain);
  if (!match.ok()) return 1;  // only for a chain that is too long; no node is no match
  std::vector<terrace::GetRequest> gets(match->blocks);
  for (size_t i = 0; i < gets.size(); ++i) {
    gets[i].key = chain->key(i);
    gets[i].destination = {terrace::MutableByteSpan(pages[i])};
  }
  terrace::OperationOptions options;
  options.timeout = absl::Seconds(5);
  terrace::Operation load = client.Get(*ns, std::move(gets), options);
  load.Wait();
  size_t loaded = 0;  // up to the first block that did not come
  while (loaded < match->blocks && load.results()[loaded].outcome == terrace::Outcome::kOk)
    ++loaded;

  std::vector<terrace::PutRequest> puts;
  for (size_t i = loaded; i < chain->blocks(); ++i) {
    pages[i].assign(pages[i].size(), std::byte{42});  // "computed"
    puts.push_back({.key = chain->key(i), .source = {terrace::ByteSpan(pages[i])}, .metadata = {}});
  }
  const size_t computed = puts.size();
  terrace::Operation store = client.Put(*ns, std::move(puts), options);
  store.Wait();
  std::cout << loaded << " blocks loaded, " << computed << " computed, " << store.succeeded()
            << " stored\n";
  return store.succeeded() == computed ? 0 : 1;
}
