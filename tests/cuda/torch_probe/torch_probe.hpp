// What torch_capture.py calls: a layer over virtual ranks whose launches go onto a stream of
// PyTorch's. C functions, so that ctypes will do. Not thread-safe.
#pragma once

extern "C" {

// What the last call that failed had to say.
const char* gcmoe_probe_error();
// A layer of so many ranks with total_tokens spread over them. It runs once, into host memory;
// those rows are kept as what all later launches must give. Null on failure.
void* gcmoe_probe_create(int num_ranks, int total_tokens);
void gcmoe_probe_destroy(void* probe);
// Columns of a row; tokens of a rank.
int gcmoe_probe_hidden(const void* probe);
int gcmoe_probe_tokens(const void* probe, int rank);
// One launch of all ranks on a cudaStream_t, which may be capturing. Shapes: outputs (num_ranks)
// device pointers to (tokens of the rank, hidden) bf16. Returns 0, or -1 on failure.
int gcmoe_probe_enqueue(void* probe, void* stream, void* const* outputs);
// Numbers of the outputs whose bits are not those of the first run; -1 on failure. Callers: the
// stream has been synchronised.
long long gcmoe_probe_differences(void* probe, void* const* outputs);

}  // extern "C"
