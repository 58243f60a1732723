# One GoogleTest binary for every folder below tests/ that holds a *_test.cpp. All .cpp files of the
# folder itself go in, so helpers need no listing. tests/<folder>/LABELS holds its ctest labels on
# one line, separated by semicolons; without it the label is cpu.
find_package(GTest REQUIRED)
include(GoogleTest)

# tests/support: what several folders' tests share; linked into each binary.
file(GLOB support_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/support/*.cpp")
if(support_sources)
    add_library(gcmoe_test_support OBJECT ${support_sources})
    target_compile_options(gcmoe_test_support PRIVATE ${GCMOE_CODE_FLAGS} ${GCMOE_WARNING_FLAGS})
    target_include_directories(gcmoe_test_support PRIVATE
        ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
    gcmoe_instrument(gcmoe_test_support)
    target_link_libraries(gcmoe_test_support PRIVATE gcmoe ${GCMOE_FMT} GTest::gtest)
endif()

function(gcmoe_add_test_folder folder)
    set(source_dir "${PROJECT_SOURCE_DIR}/tests/${folder}")
    set(labels cpu)
    if(EXISTS "${source_dir}/LABELS")
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source_dir}/LABELS")
        file(READ "${source_dir}/LABELS" labels)
        string(STRIP "${labels}" labels)
    endif()
    if("cuda" IN_LIST labels)
        return()  # gcmoe_cuda.cmake builds it
    endif()
    if(GCMOE_TEST_LABEL AND NOT GCMOE_TEST_LABEL IN_LIST labels)
        return()
    endif()
    string(REPLACE "/" "_" name "test_${folder}")
    file(GLOB sources CONFIGURE_DEPENDS "${source_dir}/*.cpp")
    gcmoe_add_executable(${name} ${sources})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    if(TARGET gcmoe_test_support)
        target_sources(${name} PRIVATE $<TARGET_OBJECTS:gcmoe_test_support>)
    endif()
    target_link_libraries(${name} PRIVATE
        gcmoe_suites nlohmann_json::nlohmann_json GTest::gtest_main ${GCMOE_HIGHWAY})
    set_target_properties(${name} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
    # PRE_TEST: a binary that cannot start is a failed test run, not a failed build.
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
        TEST_LIST ${name}_list)
    set(serial FALSE)
    if("alone" IN_LIST labels)
        set(serial TRUE)
    endif()
    # gtest_discover_tests flattens lists in PROPERTIES, so ctest sets them from a file of its own.
    set(properties_file "${PROJECT_BINARY_DIR}/tests/${name}_properties.cmake")
    file(CONFIGURE OUTPUT "${properties_file}" @ONLY CONTENT
"foreach(test IN LISTS @name@_list)
    set_tests_properties(\"\${test}\" PROPERTIES TIMEOUT 600 LABELS \"@labels@\"
        RUN_SERIAL @serial@ ENVIRONMENT
        \"GCMOE_COMMAND=@PROJECT_BINARY_DIR@/bin/gcmoe;GCMOE_SOURCE_DIR=@PROJECT_SOURCE_DIR@\")
endforeach()
")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${properties_file}")
endfunction()

file(GLOB_RECURSE test_files RELATIVE "${PROJECT_SOURCE_DIR}/tests" CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/tests/*_test.cpp")
set(test_folders "")
foreach(test_file IN LISTS test_files)
    get_filename_component(folder "${test_file}" DIRECTORY)
    list(APPEND test_folders "${folder}")
endforeach()
list(REMOVE_DUPLICATES test_folders)
list(SORT test_folders)
foreach(folder IN LISTS test_folders)
    if(folder STREQUAL "bench_device" AND GCMOE_CUDA)
        continue()  # its stand-ins have the names of what a build with kernels has
    endif()
    gcmoe_add_test_folder("${folder}")
endforeach()
foreach(test_of_tools test_bench_device test_tune)
    if(TARGET ${test_of_tools})
        target_link_libraries(${test_of_tools} PRIVATE gcmoe_tools)
    endif()
endforeach()

# A folder may register tests of its own kind (scripts) in a CMakeLists.txt.
file(GLOB test_scripts CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/*/CMakeLists.txt")
foreach(test_script IN LISTS test_scripts)
    get_filename_component(folder "${test_script}" DIRECTORY)
    get_filename_component(name "${folder}" NAME)
    add_subdirectory("${folder}" "${PROJECT_BINARY_DIR}/tests/${name}")
endforeach()
