#include "tests/cache_node/certificates.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "fmt/format.h"

namespace terrace {
namespace {

void OpenSsl(const std::string& arguments) {
  if (std::system(fmt::format("openssl {} 2>/dev/null", arguments).c_str()) == 0) return;
  fmt::print(stderr, "openssl {} failed\n", arguments);
  std::abort();
}

constexpr char kKey[] = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

}  // namespace

CertificateFiles MakeCertificates(const std::string& folder) {
  CertificateFiles files{folder + "ca.pem", folder + "server.pem", folder + "server.key",
                         folder + "client.pem", folder + "client.key"};
  const std::string ca_key = folder + "ca.key", request = folder + "request.csr";
  const std::string extensions = folder + "extensions.cnf";
  std::ofstream(extensions) << "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\n";
  OpenSsl(fmt::format("req -x509 {} -days 2 -subj /CN=test-ca -keyout {} -out {}", kKey, ca_key,
                      files.ca));
  const auto sign = [&](const char* name, const std::string& key, const std::string& out) {
    OpenSsl(fmt::format("req {} -subj /CN={} -keyout {} -out {}", kKey, name, key, request));
    OpenSsl(
        fmt::format("x509 -req -in {} -CA {} -CAkey {} -CAcreateserial -days 2 -extfile {} "
                    "-out {}",
                    request, files.ca, ca_key, extensions, out));
  };
  sign("localhost", files.server_key, files.server_certificate);
  sign("worker", files.client_key, files.client_certificate);
  return files;
}

}  // namespace terrace
