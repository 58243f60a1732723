// The library's half of docs/refusals.md: every row is called, and says what the table says. With
// GCMOE_WRITE_DOCUMENTS set what the library says now is put into the table (`./dev refusals`).
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "documents/document.hpp"
#include "gcmoe/capability.hpp"
#include "gcmoe/operator.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

// What was done, as the source says it, and what came of it.
struct Row {
    std::string input;
    Status status;
};
using Rows = std::vector<Row>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The change stands in the table as it stands here.
#define AFTER(change, call)        \
    [&] {                          \
        change;                    \
        return Row{#change, call}; \
    }()

OperatorOptions good_options() {
    OperatorOptions options;
    options.max_tokens = 8;
    options.plans.resize(1);
    options.plans[0].row_block = 16;
    options.plans[0].ring_blocks = 4;
    return options;
}

#define SHAPE(change)                          \
    [] {                                       \
        Shape shape = test::small_shape(2);    \
        return AFTER(change, validate(shape)); \
    }()

Rows shape_rows() {
    return {
        SHAPE(shape.hidden = 2880),
        SHAPE(shape.inter = 0),
        SHAPE(shape.inter = 8320),
        SHAPE(shape.shared_inter = 64),
        SHAPE(shape.shared_inter = 8320),
        SHAPE(shape.num_ranks = 73),
        SHAPE(shape.num_experts = 17),
        SHAPE(shape.num_experts = 2 * 65537),
        SHAPE(shape.topk = 17),
        SHAPE(shape.activation.clamp = 0),
        SHAPE(shape.activation.alpha = kNan),
        SHAPE(shape.activation.beta = kInfinity),
        SHAPE(shape.activation_scale = ActivationScale(7)),
        SHAPE(shape.weight_placement = WeightPlacement(7)),
    };
}

#define OPTIONS(change)                                                  \
    [] {                                                                 \
        OperatorOptions options = good_options();                        \
        return AFTER(change, capability(test::small_shape(2), options)); \
    }()

Rows option_rows() {
    return {
        OPTIONS(options.backend = "tpu"),
        OPTIONS(options.backend = "cuda"),
        OPTIONS(options.device = 1),
        OPTIONS(options.max_tokens = 0),
        OPTIONS(options.max_tokens = 1 << 22),
        OPTIONS(options.index_type = IndexType(9)),
        OPTIONS(options.plans.resize(17)),
        OPTIONS(options.plans.resize(2)),
        OPTIONS(options.plans[0].name = ""),
        OPTIONS(options.wait_limits.first_launch_s = -1),
        OPTIONS(options.wait_limits.steady_s = kNan),
        OPTIONS(options.trace_events = 1 << 21),
    };
}

Rows plan_rows() {
    return {
        OPTIONS(options.plans[0].row_block = 12), OPTIONS(options.plans[0].ring_blocks = 6),
            OPTIONS(options.plans[0].second_columns = 200),
            OPTIONS(options.plans[0].lead_blocks = 5),
            OPTIONS(options.plans[0].overlap = false; options.plans[0].ring_blocks = 1),
            OPTIONS(options.plans[0].partition.dispatch_units = -1),
            OPTIONS(options.plans[0].partition.compute_units = 1024),
            OPTIONS(options.plans[0].shared_experts = SharedExperts::kRole4),
            OPTIONS(options.plans[0].tuned = "missing.jsonl"),
    };
}

#define PARTITION(...) \
    Row { #__VA_ARGS__, __VA_ARGS__ }

Rows partition_rows() {
    constexpr Partition::Limits gpu{};
    return {
        PARTITION(validate({1, 120}, gpu, 0)),
        PARTITION(validate({2, 30}, gpu, 0)),
        PARTITION(validate({5, 127}, gpu, 132)),
        PARTITION(validate({12, 122}, gpu, 132)),
    };
}

#define HOST(change)                                          \
    [&] {                                                     \
        HostOptions host;                                     \
        host.session = "s";                                   \
        host.num_ranks = 2;                                   \
        return AFTER(change, Group::join_host(host, &group)); \
    }()

Rows group_rows() {
    std::shared_ptr<Group> group;
    GroupOptions options;
    return {
        AFTER(int ranks = 0, Group::in_process(ranks, options, &group)),
        AFTER(options.resident_compute_units = -1, Group::in_process(2, options, &group)),
        HOST(host.num_ranks = 73),
        HOST(host.rank = 2),
        HOST(host.wait_s = -1),
        HOST(host.session = ""),
        HOST(host.session = std::string(102, 's')),
        HOST(host.session = "/dev/null"),
        HOST(host.session = "/no/folder"),
    };
}

// A source that hands out what the generator makes, changed by a test.
class ChangedSource : public WeightSource {
  public:
    explicit ChangedSource(const Shape& shape) : source_(test::generated_weights(shape)) {}
    Status expert(int expert_idx, ExpertBytes* out) override {
        if (should_throw) throw std::runtime_error("the disk is gone");
        GCMOE_RETURN_IF_ERROR(source_->expert(expert_idx, out));
        if (rows != 0) out->up.rows = rows;
        if (no_scales) out->down.scales = nullptr;
        if (scale_code >= 0) {
            const std::size_t bytes = static_cast<std::size_t>(out->gate.rows) *
                                      static_cast<std::size_t>(out->gate.cols) / 32;
            scales_.assign(out->gate.scales, out->gate.scales + bytes);
            scales_[1] = static_cast<std::uint8_t>(scale_code);
            out->gate.scales = scales_.data();
        }
        return {};
    }
    Status shared_expert(SharedExpertBytes* out) override { return source_->shared_expert(out); }

    int rows = 0;
    int scale_code = -1;
    bool no_scales = false;
    bool should_throw = false;

  private:
    std::unique_ptr<WeightSource> source_;
    std::vector<std::uint8_t> scales_;
};

#define PACK(change)                                                                        \
    [] {                                                                                    \
        Shape shape = test::small_shape(2);                                                 \
        ChangedSource source(shape);                                                        \
        PackOptions options;                                                                \
        int rank = 0;                                                                       \
        std::shared_ptr<const PackedWeights> weights;                                       \
        PackReport report;                                                                  \
        return AFTER(change,                                                                \
                     PackedWeights::pack(source, shape, rank, options, &weights, &report)); \
    }()

Rows pack_rows() {
    return {
        PACK(shape.hidden = 100),
        PACK(shape.num_experts = 17),
        PACK(rank = 2),
        PACK(options.only_experts = {99}),
        PACK(shape.has_bias = true),
        PACK(source.rows = 128),
        PACK(source.no_scales = true),
        PACK(source.scale_code = 255),
        PACK(source.scale_code = 1),
        PACK(source.should_throw = true),
    };
}

#define CREATE(change)                                                               \
    [] {                                                                             \
        Shape shape = test::small_shape(2);                                          \
        std::shared_ptr<Group> group;                                                \
        EXPECT_TRUE(Group::in_process(2, {}, &group).ok());                          \
        auto weights = test::packed_layer(shape)[0];                                 \
        std::unique_ptr<Operator> op, other;                                         \
        Status first;                                                                \
        int rank = 0;                                                                \
        const auto create = [&](int as) {                                            \
            return Operator::create(shape, weights, group, as, good_options(), &op); \
        };                                                                           \
        return AFTER(change, create(rank));                                          \
    }()

Rows create_rows() {
    return {
        CREATE(weights = nullptr), CREATE(group = nullptr), CREATE(rank = 2), CREATE(rank = 1),
            CREATE(shape.inter = 128), CREATE(first = create(0); op.swap(other)),
    };
}

// One layer of two ranks, whose ranks have not launched.
class Layer {
  public:
    Layer() : layer_(test::small_shape(2), {}, good_options()) {}
    [[nodiscard]] Operator& op() { return layer_.op(0); }
    [[nodiscard]] Operator& peer() { return layer_.op(1); }
    [[nodiscard]] std::int64_t* ids() { return static_cast<std::int64_t*>(op().inputs().topk_idx); }
    [[nodiscard]] Status run(const LaunchArgs& args) {
        GCMOE_RETURN_IF_ERROR(op().launch(args));
        EXPECT_TRUE(peer().launch({}).ok());
        EXPECT_TRUE(peer().synchronize().ok());
        return op().synchronize();
    }

  private:
    test::VirtualLayer layer_;
};

#define LAUNCH(change)                                   \
    [] {                                                 \
        Layer layer;                                     \
        std::vector<std::uint16_t> y(8 * 256);           \
        LaunchArgs args;                                 \
        args.num_tokens = 2;                             \
        args.y = y.data();                               \
        std::fill(layer.ids(), layer.ids() + 8 * 4, -1); \
        return AFTER(change, layer.run(args));           \
    }()

#define INPUTS(change)                                       \
    [] {                                                     \
        Layer layer;                                         \
        HostInputs from;                                     \
        return AFTER(change, layer.op().write_inputs(from)); \
    }()

Rows launch_rows() {
    return {
        LAUNCH(args.num_tokens = -1),
        LAUNCH(args.num_tokens = 9),
        LAUNCH(args.y = nullptr),
        LAUNCH(args.y_stride = 255),
        LAUNCH(args.plan = "prefill"),
        LAUNCH(args.before = [] { return 9; }),
        LAUNCH(args.before = []() -> int { throw std::runtime_error("no batch"); }),
        LAUNCH(args.after = [] { throw std::runtime_error("no reader"); }),
        LAUNCH(layer.ids()[5] = 16),
        INPUTS(from.num_rows = 9),
        INPUTS(from.num_rows = 1),
    };
}

#define CALL(call)               \
    [] {                         \
        Layer layer;             \
        return Row{#call, call}; \
    }()

Rows other_rows() {
    std::string text;
    return {
        CALL(layer.op().check_inputs(9)),
        CALL((layer.ids()[5] = 16, layer.op().check_inputs(2))),
        CALL(Operator::reset({}, true)),
        CALL(Operator::reset({nullptr}, true)),
        CALL(Operator::reset({&layer.op()}, true)),
        CALL(Operator::reset({&layer.op(), &layer.op()}, true)),
        Row{"Operator::trace_json({}, \"\", &text)", Operator::trace_json({}, "", &text)},
        [&] {
            Layer layer;
            return Row{"Operator::trace_json({&layer.op()}, \"\", &text)",
                       Operator::trace_json({&layer.op()}, "", &text)};
        }(),
    };
}

std::vector<std::string> table(const std::string& title, const Rows& rows) {
    std::vector<std::string> lines = {"### " + title, "", "| input | code | says |",
                                      "|---|---|---|"};
    for (const Row& row : rows) {
        EXPECT_FALSE(row.status.ok()) << row.input << " was accepted";
        lines.push_back(fmt::format("| `{}` | {} | {} |", row.input, code_name(row.status.code()),
                                    row.status.message()));
    }
    lines.emplace_back();
    return lines;
}

std::vector<std::string> tables() {
    std::vector<std::string> lines;
    for (const auto& [title, rows] :
         {std::pair{"`validate(shape)`", shape_rows()},
          std::pair{"`capability`, `size_report`, `create`: options", option_rows()},
          std::pair{"`capability`, `size_report`, `create`: plans", plan_rows()},
          std::pair{"`validate(partition)` on a GPU", partition_rows()},
          std::pair{"`Group::in_process`, `Group::join_host`", group_rows()},
          std::pair{"`PackedWeights::pack`", pack_rows()},
          std::pair{"`Operator::create`", create_rows()},
          std::pair{"`write_inputs`, `launch`, `synchronize`", launch_rows()},
          std::pair{"`check_inputs`, `reset`, `trace_json`", other_rows()}}) {
        for (const std::string& line : table(title, rows)) lines.push_back(line);
    }
    return lines;
}

TEST(Refusals, StandInTheDocumentAsTheLibrarySaysThem) {
    if (std::getenv("GCMOE_SOURCE_DIR") == nullptr) {
        GTEST_SKIP() << "GCMOE_SOURCE_DIR is not set; ctest sets it";
    }
    const std::vector<std::string> now = tables();
    if (std::getenv("GCMOE_WRITE_DOCUMENTS") != nullptr) {
        test::rewrite_document("refusals.md", "library", now);
    }
    const std::vector<std::string> written = test::document_lines("refusals.md", "library");
    ASSERT_EQ(written.size(), now.size()) << "./dev refusals rewrites the tables";
    for (std::size_t at = 0; at < now.size(); ++at) EXPECT_EQ(written[at], now[at]);
}

}  // namespace
}  // namespace gcmoe
