// Marks a function that both the host compiler and nvcc's device pass may compile.
#pragma once

#if defined(__CUDACC__)
#define GCMOE_HD __host__ __device__
#else
#define GCMOE_HD
#endif

// The same for a function that is called after faults and in waits of 0.1 ms and more. Kept out of
// its callers, whose code it would only stretch: a GPU fetches code that runs once a launch from
// memory, 0.13 us per 128 bytes. GCMOE_INLINE_COLD (cmake/gcmoe_cuda.cmake): for kernels that have
// no registers left for calls (ptxas C7600).
#if !defined(__CUDACC__)
#define GCMOE_COLD_HD [[gnu::noinline, gnu::cold]]
#elif defined(GCMOE_INLINE_COLD)
#define GCMOE_COLD_HD __host__ __device__ __forceinline__
#else
#define GCMOE_COLD_HD __host__ __device__ __noinline__
#endif

// Before a loop that runs once or twice a launch: its body once, not the compiler's four copies.
#if defined(__CUDA_ARCH__)
#define GCMOE_NOT_UNROLLED _Pragma("unroll 1")
#else
#define GCMOE_NOT_UNROLLED
#endif
