# The house rules, checked at configure time: which folder may use which folder, and which
# third-party library lives where. A forbidden dependency stops the configure step.

# Folder -> folders it may depend on.
set(TERRACE_MAY_USE_proto "")
set(TERRACE_MAY_USE_kernels "")
set(TERRACE_MAY_USE_storage proto)
set(TERRACE_MAY_USE_cluster proto)
set(TERRACE_MAY_USE_cache_node proto kernels storage cluster)
set(TERRACE_MAY_USE_client proto kernels cluster)

# Folder -> third-party targets that may appear in its sources. abseil and fmt are vocabulary.
set(TERRACE_VOCABULARY absl::status absl::statusor absl::strings absl::time absl::span
    absl::flat_hash_map absl::flat_hash_set absl::btree absl::inlined_vector absl::hash
    absl::function_ref absl::core_headers absl::any_invocable fmt::fmt Threads::Threads)
set(TERRACE_THIRD_PARTY_proto protobuf::libprotobuf gRPC::grpc++ terrace::isal OpenSSL::Crypto
    prometheus-cpp::core spdlog::spdlog terrace::cli11)
set(TERRACE_THIRD_PARTY_kernels CUDA::cudart_static)
set(TERRACE_THIRD_PARTY_storage RocksDB::rocksdb-shared terrace::uring)
set(TERRACE_THIRD_PARTY_cluster terrace::ucx)
set(TERRACE_THIRD_PARTY_cache_node gRPC::grpc++ terrace::httplib terrace::systemd)
set(TERRACE_THIRD_PARTY_client gRPC::grpc++ terrace::json)

set(TERRACE_FOLDERS proto kernels storage cluster cache_node client)

function(_terrace_check_dependency folder dependency)
  if(dependency MATCHES "^terrace_([a-z_]+)$")
    set(other ${CMAKE_MATCH_1})
    get_target_property(home ${dependency} TERRACE_FOLDER)
    if(home STREQUAL folder OR home IN_LIST TERRACE_MAY_USE_${folder})
      return()
    endif()
    message(FATAL_ERROR "${folder}/ must not depend on ${dependency} (of ${home}/). "
      "Dependencies point one way: see cmake/terrace.cmake and docs/ARCHITECTURE.md.")
  endif()
  if(dependency IN_LIST TERRACE_VOCABULARY OR dependency IN_LIST TERRACE_THIRD_PARTY_${folder})
    return()
  endif()
  message(FATAL_ERROR "${folder}/ must not use ${dependency}: it is at home elsewhere "
    "(table in cmake/terrace.cmake).")
endfunction()

# terrace_library(NAME terrace_x FOLDER x SOURCES ... HEADERS ... DEPENDS ...)
# One static library, its headers checked to stand alone, and a whole-archive link test that
# fails when the library calls upward (a plain link of a static library lets that pass).
add_custom_target(terrace_libraries)
function(terrace_library)
  cmake_parse_arguments(ARG "" "NAME;FOLDER" "SOURCES;HEADERS;DEPENDS" ${ARGN})
  add_library(${ARG_NAME} STATIC ${ARG_SOURCES})
  string(REGEX REPLACE "^terrace_" "" short ${ARG_NAME})
  add_library(terrace::${short} ALIAS ${ARG_NAME})
  set_target_properties(${ARG_NAME} PROPERTIES
    TERRACE_FOLDER ${ARG_FOLDER} EXPORT_NAME ${short} POSITION_INDEPENDENT_CODE ON)
  foreach(dependency IN LISTS ARG_DEPENDS)
    _terrace_check_dependency(${ARG_FOLDER} ${dependency})
  endforeach()
  target_link_libraries(${ARG_NAME} PUBLIC ${ARG_DEPENDS})
  target_sources(${ARG_NAME} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
    FILES ${ARG_HEADERS})
  target_compile_options(${ARG_NAME} PRIVATE ${TERRACE_WARNINGS})
  add_dependencies(terrace_libraries ${ARG_NAME})
  set_property(TARGET ${ARG_NAME} PROPERTY VERIFY_INTERFACE_HEADER_SETS
    ${TERRACE_VERIFY_HEADERS})
  if(TERRACE_BUILD_TESTS)
    set(link_test ${ARG_NAME}_link_test)
    add_executable(${link_test} ${PROJECT_SOURCE_DIR}/tests/lint/link_test_main.cc)
    target_link_libraries(${link_test} PRIVATE
      -Wl,--whole-archive ${ARG_NAME} -Wl,--no-whole-archive)
    add_test(NAME lint.link.${short} COMMAND ${link_test})
  endif()
endfunction()

# terrace_program(NAME n FOLDER x SOURCES ... DEPENDS ...): an executable of a level-2 folder.
function(terrace_program)
  cmake_parse_arguments(ARG "" "NAME;FOLDER" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  foreach(dependency IN LISTS ARG_DEPENDS)
    _terrace_check_dependency(${ARG_FOLDER} ${dependency})
  endforeach()
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPENDS})
  target_compile_options(${ARG_NAME} PRIVATE ${TERRACE_WARNINGS})
  add_dependencies(terrace_libraries ${ARG_NAME})
  set_target_properties(${ARG_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# terrace_test(NAME area.name SOURCES ... DEPENDS ... [LABELS ...] [TIMEOUT s]): a GoogleTest
# program of which ctest runs each case in a process of its own, from the source folder and with
# the programs' folder in TERRACE_BIN_DIR. The labels asan and tsan (the default: both) say which
# sanitizers it also runs under; "integration" alone keeps it out of them.
function(terrace_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  string(REPLACE "." "_" target ${ARG_NAME}_test)
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_DEPENDS} test_main GTest::gmock)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE ${TERRACE_WARNINGS})
  set_target_properties(${target} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS asan tsan)
  endif()
  foreach(label IN ITEMS asan tsan)
    if(label IN_LIST ARG_LABELS)
      add_dependencies(${label}_tests ${target})
    endif()
  endforeach()
  # One word, since a list would not survive gtest_discover_tests; ctest -L asan matches within it.
  string(REPLACE ";" "," labels "${ARG_LABELS}")
  gtest_discover_tests(${target} TEST_PREFIX ${ARG_NAME}. DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${labels}
      ENVIRONMENT TERRACE_BIN_DIR=${PROJECT_BINARY_DIR}/bin)
endfunction()
