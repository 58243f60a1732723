# Three generated sources: gcmoe_version.hpp (library and command), gcmoe_suites.{hpp,cpp} (command
# and tests) and gcmoe_tuned.cpp (library). Only .cpp files may include the headers: a header alone
# must compile without a build folder.

set(generated_dir "${PROJECT_BINARY_DIR}/generated")

# The commit moves without any source changing, so the script runs in every build; it rewrites the
# header only when the text differs.
add_custom_target(gcmoe_version_header
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
            "-DCUBINS=${GCMOE_CUBINS}" -DOUTPUT=${generated_dir}/version/gcmoe_version.hpp
            -P ${PROJECT_SOURCE_DIR}/cmake/write_version.cmake
    BYPRODUCTS ${generated_dir}/version/gcmoe_version.hpp
    COMMENT "Reading the commit" VERBATIM)
add_library(gcmoe_version INTERFACE)
target_include_directories(gcmoe_version INTERFACE
    $<BUILD_INTERFACE:${generated_dir}/version>)
add_dependencies(gcmoe_version gcmoe_version_header)

file(GLOB suite_files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/suites/*.csv")
add_custom_command(
    OUTPUT ${generated_dir}/suites/gcmoe_suites.cpp
    COMMAND ${CMAKE_COMMAND} -DSUITES_DIR=${PROJECT_SOURCE_DIR}/tests/suites
            -DOUTPUT=${generated_dir}/suites/gcmoe_suites.cpp
            -P ${PROJECT_SOURCE_DIR}/cmake/embed_suites.cmake
    DEPENDS ${suite_files} ${PROJECT_SOURCE_DIR}/cmake/embed_suites.cmake
    COMMENT "Embedding tests/suites" VERBATIM)
file(CONFIGURE OUTPUT ${generated_dir}/suites/gcmoe_suites.hpp @ONLY CONTENT
"// Generated from tests/suites/*.csv: the suites inside the binary, so that it needs no files.
#pragma once

#include <string_view>

namespace gcmoe {

// The text of tests/suites/<name>.csv (\"routed\", \"shared\"); empty if there is no such suite.
std::string_view suite_csv(std::string_view name);

}  // namespace gcmoe
")
add_library(gcmoe_suites STATIC ${generated_dir}/suites/gcmoe_suites.cpp)
target_include_directories(gcmoe_suites PUBLIC ${generated_dir}/suites)

file(GLOB tuned_files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/plan/tuned/*.jsonl")
set(GCMOE_TUNED_SOURCE ${generated_dir}/tuned/gcmoe_tuned.cpp)
add_custom_command(
    OUTPUT ${GCMOE_TUNED_SOURCE}
    COMMAND ${CMAKE_COMMAND} -DTABLES_DIR=${PROJECT_SOURCE_DIR}/src/plan/tuned
            -DOUTPUT=${GCMOE_TUNED_SOURCE} -P ${PROJECT_SOURCE_DIR}/cmake/embed_tuned.cmake
    DEPENDS ${tuned_files} ${PROJECT_SOURCE_DIR}/cmake/embed_tuned.cmake
    COMMENT "Embedding src/plan/tuned" VERBATIM)
