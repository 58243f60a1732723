// The same for the launches.
#define GCMOE_HAS_CUDA 1
#include "tools/gcmoe/bench_launches.cpp"
