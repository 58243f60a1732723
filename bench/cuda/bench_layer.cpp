// gcmoe_bench_layer: how long one rank takes, all roles and the graph included.
//
// One rank that holds the experts of one of eight (E = El), uniform random routing, 512 MiB written
// before each launch, 10 warm-ups, median of 30. Floor = touched experts * 3 H I (0.5 + 1/32) bytes
// / 4.3 TB/s. Outputs are not judged here (`gcmoe check` does): times only.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "checkpoint/models.hpp"
#include "cuda/copy_only.hpp"
#include "cuda/weights/generate_layer.hpp"
#include "cuda/weights/pack_on_device.hpp"
#include "gcmoe/capability.hpp"
#include "gcmoe/operator.hpp"
#include "numerics/bits.hpp"
#include "numerics/hash.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::bench {
namespace {

constexpr std::size_t kFlushBytes = 512ULL << 20;
constexpr double kFloorBytesPerUs = 4.3e6;
constexpr int kRanksOfTheModel = 8;

void must(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
}
void must(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(error)));
    }
}

struct BadOption : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Options {
    std::vector<std::string> models = {"v4.1-flash", "v4-flash", "glm-5.2"};
    std::vector<int> tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    PlanOptions plan;
    LaunchMode launch_mode = LaunchMode::kGraph;
    bool shared = false;
    bool json = false;
    int warm_ups = 10;
    int timed = 30;
};

