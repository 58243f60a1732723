// The product's source of a bench on a GPU, over the stand-ins of fake_device.
#define GCMOE_HAS_CUDA 1
#include "tools/gcmoe/bench_gpu.cpp"
