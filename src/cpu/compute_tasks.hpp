// The bodies of role 2's four kinds of task, without any signal: what a task computes, given that
// its inputs may be read and its outputs may be written.
#pragma once

#include <cstdint>

#include "cpu/cpu_launch.hpp"
#include "cpu/gemm_rows.hpp"

namespace gcmoe::cpu {

// One task on one ring block.
struct BlockTask {
    std::uint32_t place = 0;   // ring place of the block
    std::uint32_t expert = 0;  // local expert
    std::uint32_t rows = 0;    // live rows of the block
    std::uint32_t task = 0;    // first GEMM: 128 columns; second GEMM: second_columns columns
    const layout::Origin* origins = nullptr;  // (rows), copied out of the ring
};

// One task on a row block of the rank's own tokens.
struct SharedTask {
    std::uint32_t first_token = 0;
    std::uint32_t rows = 0;
    std::uint32_t task = 0;
};

// 128 columns of SwiGLU output of a block into scratch->activated (rows, 128), weight applied.
// Reads ring x.
void first_gemm(const CpuLaunch& cpu, const BlockTask& task, Scratch* scratch);

// Requantises scratch's activated rows and writes chunk `task.task` of the place's activations.
void store_activations(const CpuLaunch& cpu, const BlockTask& task, const Scratch& scratch);

// Decodes one chunk of a place's activations into scratch->values and scales.
void load_activation_chunk(const CpuLaunch& cpu, const BlockTask& task, std::uint32_t chunk_idx,
                           Scratch* scratch);

// second_columns columns of a block's results, straight into the owners' combine rows.
void second_gemm(const CpuLaunch& cpu, const BlockTask& task, Scratch* scratch);

// The shared expert's first GEMM with requantisation, and its second GEMM into shared_row.
void shared_first_gemm(const CpuLaunch& cpu, const SharedTask& task, Scratch* scratch);
void shared_second_gemm(const CpuLaunch& cpu, const SharedTask& task, Scratch* scratch);

}  // namespace gcmoe::cpu