// Device time of a stream's work between two marks.
class Timer {
  public:
    Timer(int warm_ups, int timed) : warm_ups_(warm_ups), timed_(timed) {
        must(cudaEventCreate(&begin_), "event");
        must(cudaEventCreate(&end_), "event");
        must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
        must(cudaMalloc(&flush_, kFlushBytes), "512 MiB to write between launches");
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    ~Timer() {
        cudaFree(flush_);
        cudaStreamDestroy(stream_);
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
    }
    [[nodiscard]] cudaStream_t stream() const { return stream_; }
    // Median microseconds of `enqueue`, which puts its work on stream().
    template <class Enqueue>
    double median_us(const Enqueue& enqueue) {
        std::vector<double> times;
        for (int i = 0; i < warm_ups_ + timed_; ++i) {
            must(cudaMemsetAsync(flush_, i, kFlushBytes, stream_), "flush");
            must(cudaEventRecord(begin_, stream_), "mark");
            enqueue();
            must(cudaEventRecord(end_, stream_), "mark");
            must(cudaStreamSynchronize(stream_), "launch");
            float ms = 0;
            must(cudaEventElapsedTime(&ms, begin_, end_), "time");
            if (i >= warm_ups_) times.push_back(ms * 1e3);
        }
        std::nth_element(times.begin(), times.begin() + timed_ / 2, times.end());
        return times[static_cast<std::size_t>(timed_ / 2)];
    }

  private:
    int warm_ups_ = 0;
    int timed_ = 0;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
    cudaStream_t stream_ = nullptr;
    void* flush_ = nullptr;
};

// One rank's inputs: normal activations, k distinct experts a token.
struct Inputs {
    std::vector<std::uint8_t> x;
    std::vector<std::uint32_t> x_scale;
    std::vector<std::int64_t> topk_idx;
    std::vector<float> topk_weight;
};

void add_token(const Shape& shape, std::uint64_t key, Inputs* inputs) {
    std::vector<float> values(128);
    std::uint8_t codes[128];
    for (int chunk = 0; chunk < shape.hidden / 128; ++chunk) {
        for (int k = 0; k < 128; ++k) {
            const auto at = static_cast<std::uint64_t>(chunk * 128 + k);
            values[static_cast<std::size_t>(k)] =
                numerics::hash_normal(numerics::hash_combine(key, at));
        }
        float scale = 0;
        numerics::quantise_e4m3_fp32(values.data(), 128, codes, &scale);
        inputs->x.insert(inputs->x.end(), codes, codes + 128);
        inputs->x_scale.push_back(numerics::float_to_bits(scale));
    }
    std::vector<std::int64_t> chosen;
    for (std::uint64_t i = 0; chosen.size() < static_cast<std::size_t>(shape.topk); ++i) {
        const auto id = static_cast<std::int64_t>(numerics::hash_combine(key, ~i) / 7 %
                                                  static_cast<std::uint64_t>(shape.num_experts));
        if (std::find(chosen.begin(), chosen.end(), id) == chosen.end()) chosen.push_back(id);
    }
    inputs->topk_idx.insert(inputs->topk_idx.end(), chosen.begin(), chosen.end());
    inputs->topk_weight.insert(inputs->topk_weight.end(), chosen.size(), 0.25F);
}

struct Point {
    std::string model;
    int tokens = 0;
    int touched = 0;
    int row_block = 0;
    double us = 0;
    double copy_us = 0;
    double floor_us = 0;
    LaunchTimes times;
};

// A rank's layer with weights of `model`, ready to be launched at any number of tokens.
struct Layer {
    Shape shape;
    std::shared_ptr<WeightSource> source;
    std::shared_ptr<const PackedWeights> weights;
};

void make_layer(const Options& options, const std::string& model, Layer* layer) {
    checkpoint::ModelEntry entry;
    must(checkpoint::find_model(model, &entry));
    entry.num_experts /= kRanksOfTheModel;
    if (!options.shared) entry.shared_inter = 0;
    checkpoint::GeneratedLayer generated;
    generated.shape = checkpoint::model_shape(entry, 1);
    generated.shared_grid = entry.shared_grid;
    layer->shape = generated.shape;
    must(cuda::weights::generate_layer(generated, cuda::weights::sizes_of(layer->shape),
                                       {0, entry.num_experts}, &layer->source));
    must(cuda::weights::pack_on_device(*layer->source, layer->shape, 0, {}, &layer->weights,
                                       nullptr));
}

Point measure(const Options& options, const Layer& layer, int tokens, Timer* timer) {
    const Shape& shape = layer.shape;
    std::shared_ptr<Group> group;
    must(Group::in_process(1, {}, &group));
    OperatorOptions op_options;
    op_options.backend = "cuda";
    op_options.launch_mode = options.launch_mode;
    op_options.max_tokens = tokens;
    op_options.plans = {options.plan};
    std::unique_ptr<Operator> op;
    must(Operator::create(shape, layer.weights, group, 0, op_options, &op));
    Inputs inputs;
    for (int t = 0; t < tokens; ++t) {
        add_token(shape, numerics::hash_combine(1234, static_cast<std::uint64_t>(t)), &inputs);
    }
    must(op->write_inputs({tokens, inputs.x.data(), inputs.x_scale.data(), inputs.topk_idx.data(),
                           inputs.topk_weight.data()}));
    void* y = nullptr;
    must(cudaMalloc(&y,
                    static_cast<std::size_t>(tokens) * static_cast<std::size_t>(shape.hidden) * 2),
         "y");
    LaunchArgs args;
    args.num_tokens = tokens;
    args.y = static_cast<std::uint16_t*>(y);
    args.stream = timer->stream();
    Point point;
    point.us = timer->median_us([&] { must(op->launch(args)); });
    must(op->synchronize());
    const Statistics statistics = op->statistics();
    for (const std::uint64_t rows : statistics.expert_rows) point.touched += rows != 0 ? 1 : 0;
    point.tokens = tokens;
    point.times = statistics.times;
    const double bytes = point.touched * 3.0 * shape.hidden * shape.inter * (0.5 + 1.0 / 32);
    point.floor_us = bytes / kFloorBytesPerUs;
    op.reset();
    cudaFree(y);
    void* source = nullptr;
    must(cudaMalloc(&source, static_cast<std::size_t>(bytes)), "bytes to copy");
    must(cudaMemset(source, 0x5A, static_cast<std::size_t>(bytes)), "bytes to copy");
    point.copy_us = timer->median_us([&] {
        must(launch_copy_only(static_cast<unsigned char*>(source), static_cast<std::size_t>(bytes),
                              116, timer->stream()),
             "copying");
    });
    cudaFree(source);
    return point;
}

void print(const Options& options, const Point& point) {
    const LaunchTimes& t = point.times;
    if (options.json) {
        fmt::print(
            R"({{"model": "{}", "tokens": {}, "touched": {}, "us": {:.1f}, "floor_us": {:.1f},)"
            R"( "ratio": {:.3f}, "copy_us": {:.1f}}})"
            "\n",
            point.model, point.tokens, point.touched, point.us, point.floor_us,
            point.us / point.floor_us, point.copy_us);
    } else {
        fmt::print(
            "{:<11} {:>6} {:>7} {:>9.1f} {:>9.1f} {:>6.2f} {:>9.1f} {:>8.1f} {:>8.1f} "
            "{:>8.1f} {:>8.1f} {:>8.1f}\n",
            point.model, point.tokens, point.touched, point.us, point.floor_us,
            point.us / point.floor_us, point.copy_us, t.role1_first_row_us, t.role2_first_task_us,
            t.role1_end_us, t.role2_end_us, t.role3_end_us);
    }
    std::fflush(stdout);
}

void run(const Options& options) {
    if (!options.json) {
        fmt::print("{:<11} {:>6} {:>7} {:>9} {:>9} {:>6} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
                   "model", "tokens", "experts", "us", "floor us", "ratio", "copy us", "row 1",
                   "task 1", "role 1", "role 2", "role 3");
    }
    Timer timer(options.warm_ups, options.timed);
    for (const std::string& model : options.models) {
        Layer layer;
        make_layer(options, model, &layer);
        for (const int tokens : options.tokens) {
            Point point = measure(options, layer, tokens, &timer);
            point.model = model;
            print(options, point);
        }
    }
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
        if (c == ',') {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    return parts;
}

constexpr const char* kUsage = R"(usage: gcmoe_bench_layer [options]
  --models LIST          v4.1-flash,v4-flash,glm-5.2
  --tokens LIST          1,2,4,8,16,32,64,128,256
  --row-block N          rows of a ring block (the plan's choice)
  --ring-blocks N        (the plan's choice)
  --lead-blocks N        (the plan's choice)
  --dispatch-units N     SMs of role 1 (8); role 2 has the rest
  --launch MODE          graph, eager, serial
  --no-overlap           role 2 starts after role 1
  --shared               with the model's shared expert, its tasks among role 2's
  --role4                the same, its tasks as role 4
  --combine UNITS        who runs role 3: auto, compute, dispatch
  --warm-ups N           launches before the timed ones (10)
  --timed N              timed launches, at least 1 (30)
  --json                 a JSON line per point
Columns: median of the timed launches; floor; their ratio; the same bytes copied only by 116 SMs;
then, of the last launch, microseconds after role 1 began: its first row, role 2's first routed task
with all its rows, role 1's end, the ends of roles 2 and 3.
)";

int parse_number(const std::string& name, const std::string& value, int least) {
    int number = 0;
    const char* end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, number);
    if (error == std::errc() && at == end && number >= least) return number;
    throw BadOption(fmt::format("{} {}: must be a number of at least {}", name, value, least));
}

LaunchMode parse_mode(const std::string& name, const std::string& value) {
    if (value == "graph") return LaunchMode::kGraph;
    if (value == "eager") return LaunchMode::kEager;
    if (value == "serial") return LaunchMode::kSerial;
    throw BadOption(fmt::format("{} {}: must be one of graph, eager, serial", name, value));
}

CombineUnits parse_combine(const std::string& name, const std::string& value) {
    if (value == "auto") return CombineUnits::kAuto;
    if (value == "compute") return CombineUnits::kCompute;
    if (value == "dispatch") return CombineUnits::kDispatch;
    if (value == "all") return CombineUnits::kAll;
    throw BadOption(fmt::format("{} {}: must be one of auto, compute, dispatch", name, value));
}

bool parse_pair(const std::string& name, const std::string& value, Options* options) {
    if (name == "--models") {
        options->models = split(value);
        checkpoint::ModelEntry entry;
        for (const std::string& model : options->models) {
            must(checkpoint::find_model(model, &entry));
        }
    } else if (name == "--tokens") {
        options->tokens.clear();
        for (const std::string& part : split(value)) {
            options->tokens.push_back(parse_number(name, part, 1));
        }
    } else if (name == "--row-block") {
        options->plan.row_block = parse_number(name, value, 8);
    } else if (name == "--ring-blocks") {
        options->plan.ring_blocks = parse_number(name, value, 1);
    } else if (name == "--lead-blocks") {
        options->plan.lead_blocks = parse_number(name, value, 1);
    } else if (name == "--dispatch-units") {
        options->plan.partition.dispatch_units = parse_number(name, value, 2);
    } else if (name == "--warm-ups") {
        options->warm_ups = parse_number(name, value, 0);
    } else if (name == "--timed") {
        options->timed = parse_number(name, value, 1);
    } else if (name == "--launch") {
        options->launch_mode = parse_mode(name, value);
    } else if (name == "--combine") {
        options->plan.combine = parse_combine(name, value);
    } else {
        return false;
    }
    return true;
}

bool parse_flag(const std::string& name, Options* options) {
    if (name == "--no-overlap") {
        options->plan.overlap = false;
    } else if (name == "--shared") {
        options->shared = true;
    } else if (name == "--role4") {
        options->shared = true;
        options->plan.shared_experts = SharedExperts::kRole4;
    } else if (name == "--json") {
        options->json = true;
    } else {
        return false;
    }
    return true;
}

void parse(int argc, char** argv, Options* options) {
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (parse_flag(name, options)) continue;
        const bool has_value = i + 1 < argc && argv[i + 1][0] != '-';
        if (!parse_pair(name, has_value ? argv[i + 1] : "", options)) {
            throw BadOption("no option is called " + name);
        }
        ++i;
    }
}

bool asks_for_help(int argc, char** argv) {
    return std::any_of(argv + 1, argv + argc,
                       [](const std::string& word) { return word == "--help" || word == "-h"; });
}

// Exit status as that of gcmoe: 2 = bad input, or no GPU to run on.
int bench_main(int argc, char** argv) {
    if (asks_for_help(argc, argv)) {
        std::fputs(kUsage, stdout);
        return 0;
    }
    try {
        Options options;
        parse(argc, argv, &options);
        for (const BackendInfo& backend : backends()) {
            if (backend.name == "cuda" && !backend.available) throw BadOption(backend.reason);
        }
        run(options);
    } catch (const BadOption& error) {
        fmt::print(stderr, "gcmoe_bench_layer: {} (see --help)\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        fmt::print(stderr, "gcmoe_bench_layer: {}\n", error.what());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace gcmoe::bench

int main(int argc, char** argv) { return gcmoe::bench::bench_main(argc, argv); }
