// gcmoe_bench_cpu: how fast one core goes through packed weights, every SIMD target beside the
// scalar form and the machine's copy bandwidth.
//
// Weights of several experts, more than caches hold, are passed once a window, in tasks as role 2
// has them. Median of the windows, in CPU time of the thread. The scalar form (reference/lane_sums)
// takes a share of the rows: it is bound by arithmetic, not by memory.
#include <fmt/format.h>
#include <hwy/targets.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/models.hpp"
#include "cpu/gemm_rows.hpp"
#include "numerics/e4m3.hpp"
#include "reference/lane_sums.hpp"

namespace gcmoe::bench {
namespace {

constexpr std::size_t kCopyBytes = 256ULL << 20;
constexpr std::size_t kStreamBytes = 96ULL << 20;  // of each matrix kind: three times an L3
constexpr int kTaskRows = 256;
constexpr int kScalarRows = 512;

struct BadOption : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Options {
    std::string model = "v4.1-flash";
    std::vector<int> rows = {1, 2, 4, 8, 16, 32, 64};
    int timed = 7;
    bool json = false;
};

// This thread's time on a core: what others do on a shared machine does not count.
double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Work>
double median_seconds(int windows, const Work& work) {
    std::vector<double> times;
    for (int i = 0; i < windows + 1; ++i) {  // the first warms up
        const double begin = thread_seconds();
        work();
        if (i > 0) times.push_back(thread_seconds() - begin);
    }
    std::nth_element(times.begin(), times.begin() + windows / 2, times.end());
    return times[static_cast<std::size_t>(windows / 2)];
}

// GB/s that memcpy reads (and writes as much).
double copy_bandwidth(int windows) {
    std::vector<std::uint8_t> from(kCopyBytes, 1);
    std::vector<std::uint8_t> to(kCopyBytes, 2);
    const double seconds =
        median_seconds(windows, [&] { std::memcpy(to.data(), from.data(), kCopyBytes); });
    return static_cast<double>(kCopyBytes) / seconds * 1e-9;
}

std::vector<std::uint8_t> random_bytes(std::size_t size) {
    std::vector<std::uint8_t> bytes(size);
    std::mt19937_64 random(size);
    for (std::size_t i = 0; i + 8 <= size; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, 8);
    }
    return bytes;
}

std::size_t num_tiles(int rows, int cols) {
    return static_cast<std::size_t>(rows / layout::kTileRows) *
           static_cast<std::size_t>(cols / layout::kChunkK);
}

// Matrices of one kind: enough copies for kStreamBytes.
std::vector<layout::PackedMatrix> make_matrices(int rows, int cols) {
    layout::PackedMatrix matrix;
    matrix.rows = rows;
    matrix.chunks = cols / layout::kChunkK;
    matrix.order = layout::KOrder::kQuadBlock;
    matrix.tiles = random_bytes(num_tiles(rows, cols) * layout::kFp4TileBytes);
    for (std::size_t tile = 0; tile < num_tiles(rows, cols); ++tile) {
        std::uint8_t* at = matrix.tiles.data() + tile * layout::kFp4TileBytes;
        for (int i = layout::kFp4NibbleBytes; i < layout::kFp4TileBytes; ++i) at[i] = at[i] % 27;
    }
    matrix.factors.assign(static_cast<std::size_t>(rows), 1.0F);
    return std::vector<layout::PackedMatrix>(kStreamBytes / matrix.tiles.size() + 1, matrix);
}

std::vector<layout::PackedFp8Matrix> make_fp8_matrices(int rows, int cols) {
    layout::PackedFp8Matrix matrix;
    matrix.rows = rows;
    matrix.chunks = cols / layout::kChunkK;
    matrix.scale_groups_per_chunk = 4;
    matrix.tiles = random_bytes(num_tiles(rows, cols) * layout::kFp8TileBytes);
    for (std::uint8_t& code : matrix.tiles) code &= 0xBFU;
    matrix.scales.assign(num_tiles(rows, cols) * layout::kTileRows * 4, 0.01F);
    return std::vector<layout::PackedFp8Matrix>(kStreamBytes / matrix.tiles.size() + 1, matrix);
}

// Activation rows in both forms; what they hold does not matter for time.
struct Activations {
    Activations(int rows_of_block, int chunks_of_k) : num_rows(rows_of_block), chunks(chunks_of_k) {
        const std::size_t pieces =
            static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(chunks);
        lanes.resize(pieces * layout::kChunkK);
        scales.resize(pieces * cpu::kScalesPerChunk);
        for (std::size_t i = 0; i < pieces * layout::kChunkK; ++i) {
            lanes.data()[i] = numerics::e4m3_to_float(static_cast<std::uint8_t>(i * 37 % 126));
        }
        std::fill_n(scales.data(), pieces * cpu::kScalesPerChunk, 0.01F);
    }
    [[nodiscard]] cpu::ActivationRows rows() {
        return {lanes.data(), scales.data(), num_rows, chunks};
    }
    [[nodiscard]] reference::LaneInputs inputs() {
        return {lanes.data(), scales.data(), num_rows, chunks};
    }
    int num_rows;
    int chunks;
    cpu::AlignedFloats lanes;
    cpu::AlignedFloats scales;
};

void multiply(const layout::PackedMatrix& matrix, int first, int num,
              const cpu::ActivationRows& rows, float* sums) {
    cpu::multiply_fp4(matrix, first, num, rows, sums);
}
void multiply(const layout::PackedFp8Matrix& matrix, int first, int num,
              const cpu::ActivationRows& rows, float* sums) {
    cpu::multiply_fp8(matrix, first, num, rows, sums);
}

struct Point {
    std::string matrix;
    std::string target;
    int out_rows = 0;
    int cols = 0;
    int rows = 0;
    double gb_per_s = 0;    // packed bytes
    double gmac_per_s = 0;  // weights times rows
    double times_scalar = 1;
};

class Bench {
  public:
    explicit Bench(const Options& options)
        : options_(options), copy_gb_per_s_(copy_bandwidth(options.timed)) {}

