# The installed library: one shared object that needs nothing but abseil to build against, found
# by find_package(terrace) and by pkg-config.
include(CMakePackageConfigHelpers)
set(TERRACE_PUBLIC_HEADERS client/block_view.h client/chain.h client/client.h proto/block.h
    proto/block_key.h proto/bytes.h)
set(TERRACE_PUBLIC_DEPENDS absl::status absl::statusor absl::time absl::inlined_vector)

file(WRITE ${PROJECT_BINARY_DIR}/generated/terrace_shared.cc
  "// All of the library comes from static ones.\n")
add_library(terrace_shared SHARED ${PROJECT_BINARY_DIR}/generated/terrace_shared.cc)
set_target_properties(terrace_shared PROPERTIES OUTPUT_NAME terrace EXPORT_NAME client
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_compile_features(terrace_shared PUBLIC cxx_std_20)
target_link_libraries(terrace_shared
  PUBLIC ${TERRACE_PUBLIC_DEPENDS}
  PRIVATE -Wl,--whole-archive terrace_client terrace_proto -Wl,--no-whole-archive)
target_sources(terrace_shared PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
  FILES ${TERRACE_PUBLIC_HEADERS})

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/terrace)
install(TARGETS terrace_shared EXPORT terrace COMPONENT client
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/terrace COMPONENT client)
install(EXPORT terrace NAMESPACE terrace:: FILE terraceTargets.cmake DESTINATION ${package}
  COMPONENT client)
configure_package_config_file(cmake/terraceConfig.cmake.in
  ${PROJECT_BINARY_DIR}/terraceConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/terraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH TERRACE_PREFIX_FROM_PC /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/terrace.pc.in ${PROJECT_BINARY_DIR}/terrace.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/terraceConfig.cmake
  ${PROJECT_BINARY_DIR}/terraceConfigVersion.cmake DESTINATION ${package} COMPONENT client)
install(FILES ${PROJECT_BINARY_DIR}/terrace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT client)

install(TARGETS terracectl terrace-load terraced COMPONENT programs)
