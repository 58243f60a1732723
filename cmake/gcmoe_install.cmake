# cmake --install, and find_package(gcmoe) -> gcmoe::gcmoe for a consumer.
include(CMakePackageConfigHelpers)

install(TARGETS gcmoe EXPORT gcmoe_targets ARCHIVE DESTINATION lib)
set(gcmoe_cuda_dependency "")
set(gcmoe_highway_dependency "")
if(GCMOE_HIGHWAY)
    set(gcmoe_highway_dependency "find_dependency(hwy)")
endif()
if(GCMOE_CUDA)
    install(TARGETS gcmoe_cuda EXPORT gcmoe_targets ARCHIVE DESTINATION lib)
    set(gcmoe_cuda_dependency "find_dependency(CUDAToolkit)")
endif()
install(DIRECTORY include/gcmoe DESTINATION include FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT gcmoe_targets NAMESPACE gcmoe:: DESTINATION lib/cmake/gcmoe)
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/gcmoe-config.cmake" @ONLY CONTENT
"include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(fmt)
${gcmoe_highway_dependency}
${gcmoe_cuda_dependency}
include(\"\${CMAKE_CURRENT_LIST_DIR}/gcmoe_targets.cmake\")
")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/gcmoe-config-version.cmake"
    COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/generated/gcmoe-config.cmake"
    "${PROJECT_BINARY_DIR}/generated/gcmoe-config-version.cmake"
    DESTINATION lib/cmake/gcmoe)