    void print_head() const {
        if (options_.json) return;
        fmt::print("{}, one core; memcpy {:.2f} GB/s read and as much written\n", options_.model,
                   copy_gb_per_s_);
        fmt::print("{:<14} {:>11} {:>5} {:<7} {:>9} {:>8} {:>9} {:>8}\n", "matrix", "shape", "rows",
                   "target", "GB/s", "GMAC/s", "x scalar", "of copy");
    }
    template <class Matrix>
    void measure(const std::string& name, const std::vector<Matrix>& matrices) {
        for (const int rows : options_.rows) {
            Activations x(rows, matrices.front().chunks);
            const Point scalar = measure_scalar(name, matrices.front(), &x);
            print(scalar);
            for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
                hwy::SetSupportedTargetsForTest(target);
                hwy::GetChosenTarget().Update(hwy::SupportedTargets());
                Point point = measure_target(name, matrices, &x);
                point.target = hwy::TargetName(target);
                point.times_scalar = point.gb_per_s / scalar.gb_per_s;
                print(point);
                hwy::SetSupportedTargetsForTest(0);
            }
        }
    }

  private:
    template <class Matrix>
    Point make_point(const std::string& name, const Matrix& matrix, int out_rows, int rows,
                     double seconds) const {
        Point point;
        point.matrix = name;
        point.out_rows = matrix.rows;
        point.cols = matrix.chunks * layout::kChunkK;
        point.rows = rows;
        const double share = static_cast<double>(out_rows) / matrix.rows;
        point.gb_per_s = static_cast<double>(matrix.tiles.size()) * share / seconds * 1e-9;
        point.gmac_per_s = static_cast<double>(out_rows) * point.cols * rows / seconds * 1e-9;
        return point;
    }
    template <class Matrix>
    Point measure_scalar(const std::string& name, const Matrix& matrix, Activations* x) const {
        const int out_rows = std::min(matrix.rows, kScalarRows);
        std::vector<float> sums(static_cast<std::size_t>(out_rows * x->num_rows));
        const double seconds = median_seconds(std::min(options_.timed, 3), [&] {
            reference::lane_sums(matrix, 0, out_rows, x->inputs(), sums.data());
        });
        Point point = make_point(name, matrix, out_rows, x->num_rows, seconds);
        point.target = "scalar";
        return point;
    }
    template <class Matrix>
    Point measure_target(const std::string& name, const std::vector<Matrix>& matrices,
                         Activations* x) const {
        std::vector<float> sums(static_cast<std::size_t>(kTaskRows * x->num_rows));
        const double seconds = median_seconds(options_.timed, [&] {
            for (const Matrix& matrix : matrices) {
                for (int row = 0; row < matrix.rows; row += kTaskRows) {
                    multiply(matrix, row, std::min(kTaskRows, matrix.rows - row), x->rows(),
                             sums.data());
                }
            }
        });
        return make_point(name, matrices.front(), matrices.front().rows, x->num_rows,
                          seconds / static_cast<double>(matrices.size()));
    }
    void print(const Point& point) const {
        if (options_.json) {
            fmt::print(
                R"({{"model": "{}", "matrix": "{}", "out_rows": {}, "cols": {}, "rows": {}, )"
                R"("target": "{}", "gb_per_s": {:.3f}, "gmac_per_s": {:.2f}, )"
                R"("times_scalar": {:.2f}, "copy_gb_per_s": {:.2f}}})"
                "\n",
                options_.model, point.matrix, point.out_rows, point.cols, point.rows, point.target,
                point.gb_per_s, point.gmac_per_s, point.times_scalar, copy_gb_per_s_);
        } else {
            fmt::print("{:<14} {:>11} {:>5} {:<7} {:>9.3f} {:>8.2f} {:>9.1f} {:>8.2f}\n",
                       point.matrix, fmt::format("{}x{}", point.out_rows, point.cols), point.rows,
                       point.target, point.gb_per_s, point.gmac_per_s, point.times_scalar,
                       point.gb_per_s / copy_gb_per_s_);
        }
        std::fflush(stdout);
    }

