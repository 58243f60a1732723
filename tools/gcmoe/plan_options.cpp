#include "plan_options.hpp"

#include <CLI/CLI.hpp>

namespace gcmoe::cli {

void add_tuned_option(CLI::App& command, std::string* tuned) {
    command
        .add_option("--tuned", *tuned,
                    "GPU: the tuned table that values not given come from: a file, or none: rules "
                    "alone (the tables of the library)")
        ->type_name("FILE")
        ->group("Execution");
}

void add_plan_options(CLI::App& command, PlanOptions* plan) {
    const char* group = "Execution";
    const auto add = [&](const char* name, int* target, const char* description) {
        command.add_option(name, *target, description)->group(group);
    };
    add("--row-block", &plan->row_block, "BM, rows of a ring block: 8, 16 .. 64");
    add("--ring-blocks", &plan->ring_blocks, "B, a power of two");
    add("--second-columns", &plan->second_columns,
        "Output columns of a second-GEMM task, a multiple of 128");
    add("--lead-blocks", &plan->lead_blocks,
        "First GEMMs ahead of a block's second GEMM, 1..ring blocks");
    add("--dispatch-units", &plan->partition.dispatch_units,
        "Threads (GPU: SMs) of role 1 per rank");
    add("--compute-units", &plan->partition.compute_units,
        "Threads (GPU: SMs) of roles 2 and 3 per rank");
    command
        .add_flag_callback(
            "--no-overlap", [plan] { plan->overlap = false; },
            "Role 2 starts after role 1's last row")
        ->group(group);
    add_tuned_option(command, &plan->tuned);
}

}  // namespace gcmoe::cli
