# Flags of every build, and the helpers that apply them.

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
    set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG" CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Architectures whose machine code the kernels' library and with it the command carry.
set(GCMOE_CUBINS "")
if(GCMOE_CUDA)
    set(GCMOE_CUBINS sm_90a)
endif()

# No contraction: a * b + c must round twice on every compiler, or bit-true comparisons fail.
set(GCMOE_CODE_FLAGS -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    # One baseline for every machine.
    list(APPEND GCMOE_CODE_FLAGS -march=x86-64-v2)
endif()
set(GCMOE_WARNING_FLAGS -Wall -Wextra -Wshadow -Wpedantic)
if(GCMOE_WERROR)
    list(APPEND GCMOE_WARNING_FLAGS -Werror)
endif()

# base_dir and hash_dir=false let checkouts in different folders share one cache.
find_program(GCMOE_CCACHE ccache)
if(GCMOE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true ${GCMOE_CCACHE})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# Files under the source root that match, looked up again whenever the build runs.
function(gcmoe_glob result pattern)
    file(GLOB_RECURSE files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${pattern}")
    list(SORT files)
    set(${result} "${files}" PARENT_SCOPE)
endfunction()

function(gcmoe_instrument target)
    if(GCMOE_SANITIZE)
        target_compile_options(${target} PRIVATE
            -fsanitize=${GCMOE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    endif()
endfunction()

function(gcmoe_add_static_library target)
    set(sources ${ARGN})
    if(NOT sources)
        # A folder may still be empty; an archive needs one object.
        set(sources "${PROJECT_BINARY_DIR}/generated/empty.cpp")
        file(CONFIGURE OUTPUT "${sources}" CONTENT "")
    endif()
    add_library(${target} STATIC ${sources})
    target_compile_options(${target} PRIVATE ${GCMOE_CODE_FLAGS} ${GCMOE_WARNING_FLAGS})
endfunction()

# An executable over the library and the reference, with the private include folders.
function(gcmoe_add_executable target)
    add_executable(${target} ${ARGN})
    target_compile_options(${target} PRIVATE ${GCMOE_CODE_FLAGS} ${GCMOE_WARNING_FLAGS})
    target_include_directories(${target} PRIVATE
        ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
    gcmoe_instrument(${target})
    if(GCMOE_SANITIZE)
        # The linker keeps the first copy of an inline function. The reference carries plain copies
        # (of std::shared_ptr's counters, for one): the library's objects must come first, whole,
        # or instrumented code would call uninstrumented atomics and TSan would cry wolf.
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:gcmoe>)
        target_link_options(${target} PRIVATE -fsanitize=${GCMOE_SANITIZE})
    endif()
    target_link_libraries(${target} PRIVATE
        gcmoe_reference gcmoe gcmoe_version fmt::fmt Threads::Threads)
endfunction()
