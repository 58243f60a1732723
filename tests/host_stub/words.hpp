// CUDA's words for a host compiler.
#pragma once

#if defined(__CUDACC__) || defined(CUDART_VERSION)
#error "the host stub is compiled without CUDA"
#endif

#define __device__
#define __forceinline__ inline