    Options options_;
    double copy_gb_per_s_;
};

void run(const Options& options) {
    checkpoint::ModelEntry entry;
    const Status status = checkpoint::find_model(options.model, &entry);
    if (!status.ok()) throw BadOption("--model: " + status.message());
    const int hidden = entry.hidden / layout::kChunkK * layout::kChunkK;
    const int inter = entry.inter / layout::kChunkK * layout::kChunkK;
    Bench bench(options);
    bench.print_head();
    bench.measure("first GEMM", make_matrices(2 * inter, hidden));
    bench.measure("second GEMM", make_matrices(hidden, inter));
    if (entry.shared_inter > 0) {
        bench.measure("shared first", make_fp8_matrices(2 * entry.shared_inter, hidden));
    }
}

constexpr const char* kUsage = R"(usage: gcmoe_bench_cpu [options]      (./dev bench cpu [options])
  --model NAME     v4.1-flash, or any that gcmoe knows; its expert matrices, full size
  --rows LIST      rows of a block: 1,2,4,8,16,32,64
  --timed N        windows, at least 1 (7); the median counts
  --json           a JSON line per point
Columns: GB of packed weights a second of one core (CPU time of the thread); 10^9 weights times
rows a second; the speed over the scalar form's; GB/s over what memcpy reads on this machine.
)";

int parse_number(const std::string& name, const std::string& value, int least, int most) {
    int number = 0;
    const char* end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, number);
    if (error == std::errc() && at == end && number >= least && number <= most) return number;
    throw BadOption(fmt::format("{} '{}': must be a number in {}..{}", name, value, least, most));
}

std::vector<int> parse_rows(const std::string& text) {
    std::vector<int> rows;
    std::size_t begin = 0;
    while (begin <= text.size()) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        rows.push_back(
            parse_number("--rows", text.substr(begin, end - begin), 1, cpu::kMaxGemmRows));
        begin = end + 1;
    }
    return rows;
}

void parse(const std::vector<std::string>& words, Options* options) {
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string& name = words[i];
        const std::string value = i + 1 < words.size() ? words[i + 1] : "";
        if (name == "--json") {
            options->json = true;
            continue;
        }
        if (name == "--model") {
            options->model = value;
        } else if (name == "--rows") {
            options->rows = parse_rows(value);
        } else if (name == "--timed") {
            options->timed = parse_number(name, value, 1, 1000);
        } else {
            throw BadOption(fmt::format("no option is called '{}'", name));
        }
        ++i;
    }
}

// Exit status as that of gcmoe: 2 = bad input.
int bench_main(const std::vector<std::string>& words) {
    if (std::find(words.begin(), words.end(), "--help") != words.end()) {
        fmt::print("{}", kUsage);
        return 0;
    }
    try {
        Options options;
        parse(words, &options);
        run(options);
    } catch (const BadOption& error) {
        fmt::print(stderr, "gcmoe_bench_cpu: {} (see --help)\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        fmt::print(stderr, "gcmoe_bench_cpu: {}\n", error.what());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace gcmoe::bench

int main(int argc, char** argv) {
    return gcmoe::bench::bench_main(std::vector<std::string>(argv + 1, argv + argc));
}
