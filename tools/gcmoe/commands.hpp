// The subcommands. Each adds itself to the parser; its callback leaves an exit code (console.hpp).
#pragma once

namespace CLI {
class App;
}

namespace gcmoe::cli {

void add_run_command(CLI::App& app, int* exit_code);
void add_info_command(CLI::App& app, int* exit_code);
void add_synth_command(CLI::App& app, int* exit_code);
void add_pack_command(CLI::App& app, int* exit_code);
void add_trace_command(CLI::App& app, int* exit_code);
void add_bench_command(CLI::App& app, int* exit_code);
void add_tune_command(CLI::App& app, int* exit_code);

}  // namespace gcmoe::cli
