#include "reference/suite.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "gcmoe_suites.hpp"
#include "numerics/e4m3.hpp"
#include "reference/case_inputs.hpp"

namespace gcmoe::reference {
namespace {

constexpr const char* kHeader =
    "name,model,hidden,inter,experts,topk,ranks,tokens,routing,mask,factor,clamp,alpha,beta,biases,"
    "weight_scales,capacity,poison,cpu_experts\n";

std::vector<SuiteCase> suite(const char* name) {
    std::vector<SuiteCase> cases;
    EXPECT_TRUE(parse_suite(suite_csv(name), &cases).ok());
    return cases;
}

SuiteCase find(const char* suite_name, const std::string& name) {
    for (const SuiteCase& one : suite(suite_name)) {
        if (one.name == name) return one;
    }
    ADD_FAILURE() << name;
    return {};
}

std::vector<RankInputs> inputs_of(const SuiteCase& one) {
    std::vector<RankInputs> inputs;
    const Shape shape = case_shape(one, CaseSize::kReduced);
    EXPECT_TRUE(make_all_inputs(one, CaseSize::kReduced, shape, &inputs).ok()) << one.name;
    return inputs;
}

TEST(Suite, BothFilesHold47CasesOf8Ranks) {
    for (const char* name : {"routed", "shared"}) {
        const std::vector<SuiteCase> cases = suite(name);
        EXPECT_EQ(cases.size(), 47U);
        std::set<std::string> names;
        for (const SuiteCase& one : cases) {
            names.insert(one.name);
            EXPECT_EQ(one.ranks, 8);
            EXPECT_EQ(one.tokens.size(), 8U);
        }
        EXPECT_EQ(names.size(), 47U);
    }
}

TEST(Suite, ReadsEveryColumn) {
    const SuiteCase uneven = find("shared", "uneven");
    EXPECT_EQ(uneven.tokens, (std::vector<int>{0, 1, 2, 3, 5, 8, 13, 256}));
    EXPECT_EQ(uneven.capacity, 256);
    EXPECT_EQ(uneven.shared_inter, 2304);
    EXPECT_EQ(uneven.shared_grid, ScaleGrid::kFp32Block128);
    const SuiteCase oss = find("routed", "gpt-oss");
    EXPECT_TRUE(oss.biases);
    EXPECT_EQ(oss.activation.clamp, 7.0F);
    EXPECT_EQ(oss.activation.alpha, 1.702F);
    EXPECT_EQ(oss.activation.beta, 1.0F);
    EXPECT_EQ(oss.shared_inter, 0);
    const SuiteCase hot = find("routed", "hot-x4");
    EXPECT_EQ(hot.routing.kind, Routing::Kind::kHotRank);
    EXPECT_EQ(hot.routing.target, 6);
    EXPECT_EQ(hot.routing.amount, 4.0);
    EXPECT_TRUE(std::isinf(hot.activation.clamp));
    EXPECT_EQ(hot.factor, 2.5);
    const SuiteCase extremes = find("routed", "scale-extremes");
    EXPECT_EQ(extremes.weight_scales.substr(0, 19), "rows_of_codes:1,64,");
    EXPECT_TRUE(extremes.per_column());
    EXPECT_TRUE(find("routed", "poisoned").poison);
}

TEST(Suite, ReducedShapes) {
    const auto reduced = [](const char* suite_name, const char* name) {
        return case_shape(find(suite_name, name), CaseSize::kReduced);
    };
    const Shape v4 = reduced("routed", "v4-flash-t1");
    EXPECT_EQ(v4.hidden, 512);
    EXPECT_EQ(v4.inter, 256);
    EXPECT_EQ(v4.num_experts, 32);
    const Shape v41 = reduced("shared", "v4.1-flash-t16");
    EXPECT_EQ(v41.hidden, 640);
    EXPECT_EQ(v41.inter, 256);  // 288
    EXPECT_EQ(v41.num_experts, 48);
    EXPECT_EQ(v41.shared_inter, 640);  // 576: a half goes up
    const Shape oss = reduced("routed", "gpt-oss");
    EXPECT_EQ(oss.hidden, 384);
    EXPECT_EQ(oss.inter, 384);
    EXPECT_EQ(oss.num_experts, 16);
    EXPECT_EQ(reduced("routed", "inter-768").inter, 128);
    EXPECT_EQ(reduced("routed", "odd-experts").num_experts, 56);
    EXPECT_EQ(reduced("routed", "draft-shape").num_experts, 16);
    EXPECT_EQ(reduced("routed", "v4.1-flash-t8").inter, 2304);
    EXPECT_EQ(reduced("routed", "glm-5.2-t16").inter, 2048);
    EXPECT_EQ(reduced("routed", "masked-30").inter, 256);
    const Shape masked = reduced("shared", "masked-30");
    EXPECT_EQ(masked.inter, 2304);
    EXPECT_EQ(masked.shared_inter, 4608);
    const Shape full = case_shape(find("shared", "gpt-oss"), CaseSize::kFull);
    EXPECT_EQ(full.hidden, 2944);
    EXPECT_EQ(live_hidden(find("shared", "gpt-oss"), CaseSize::kFull), 2880);
    EXPECT_EQ(full.shared_inter, 2048);
}

void expect_error(const std::string& line, const std::string& text) {
    std::vector<SuiteCase> cases;
    const Status status = parse_suite(kHeader + line + "\n", &cases);
    EXPECT_EQ(status.code(), Code::kBadInput) << line;
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

TEST(Suite, ErrorsNameLineColumnAndValue) {
    const std::string good = "a,m,4096,2048,256,6,8,1,uniform,0.0,1.5,10.0,1.0,0.0,0,normal,1,0,0";
    std::vector<SuiteCase> cases;
    EXPECT_TRUE(parse_suite(kHeader + good + "\n", &cases).ok());
    EXPECT_TRUE(parse_suite(kHeader + good + "\r\n\n", &cases).ok());
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string line = good;
        return line.replace(line.find(from), from.size(), to);
    };
    expect_error("a,b,c", "line 2: 3 fields, expected 19");
    expect_error(with("a,m", "\"a,m"), "line 2");
    expect_error(with("4096", "4O96"), "line 2: hidden = '4O96' is not a whole number");
    expect_error(with(",256,", ",257,"), "experts = '257' is no multiple of ranks");
    expect_error(with(",6,8,", ",300,8,"), "topk = '300'");
    expect_error(with(",1,uniform", ",2,uniform"), "tokens = '2' is not in 0..capacity = 1");
    expect_error(with(",1,uniform", ",1 1 1,uniform"), "tokens = '1 1 1' needs one number, or 8");
    expect_error(with("uniform", "uniformly"), "routing = 'uniformly' is no routing rule");
    expect_error(with("uniform", "only_expert:256"), "routing = 'only_expert:256'");
    expect_error(with("uniform", "only_rank:8"), "routing = 'only_rank:8'");
    expect_error(with("uniform", "hot_rank:1:9"), "routing = 'hot_rank:1:9'");
    expect_error(with("uniform", "zipf:nan"), "routing = 'zipf:nan'");
    expect_error(with("uniform", "first_twice:1"), "routing = 'first_twice:1'");
    expect_error(with("0.0,1.5", "1.1,1.5"), "mask = '1.1' is not a number in 0..1");
    expect_error(with("10.0", "on"), "clamp = 'on' is not a number");
    expect_error(with("0,normal", "2,normal"), "biases = '2'");
    expect_error(with("normal", ""), "weight_scales = '' is empty");
    EXPECT_EQ(parse_suite("name,model\n", &cases).code(), Code::kBadInput);
    EXPECT_EQ(parse_suite(kHeader, &cases).code(), Code::kBadInput);
    EXPECT_EQ(parse_suite("", &cases).code(), Code::kBadInput);
}

// --- Inputs ------------------------------------------------------------------------------------

TEST(Inputs, DependOnNameAndRankOnly) {
    const SuiteCase one = find("routed", "v4-flash-t4");
    const std::vector<RankInputs> first = inputs_of(one);
    const std::vector<RankInputs> again = inputs_of(find("shared", "v4-flash-t4"));
    EXPECT_EQ(first[3].x, again[3].x);
    EXPECT_EQ(first[3].topk_idx, again[3].topk_idx);
    EXPECT_EQ(first[3].topk_weight, again[3].topk_weight);
    EXPECT_NE(first[3].x, first[4].x);
    SuiteCase renamed = one;
    renamed.name += "x";
    EXPECT_NE(inputs_of(renamed)[3].x, first[3].x);
}

TEST(Inputs, ActivationsHaveDeviationOne) {
    const SuiteCase one = find("routed", "v4-flash-t16");
    const RankInputs inputs = inputs_of(one)[0];
    double squares = 0.0;
    for (std::size_t i = 0; i < inputs.x.size(); ++i) {
        const double value = static_cast<double>(numerics::e4m3_to_float(inputs.x[i])) *
                             static_cast<double>(numerics::bits_to_float(inputs.x_scale[i / 128]));
        squares += value * value;
    }
    EXPECT_NEAR(squares / static_cast<double>(inputs.x.size()), 1.0, 0.05);
}

TEST(Inputs, PowerOfTwoScalesStandForTheSameNumbers) {
    const SuiteCase one = find("routed", "scale-extremes");
    Shape shape = case_shape(one, CaseSize::kReduced);
    RankInputs floats;
    ASSERT_TRUE(make_inputs(one, CaseSize::kReduced, shape, 0, &floats).ok());
    shape.activation_scale = ActivationScale::kUe8m0K32;
    RankInputs powers;
    ASSERT_TRUE(make_inputs(one, CaseSize::kReduced, shape, 0, &powers).ok());
    for (std::size_t i = 0; i < 640; ++i) {
        const int shift = static_cast<int>(i % 128 / 32 * 8);
        const int exponent = static_cast<int>(powers.x_scale[i / 128] >> shift & 0xFF) - 127;
        const double power = std::ldexp(numerics::e4m3_to_float(powers.x[i]), exponent);
        const double plain = static_cast<double>(numerics::e4m3_to_float(floats.x[i])) *
                             static_cast<double>(numerics::bits_to_float(floats.x_scale[i / 128]));
        EXPECT_NEAR(power, plain, 0.15 * std::abs(plain) + 0x1p-28);
    }
}

TEST(Inputs, ChosenExpertsAreDistinctAndInRange) {
    for (const SuiteCase& one : suite("routed")) {
        const Shape shape = case_shape(one, CaseSize::kReduced);
        for (const RankInputs& inputs : inputs_of(one)) {
            for (int token = 0; token < inputs.num_tokens; ++token) {
                std::multiset<std::int64_t> ids;
                for (int slot = 0; slot < shape.topk; ++slot) {
                    const std::int64_t id = expert_of(shape, inputs, token, slot);
                    ASSERT_TRUE(id == -1 || slot_is_live(shape, id)) << one.name << " " << id;
                    if (id >= 0) ids.insert(id);
                }
                const std::set<std::int64_t> distinct(ids.begin(), ids.end());
                const bool twice = one.routing.kind == Routing::Kind::kFirstTwice;
                EXPECT_EQ(distinct.size() + (twice ? 1 : 0), ids.size()) << one.name;
            }
        }
    }
}

TEST(Inputs, WeightsOfATokenSumToTheFactor) {
    for (const char* name : {"v4-flash-t8", "glm-5.2-t8", "twice", "one-expert", "zipf-1.2"}) {
        const SuiteCase one = find("routed", name);
        const Shape shape = case_shape(one, CaseSize::kReduced);
        const RankInputs inputs = inputs_of(one)[2];
        for (int token = 0; token < inputs.num_tokens; ++token) {
            double sum = 0.0;
            for (int slot = 0; slot < shape.topk; ++slot) {
                sum += static_cast<double>(
                    inputs.topk_weight[static_cast<std::size_t>(token * shape.topk + slot)]);
            }
            EXPECT_NEAR(sum, one.factor, 1e-5) << name;
        }
    }
}

// Live slots by rank that owns the expert.
std::vector<std::int64_t> slots_by_owner(const SuiteCase& one) {
    const Shape shape = case_shape(one, CaseSize::kReduced);
    std::vector<std::int64_t> slots(8, 0);
    for (const RankInputs& inputs : inputs_of(one)) {
        for (int token = 0; token < inputs.num_tokens; ++token) {
            for (int slot = 0; slot < shape.topk; ++slot) {
                const std::int64_t id = expert_of(shape, inputs, token, slot);
                if (id >= 0) ++slots[static_cast<std::size_t>(id / shape.experts_per_rank())];
            }
        }
    }
    return slots;
}

TEST(Inputs, UniformLoadIsUniform) {
    for (const std::int64_t slots : slots_by_owner(find("routed", "v4-flash-t256"))) {
        EXPECT_NEAR(static_cast<double>(slots), 8 * 256 * 6 / 8, 150);
    }
}

TEST(Inputs, OneExpertOneRankAndHotRank) {
    const std::vector<std::int64_t> expert = slots_by_owner(find("routed", "one-expert"));
    EXPECT_EQ(expert[5 / 4], 8 * 40);  // expert 5 of 32 on 8 ranks; one slot a token
    const std::vector<std::int64_t> rank = slots_by_owner(find("routed", "one-rank"));
    EXPECT_EQ(rank[2], 8 * 24 * 6);
    EXPECT_EQ(rank[1], 0);
    const std::vector<std::int64_t> hot = slots_by_owner(find("routed", "hot-x4"));
    EXPECT_EQ(hot[6], 4 * (8 * 64 * 8) / 8);
}

TEST(Inputs, ZipfLoadsFallWithTheRankOfTheExpert) {
    SuiteCase one = find("routed", "zipf-1.2");
    one.topk = 1;  // without replacement flattens the head
    one.tokens.assign(8, 256);
    one.capacity = 256;
    const Shape shape = case_shape(one, CaseSize::kReduced);
    std::vector<int> loads(static_cast<std::size_t>(shape.num_experts), 0);
    for (const RankInputs& inputs : inputs_of(one)) {
        for (const std::int64_t id : inputs.topk_idx) ++loads[static_cast<std::size_t>(id)];
    }
    std::sort(loads.rbegin(), loads.rend());
    double total = 0.0;
    for (int i = 1; i <= shape.num_experts; ++i) total += std::pow(i, -1.2);
    EXPECT_NEAR(loads[0], 2048 / total, 60);
    EXPECT_NEAR(loads[1], 2048 / total * std::pow(2.0, -1.2), 60);
}

TEST(Inputs, MaskSharesAreMet) {
    const auto share = [](const char* name) {
        const SuiteCase one = find("routed", name);
        double live = 0.0;
        double all = 0.0;
        for (const RankInputs& inputs : inputs_of(one)) {
            live +=
                static_cast<double>(num_live_slots(case_shape(one, CaseSize::kReduced), inputs));
            all += inputs.num_tokens * one.topk;
        }
        return 1.0 - live / all;
    };
    EXPECT_NEAR(share("masked-30"), 0.3, 0.04);
    EXPECT_NEAR(share("masked-70"), 0.7, 0.04);
    EXPECT_EQ(share("masked-all"), 1.0);
    EXPECT_EQ(share("v4-flash-t8"), 0.0);
}

TEST(Inputs, PoisonFillsWhatNobodyMayRead) {
    const SuiteCase one = find("routed", "poisoned");
    const RankInputs inputs = inputs_of(one)[0];
    EXPECT_EQ(inputs.num_tokens, 11);
    EXPECT_EQ(inputs.capacity, 256);
    const Shape shape = case_shape(one, CaseSize::kReduced);
    const auto hidden = static_cast<std::size_t>(shape.hidden);
    EXPECT_NE(inputs.x[11 * hidden - 1], 0xFF);
    EXPECT_EQ(inputs.x[11 * hidden], 0xFF);
    EXPECT_EQ(inputs.x_scale[11 * hidden / 128], 0xFFFFFFFFU);
    EXPECT_TRUE(std::isnan(inputs.topk_weight[66]));
    EXPECT_TRUE(slot_is_live(shape, inputs.topk_idx[66]));  // counted if anybody looks
    SuiteCase masked = one;
    masked.mask = 1.0;
    EXPECT_TRUE(std::isnan(inputs_of(masked)[0].topk_weight[0]));
}

TEST(Inputs, TooFewExpertsIsAnError) {
    SuiteCase one = find("routed", "one-rank");
    one.topk = 7;
    Shape shape = case_shape(one, CaseSize::kReduced);
    RankInputs inputs;
    EXPECT_EQ(make_inputs(one, CaseSize::kReduced, shape, 0, &inputs).code(), Code::kBadInput);
}

}  // namespace
}  // namespace gcmoe::reference
