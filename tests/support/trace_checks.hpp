// What every trace must hold, whoever recorded it.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "layout/local_memory.hpp"
#include "trace/trace.hpp"

namespace gcmoe::test {

using TraceSites = std::set<std::pair<std::uint32_t, std::uint32_t>>;  // (block, task)

// No event of a track begins before the one before it has ended.
void expect_no_overlap(const trace::Trace& trace);

// Of every event of a kind in a rank's launch; a second one of the same place fails.
TraceSites trace_sites(const trace::Trace& trace, int rank, std::uint32_t generation,
                       trace::Kind kind);

// A launch of a rank on a GPU, or on its stand-in.
struct GpuLaunchFacts {
    int rank = 0;
    std::uint32_t generation = 1;
    std::uint64_t blocks = 0;
    std::uint64_t rows = 0;
    layout::PlanMemory plan;
    std::uint32_t shared_blocks = 0;  // row blocks of own tokens; 0 = no shared expert
    std::uint32_t shared_n1 = 0;
    bool alone = true;    // no other rank sends it rows or results
    bool serial = false;  // role 1 is two kernels
};

// Every row, task and step exactly once, each after what it needs. A trace without drops.
void expect_gpu_launch(const trace::Trace& trace, const GpuLaunchFacts& facts);

}  // namespace gcmoe::test
