// The same for a tuning's launches.
#define GCMOE_HAS_CUDA 1
#include "tools/gcmoe/tune_gpu.cpp"
