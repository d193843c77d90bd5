# Debian 12 packages only; nothing is downloaded at configure time. Protobuf is found in module
# mode before gRPC, whose config package would otherwise look for a Protobuf config package.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(RocksDB CONFIG REQUIRED)

# terrace_pkg(name pkg-config-module): an imported target for a library without a CMake package.
function(terrace_imported name include library)
  if(NOT TARGET terrace::${name})
    add_library(terrace::${name} INTERFACE IMPORTED GLOBAL)
    if(library)
      set_property(TARGET terrace::${name} PROPERTY INTERFACE_LINK_LIBRARIES ${library})
    endif()
    set_property(TARGET terrace::${name} PROPERTY INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${include})
  endif()
endfunction()

find_path(ISAL_INCLUDE isa-l/crc.h REQUIRED)
find_library(ISAL_LIBRARY isal REQUIRED)
terrace_imported(isal ${ISAL_INCLUDE} ${ISAL_LIBRARY})

find_path(UCX_INCLUDE ucp/api/ucp.h REQUIRED)
find_library(UCP_LIBRARY ucp REQUIRED)
find_library(UCS_LIBRARY ucs REQUIRED)
terrace_imported(ucx ${UCX_INCLUDE} "${UCP_LIBRARY};${UCS_LIBRARY}")

find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
terrace_imported(cli11 ${CLI11_INCLUDE} "")

# By pkg-config, for its definitions: without them the header's classes have other sizes than the
# library's.
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET GLOBAL cpp-httplib)
find_path(HTTPLIB_INCLUDE httplib.h REQUIRED)
terrace_imported(httplib ${HTTPLIB_INCLUDE} PkgConfig::HTTPLIB)

find_path(JSON_INCLUDE nlohmann/json.hpp REQUIRED)
terrace_imported(json ${JSON_INCLUDE} "")

find_path(URING_INCLUDE liburing.h REQUIRED)
find_library(URING_LIBRARY uring REQUIRED)
terrace_imported(uring ${URING_INCLUDE} ${URING_LIBRARY})

find_path(SYSTEMD_INCLUDE systemd/sd-daemon.h REQUIRED)
find_library(SYSTEMD_LIBRARY systemd REQUIRED)
terrace_imported(systemd ${SYSTEMD_INCLUDE} ${SYSTEMD_LIBRARY})
