// Certificates for tests: a CA, and a server's and a client's signed by it.
#pragma once

#include <string>

namespace terrace {

struct CertificateFiles {
  std::string ca, server_certificate, server_key, client_certificate, client_key;
};

// Made anew in `folder` by the openssl program; aborts when it fails. The server's names are
// localhost, 127.0.0.1 and ::1.
CertificateFiles MakeCertificates(const std::string& folder);

}  // namespace terrace
