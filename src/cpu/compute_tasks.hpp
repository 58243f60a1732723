// The bodies of role 2's four kinds of task, without any signal: what a task computes, given that
// its inputs may be read and its outputs may be written.
#pragma once

#include <cstdint>

#include "cpu/cpu_launch.hpp"
#include "cpu/gemm_rows.hpp"

namespace gcmoe::cpu {

// 128 columns of SwiGLU output of a block, in floats: (rows, 128), weight applied. Reads ring x.
// `origins`: of the block's rows, for the routing weights and for nothing else.
void first_gemm(const CpuLaunch& cpu, std::uint32_t place, std::uint32_t expert, std::uint32_t rows,
                std::uint32_t task, const layout::Origin* origins, Scratch* scratch);

// Requantises scratch's (rows, 128) and writes chunk `task` of the place's activations.
void store_activations(const CpuLaunch& cpu, std::uint32_t place, std::uint32_t rows,
                       std::uint32_t task, const layout::Origin* origins, const Scratch& scratch);

// Decodes one chunk of a place's activations into scratch: rows of 128 * inter_chunks values.
void load_activation_chunk(const CpuLaunch& cpu, std::uint32_t place, std::uint32_t rows,
                           std::uint32_t chunk_idx, Scratch* scratch);

// second_columns columns of a block's results, straight into the owners' combine rows.
void second_gemm(const CpuLaunch& cpu, std::uint32_t expert, std::uint32_t rows, std::uint32_t task,
                 const layout::Origin* origins, Scratch* scratch);

// The shared expert: rows [first_token, first_token + rows) of the rank's own x.
void shared_first_gemm(const CpuLaunch& cpu, std::uint32_t first_token, std::uint32_t rows,
                       std::uint32_t task, Scratch* scratch);
void shared_second_gemm(const CpuLaunch& cpu, std::uint32_t first_token, std::uint32_t rows,
                        std::uint32_t task, Scratch* scratch);

}  // namespace gcmoe::cpu
