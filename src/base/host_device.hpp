// Marks a function that both the host compiler and nvcc's device pass may compile.
#pragma once

#if defined(__CUDACC__)
#define GCMOE_HD __host__ __device__
#else
#define GCMOE_HD
#endif

// The same for a function that a launch without faults never calls. Kept out of its callers, whose
// code it would only stretch: a GPU fetches code that runs once a launch from memory, 0.13 us per
// 128 bytes. GCMOE_INLINE_COLD: for kernels that have no registers left for calls (ptxas C7600).
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
