// The options of gcmoe bench, and what they stand for.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "checkpoint/models.hpp"
#include "console.hpp"
#include "gcmoe/operator.hpp"
#include "gpu_options.hpp"

namespace CLI {
class App;
}

namespace gcmoe::cli {

// As parsed.
struct BenchOptions {
    ConsoleOptions console;
    std::string models = "v4.1-flash,v4-flash,glm-5.2";
    int reduced = 1;
    std::string tokens = "1,2,4,8,16,32,64,128,256";
    int seeds = 3;
    std::string shared = "none";
    PlanOptions plan;
    GpuOptions gpu;
    std::string ablation;
    std::string protocol = "decode";
    int warm = 10;
    int timed = 30;
    int flush_mib = 512;
    bool sustained = false;
    bool verify = false;
    bool floors_only = false;
    bool loop = false;
    std::string loop_rows;  // empty: all that there are
    std::string loop_sms;   // empty: 112,116,124,132
    bool roles = false;
    std::string trace_path;  // empty = no trace
    std::string out_path;
    bool force = false;
};

void add_bench_options(CLI::App& command, BenchOptions* options);

// What becomes of the model's shared expert.
enum class SharedForm {
    kNone,   // the layer has none
    kFused,  // a part of the launch
    kApart,  // a launch of its own behind the routed one
};
[[nodiscard]] const char* shared_form_name(SharedForm form);

inline constexpr int kTraceEvents = 16384;  // of a unit, as gcmoe trace

// What a launch is followed by, in one graph: a model of what the paper's operator ends with and
// this one does not need (src/cuda/measure/closed_launch.hpp).
enum class Closing {
    kNone,      // nothing: the operator's own launch
    kGraph,     // nothing, but in a graph that the bench captures, as those below are
    kNode,      // a kernel that does nothing
    kBarrier,   // one that signals to the rank itself and waits for it
    kCleaning,  // one that zeroes as many bytes as the signals have
    kBoth,      // one that zeroes, then signals and waits
};
[[nodiscard]] const char* closing_name(Closing closing);

// Which of role 2's forms the weights and activations ask for.
enum class DecodeForm {
    kRowFactors,    // scales of a row fit one window: what models have
    kChunkFactors,  // they do not: a factor for each row and 128 of K
    kK32,           // activations with a UE8M0 scale for 32 of K
};
[[nodiscard]] const char* decode_name(DecodeForm decode);

// One way to run a point.
struct BenchVariant {
    std::string name = "default";
    std::string ablation;  // the one it belongs to; empty for what the options say
    PlanOptions plan;
    LaunchMode launch_mode = LaunchMode::kGraph;
    SharedForm shared = SharedForm::kNone;
    Closing closing = Closing::kNone;
    DecodeForm decode = DecodeForm::kRowFactors;
    int trace_events = 0;  // of a unit; kTraceEvents or none
};

// What the words stand for.
struct BenchPlan {
    std::string backend = "cuda";
    std::vector<checkpoint::ModelEntry> models;  // with the experts of one rank
    std::vector<int> tokens;
    std::vector<BenchVariant> variants;  // the first is what the options say
    int seeds = 0;
    bool decode = false;  // the two protocols
    bool paper = false;
    bool sustained = false;
    int warm = 0;
    int timed = 0;
    std::size_t flush_bytes = 0;
    bool verify = false;
    BenchVariant reference;  // whose bits --verify wants; its own form of shared expert is not used
    int device = 0;
    bool loop = false;  // role 2's main loops alone instead of points
    std::vector<int> loop_rows;
    std::vector<int> loop_sms;  // ascending
};

// Errors: kBadInput naming option and value.
Status make_bench_plan(const BenchOptions& options, BenchPlan* out);

}  // namespace gcmoe::cli
