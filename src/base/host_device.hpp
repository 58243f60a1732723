// Marks a function that both the host compiler and nvcc's device pass may compile.
#pragma once

#if defined(__CUDACC__)
#define GCMOE_HD __host__ __device__
#else
#define GCMOE_HD
#endif
