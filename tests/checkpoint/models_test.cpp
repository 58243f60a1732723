#include "checkpoint/models.hpp"

#include <cmath>

#include "test_files.hpp"

namespace gcmoe::checkpoint {
namespace {

ModelEntry model(const std::string& name) {
    ModelEntry entry;
    expect_ok(find_model(name, &entry));
    return entry;
}

TEST(Models, KnowsTheSuitesModels) {
    const ModelEntry v41 = model("v4.1-flash");
    EXPECT_EQ(v41.hidden, 5120);
    EXPECT_EQ(v41.inter, 2304);
    EXPECT_EQ(v41.num_experts, 384);
    EXPECT_EQ(v41.topk, 6);
    EXPECT_EQ(v41.activation.clamp, 10.0F);
    EXPECT_EQ(v41.shared_grid, ScaleGrid::kUe8m0Block32);
    const ModelEntry glm = model("glm-5.2");
    EXPECT_TRUE(std::isinf(glm.activation.clamp));
    EXPECT_EQ(glm.routed_scale, 2.5F);
    const ModelEntry oss = model("gpt-oss-120b");
    EXPECT_TRUE(oss.has_bias);
    EXPECT_EQ(oss.activation.alpha, 1.702F);
    EXPECT_EQ(oss.activation.beta, 1.0F);
    EXPECT_EQ(oss.shared_inter, 0);
}

TEST(Models, NamesTheKnownOnes) {
    ModelEntry entry;
    expect_error(find_model("v5", &entry), Code::kBadConfig,
                 {"no model 'v5'", "v4-flash, v4.1-flash", "gpt-oss-20b"});
}

TEST(Models, ShapeTakesEverything) {
    const Shape shape = model_shape(model("gpt-oss-20b"), 4);
    EXPECT_EQ(shape.hidden, 2880);
    EXPECT_EQ(shape.num_experts, 32);
    EXPECT_EQ(shape.num_ranks, 4);
    EXPECT_TRUE(shape.has_bias);
    EXPECT_EQ(shape.activation.clamp, 7.0F);
}

TEST(Models, ReducesAsTheSuitesDo) {
    const ModelEntry v41 = reduced(model("v4.1-flash"), 8);
    EXPECT_EQ(v41.hidden, 640);
    EXPECT_EQ(v41.inter, 256);  // 288
    EXPECT_EQ(v41.shared_inter, 256);
    EXPECT_EQ(v41.num_experts, 48);
    EXPECT_EQ(v41.topk, 6);
    const ModelEntry oss = reduced(model("gpt-oss-20b"), 8);
    EXPECT_EQ(oss.hidden, 384);     // 360
    EXPECT_EQ(oss.num_experts, 8);  // 4
    EXPECT_EQ(oss.shared_inter, 0);
    ModelEntry odd = model("v4-flash");
    odd.inter = 768;
    odd.shared_inter = 4608;
    odd.num_experts = 408;
    odd = reduced(odd, 8);
    EXPECT_EQ(odd.inter, 128);         // 96
    EXPECT_EQ(odd.shared_inter, 640);  // 576, a tie
    EXPECT_EQ(odd.num_experts, 48);    // 51
    ModelEntry wide_topk = model("qwen3-30b");
    wide_topk.topk = 10;
    EXPECT_EQ(reduced(wide_topk, 16).num_experts, 16);
}

}  // namespace
}  // namespace gcmoe::checkpoint
