// docs/limits.md says what the code does: what stands in its table is accepted, the next value is
// refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "documents/document.hpp"
#include "gcmoe/capability.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

// A layer whose every number is in order, before one of them is set to a value of the table.
struct Layer {
    Shape shape = test::small_shape(2);
    OperatorOptions options;

    Layer() {
        options.max_tokens = 8;
        options.plans.resize(1);
        options.plans[0].row_block = 16;
        options.plans[0].ring_blocks = 4;
    }
    [[nodiscard]] PlanOptions& plan() { return options.plans[0]; }
};

using Setter = std::function<void(Layer*, std::int64_t)>;

// max_tokens * topk * tasks = value.
void set_rows_times_tasks(Layer* layer, std::int64_t value) {
    std::int64_t tasks = 1;
    while (value % tasks != 0 || value / tasks >= 1 << 24) ++tasks;
    layer->shape.topk = 1;
    layer->options.max_tokens = static_cast<int>(value / tasks);
    layer->shape.hidden = static_cast<int>(128 * tasks);
    layer->plan().second_columns = 128;
}

std::map<std::string, Setter> setters() {
    const auto number = [](std::int64_t value) { return static_cast<int>(value); };
    return {
        {"hidden", [=](Layer* l, std::int64_t v) { l->shape.hidden = number(v); }},
        {"inter", [=](Layer* l, std::int64_t v) { l->shape.inter = number(v); }},
        {"shared_inter", [=](Layer* l, std::int64_t v) { l->shape.shared_inter = number(v); }},
        {"num_ranks",
         [=](Layer* l, std::int64_t v) {
             l->shape.num_ranks = number(v);
             l->shape.num_experts = 72 * 73;
         }},
        {"num_experts / num_ranks",
         [=](Layer* l, std::int64_t v) {
             l->shape.num_experts = number(2 * v);
             l->shape.topk = 1;
         }},
        {"topk", [=](Layer* l, std::int64_t v) { l->shape.topk = number(v); }},
        {"max_tokens", [=](Layer* l, std::int64_t v) { l->options.max_tokens = number(v); }},
        {"max_tokens * topk",
         [=](Layer* l, std::int64_t v) {
             l->shape.topk = 1;
             l->options.max_tokens = number(v);
         }},
        {"max_tokens * topk * hidden / second_columns", set_rows_times_tasks},
        {"plans",
         [=](Layer* l, std::int64_t v) {
             l->options.plans.resize(static_cast<std::size_t>(v));
             for (PlanOptions& plan : l->options.plans) plan.name = std::to_string(--v);
         }},
        {"row_block", [=](Layer* l, std::int64_t v) { l->plan().row_block = number(v); }},
        {"ring_blocks", [=](Layer* l, std::int64_t v) { l->plan().ring_blocks = number(v); }},
        {"second_columns", [=](Layer* l, std::int64_t v) { l->plan().second_columns = number(v); }},
        {"lead_blocks", [=](Layer* l, std::int64_t v) { l->plan().lead_blocks = number(v); }},
        {"dispatch_units + compute_units",
         [=](Layer* l, std::int64_t v) {
             l->plan().partition = {1, number(v - 1)};
         }},
        {"wait_limits, seconds",
         [](Layer* l, std::int64_t v) {
             l->options.wait_limits.steady_s = static_cast<double>(v);
             l->options.wait_limits.first_launch_s = static_cast<double>(v);
         }},
        {"trace_events", [=](Layer* l, std::int64_t v) { l->options.trace_events = number(v); }},
    };
}

// Zero is a default for these, not a value.
const std::set<std::string> kZeroIsChosen = {"shared_inter", "row_block",
                                             "ring_blocks",  "second_columns",
                                             "lead_blocks",  "dispatch_units + compute_units"};

class Limits : public testing::Test {
  protected:
    void SetUp() override {
        if (std::getenv("GCMOE_SOURCE_DIR") == nullptr) {
            GTEST_SKIP() << "GCMOE_SOURCE_DIR is not set; ctest sets it";
        }
    }
    static bool accepts(const std::string& name, std::int64_t value) {
        Layer layer;
        setters().at(name)(&layer, value);
        return capability(layer.shape, layer.options).ok();
    }
    // A number, or a field of the layer that the test takes.
    static std::int64_t value_of(const std::string& cell) {
        if (cell == "num_experts") return Layer().shape.num_experts;
        if (cell == "ring_blocks") return Layer().plan().ring_blocks;
        if (cell == "hidden") return Layer().shape.hidden;
        return std::stoll(cell);
    }
    static void check_row(const std::string& name, const std::vector<std::string>& cells) {
        const std::int64_t least = value_of(cells[1]);
        EXPECT_TRUE(accepts(name, least)) << "least";
        if (least > 0) {
            const std::int64_t below = kZeroIsChosen.count(name) != 0 ? -1 : least - 1;
            EXPECT_FALSE(accepts(name, below)) << "below the least";
        }
        const bool doubles = cells[3] == "twice";
        const std::int64_t step = doubles ? 0 : value_of(cells[3]);
        if (doubles) {
            EXPECT_FALSE(accepts(name, 3)) << "no power of two";
        }
        EXPECT_TRUE(accepts(name, doubles ? 2 * least : least + step)) << "one step up";
        if (step > 1) {
            EXPECT_FALSE(accepts(name, least + 1)) << "between two steps";
        }
        if (cells[2] == "-") return;
        const std::int64_t most = value_of(cells[2]);
        EXPECT_TRUE(accepts(name, most)) << "most";
        EXPECT_FALSE(accepts(name, doubles ? 2 * most : most + step)) << "above the most";
    }
};

TEST_F(Limits, StandInTheDocumentAsInTheCode) {
    std::set<std::string> seen;
    for (const std::string& line : test::document_lines("limits.md", "limits")) {
        const std::vector<std::string> cells = test::table_cells(line);
        if (cells.size() != 5 || cells[0].front() != '`') continue;
        const std::string name = cells[0].substr(1, cells[0].size() - 2);
        SCOPED_TRACE(name);
        ASSERT_EQ(setters().count(name), 1U) << "no limit has this name";
        EXPECT_TRUE(seen.insert(name).second) << "twice";
        EXPECT_FALSE(cells[4].empty()) << "no cause";
        check_row(name, cells);
    }
    for (const auto& [name, setter] : setters()) {
        EXPECT_EQ(seen.count(name), 1U) << name << " is not in the document";
    }
}

}  // namespace
}  // namespace gcmoe
