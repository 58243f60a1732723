// The product's sources of a stand-alone loop on a GPU, over the stand-ins of fake_device and
// fake_loop.
#define GCMOE_HAS_CUDA 1
#include "cuda/measure/judge_loop.cpp"
#include "tools/gcmoe/bench_loop_gpu.cpp"
