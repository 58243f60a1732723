// Tuned tables: what the reader takes, every kind of line that it refuses, look-up, derivation.
#include "plan/tuned_table.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>

#include "op/refusal.hpp"
#include "plan/choose_plan.hpp"
#include "plan/tuned_text.hpp"

namespace gcmoe {
namespace {

using plan::TunedEntry;
using plan::TunedTable;
using test::expect_refused;
using test::kTunedEntry;
using test::kTunedHead;
using test::replaced;

Status parse(const std::string& text, TunedTable* table) {
    return plan::parse_tuned_table(text, "tuned table 'x'", table);
}

TunedTable parsed(const std::string& text) {
    TunedTable table;
    const Status status = parse(text, &table);
    EXPECT_TRUE(status.ok()) << status.message();
    return table;
}

TEST(TunedTables, HoldWhatTheTextSays) {
    for (const bool ends_in_newline : {true, false}) {
        std::string text = std::string(kTunedHead) + kTunedEntry;
        if (!ends_in_newline) text.pop_back();
        const TunedTable table = parsed(text);
        EXPECT_EQ(table.gpu, "NVIDIA H200");
        EXPECT_EQ(table.sms, 132);
        EXPECT_EQ(table.driver, "580.1");
        EXPECT_EQ(table.commit, "abc");
        EXPECT_EQ(table.seeds, (std::vector<int>{0, 1, 2}));
        EXPECT_FALSE(table.is_derived());
        ASSERT_EQ(table.entries.size(), 1U);
        const TunedEntry& entry = table.entries.front();
        EXPECT_EQ(entry.model, "v4.1-flash");
        EXPECT_EQ(entry.layer, plan::tuned_layer(test::tuned_shape()));
        EXPECT_EQ(entry.from, 17);
        EXPECT_EQ(entry.to, 32);
        EXPECT_EQ(entry.line, 2);
        EXPECT_EQ(entry.options.partition.dispatch_units, 6);
        EXPECT_EQ(entry.options.partition.compute_units, 126);
        EXPECT_EQ(entry.options.row_block, 24);
        EXPECT_EQ(entry.options.ring_blocks, 32);
        EXPECT_EQ(entry.options.lead_blocks, 10);
        EXPECT_EQ(entry.options.combine, CombineUnits::kCompute);
        EXPECT_EQ(entry.launch, LaunchMode::kEager);
        EXPECT_EQ(entry.counts.measured, 184);
        EXPECT_FALSE(entry.keeps_rules());
        EXPECT_NEAR(entry.gain_percent(), 3.65, 0.01);
    }
}

// A line of the table with one thing changed, and what the refusal must name.
struct Damage {
    const char* name;
    const char* from;
    const char* to;
    std::vector<std::string> words;
};
void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

class TunedHead : public testing::TestWithParam<Damage> {};
TEST_P(TunedHead, IsRefused) {
    const std::string head = replaced(kTunedHead, GetParam().from, GetParam().to);
    ASSERT_FALSE(head.empty());
    TunedTable table;
    const Status status = parse(head + kTunedEntry, &table);
    expect_refused(status, Code::kBadConfig, GetParam().words);
    expect_refused(status, Code::kBadConfig, {"tuned table 'x', line 1"});
    EXPECT_TRUE(table.entries.empty());
}

class TunedLine : public testing::TestWithParam<Damage> {};
TEST_P(TunedLine, IsRefused) {
    const std::string entry = replaced(kTunedEntry, GetParam().from, GetParam().to);
    ASSERT_FALSE(entry.empty());
    TunedTable table;
    const Status status = parse(kTunedHead + entry, &table);
    expect_refused(status, Code::kBadConfig, GetParam().words);
    expect_refused(status, Code::kBadConfig, {"tuned table 'x', line 2"});
}

const Damage kHeads[] = {
    {"OtherKind", "gcmoe-tuned", "gcmoe-bench", {"kind = \"gcmoe-bench\"", "gcmoe-tuned"}},
    {"NextVersion", "\"version\":1", "\"version\":2", {"version = 2", "1..1"}},
    {"VersionAsText", "\"version\":1", "\"version\":\"1\"", {"version = \"1\"", "1..1"}},
    {"VersionMissing", "\"version\":1,", "", {"version is missing"}},
    {"NoGpu", "\"NVIDIA H200\"", "\"\"", {"gpu = \"\"", "not empty"}},
    {"FewSms", "132", "1", {"sms = 1", "2..1024"}},
    {"ManySms", "132", "1025", {"sms = 1025", "2..1024"}},
    {"HugeSms", "132", "18446744073709551615", {"sms = 18446744073709551615"}},
    {"HalfAnSm", "132", "131.5", {"sms = 131.5", "whole number"}},
    {"NoSeeds", "[0,1,2]", "[]", {"seeds = []"}},
    {"SeedsAsNumber", "[0,1,2]", "3", {"seeds = 3"}},
    {"NegativeSeed", "[0,1,2]", "[0,-1]", {"seeds = [0,-1]"}},
    {"NothingTimed", "\"timed\":30", "\"timed\":0", {"timed = 0", "1..100000"}},
    {"Threshold", ":1.0", ":101", {"threshold_percent = 101", "0..100"}},
    {"UnknownField", "\"warm\"", "\"colour\":1,\"warm\"", {"'colour'", "unknown"}},
    {"FieldTwice", "\"warm\"", "\"sms\":132,\"warm\"", {"'sms'", "twice"}},
    {"NoObject", kTunedHead, "[1,2]\n", {"[1,2]", "object"}},
    {"NoJson", "{", "", {"not valid JSON"}},
    {"EmptyLine", kTunedHead, "\n", {"not valid JSON"}},
};

const Damage kEntries[] = {
    {"OtherKind", "\"entry\"", "\"layer\"", {"kind = \"layer\"", "entry"}},
    {"HiddenUneven", "5120", "5000", {"hidden = 5000", "128"}},
    {"HiddenNegative", "5120", "-128", {"hidden = -128"}},
    {"InterWide", "2304", "8320", {"inter = 8320", "8192"}},
    {"TopkOverExperts", "\"topk\":6", "\"topk\":49", {"topk = 49", "48"}},
    {"BiasAsNumber", "false", "0", {"bias = 0", "true or false"}},
    {"UnknownScale", "fp32-k128", "bf16", {"activation_scale = \"bf16\"", "ue8m0-k32"}},
    {"BandTurned", "\"from\":17", "\"from\":33", {"from = 33", "to = 32"}},
    {"BandFromZero", "\"from\":17", "\"from\":0", {"from = 0"}},
    {"MeasuredOutside", "\"tokens\":32", "\"tokens\":33", {"tokens = 33", "17..32"}},
    {"RowBlockUneven", "\"row_block\":24", "\"row_block\":20", {"row_block = 20", "of 8"}},
    {"RowBlockAbove", "\"row_block\":24", "\"row_block\":72", {"row_block = 72", "8..64"}},
    {"RingNoPower", "\"ring_blocks\":32", "\"ring_blocks\":33", {"ring_blocks = 33", "power"}},
    {"LeadOverRing", "\"lead_blocks\":10", "\"lead_blocks\":33", {"lead_blocks = 33", "= 32"}},
    {"TooManySms", "\"compute_units\":126", "\"compute_units\":128", {"6 + 128 = 134", "132"}},
    {"OneSm", "\"dispatch_units\":6", "\"dispatch_units\":1", {"dispatch_units = 1", "least 2"}},
    {"HalfAPartition", ",\"compute_units\":126", "", {"stand together"}},
    {"CombineWord", "\"compute\"}", "\"both\"}", {"combine = \"both\"", "follow", "dispatch"}},
    {"OptionsAsList", "{\"dispatch", "[{\"dispatch", {"line 2"}},
    {"UnknownOption", "\"row_block\"", "\"rowblock\"", {"options", "'rowblock'", "unknown"}},
    {"LaunchWord", "eager", "later", {"launch = \"later\"", "graph"}},
    {"NoTime", "250.5", "null", {"median_us = null"}},
    {"TimeZero", "250.5", "0", {"median_us = 0"}},
    {"TimeNegative", "260.0", "-1", {"default_us = -1"}},
    {"TimeHuge", "250.5", "1e300", {"median_us = 1e+300"}},
    {"CountsDoNotAddUp", "\"measured\":184", "\"measured\":185", {"= 301", "generated = 300"}},
    {"NothingGenerated", "\"generated\":300", "\"generated\":0", {"generated = 0"}},
    {"UnknownField", "\"model\"", "\"modell\":1,\"model\"", {"'modell'", "unknown"}},
    {"ModelMissing", "\"model\":\"v4.1-flash\",", "", {"model is missing"}},
    {"CutShort", "\"finalists\":6}}", "\"finali", {"not valid JSON"}},
    {"Deep",
     "\"v4.1-flash\"",
     "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
     {"deeper"}},
};

std::string damage_name(const testing::TestParamInfo<Damage>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(, TunedHead, testing::ValuesIn(kHeads), damage_name);
INSTANTIATE_TEST_SUITE_P(, TunedLine, testing::ValuesIn(kEntries), damage_name);

TEST(TunedTables, OverlappingBandsOfALayerAreRefused) {
    const std::string first = std::string(kTunedHead) + kTunedEntry;
    TunedTable table;
    expect_refused(parse(first + kTunedEntry, &table), Code::kBadConfig,
                   {"line 3", "17..32 overlaps 17..32", "line 2"});
    const std::string below = replaced(replaced(kTunedEntry, "\"from\":17", "\"from\":8"),
                                       "\"to\":32,\"tokens\":32", "\"to\":17,\"tokens\":16");
    expect_refused(parse(first + below, &table), Code::kBadConfig, {"line 3", "8..17 overlaps"});
    const std::string next = replaced(replaced(kTunedEntry, "\"from\":17", "\"from\":33"),
                                      "\"to\":32,\"tokens\":32", "\"to\":64,\"tokens\":64");
    EXPECT_EQ(parsed(first + next).entries.size(), 2U);
    EXPECT_EQ(parsed(first + replaced(kTunedEntry, "48", "32")).entries.size(), 2U);
}

TEST(TunedTables, WithoutHeadOrEntryAreRefused) {
    TunedTable table;
    expect_refused(parse("", &table), Code::kBadConfig, {"empty"});
    expect_refused(parse(kTunedHead, &table), Code::kBadConfig, {"no entry"});
    expect_refused(parse(kTunedEntry, &table), Code::kBadConfig, {"line 1", "kind"});
    expect_refused(parse(std::string(kTunedHead) + kTunedHead, &table), Code::kBadConfig,
                   {"line 2", "kind"});
    const std::string large(plan::kMaxTunedBytes + 1, ' ');
    expect_refused(parse(large, &table), Code::kBadConfig, {"4194305 bytes", "4194304"});
    expect_refused(plan::read_tuned_table("/no/such/table", &table), Code::kBadConfig,
                   {"'/no/such/table'", "No such file"});
}

// A damaged byte anywhere is an error or another table; never a plan that cannot be.
TEST(TunedTables, AnyByteMayBeDamaged) {
    const std::string good = std::string(kTunedHead) + kTunedEntry;
    for (std::size_t at = 0; at < good.size(); ++at) {
        for (const char other : {'\0', '"', '9', '\xFF', '\n'}) {
            std::string text = good;
            text[at] = other;
            TunedTable table;
            if (!parse(text, &table).ok()) continue;
            const TunedEntry& entry = table.entries.front();
            backend::Plan plan;
            EXPECT_TRUE(plan::choose_plan(plan::shape_of(entry.layer), entry.to, entry.options,
                                          plan::gpu_machine(table.sms, 1), &plan)
                            .ok())
                << at;
        }
    }
}

TEST(TunedTables, AnEntryIsFoundForItsLayerAlone) {
    const TunedTable table = parsed(std::string(kTunedHead) + kTunedEntry);
    const Shape shape = test::tuned_shape();
    for (const int tokens : {17, 18, 32}) {
        EXPECT_EQ(plan::find_entry(table, shape, tokens, 132), &table.entries.front()) << tokens;
    }
    EXPECT_EQ(plan::find_entry(table, shape, 16, 132), nullptr);
    EXPECT_EQ(plan::find_entry(table, shape, 33, 132), nullptr);
    EXPECT_EQ(plan::find_entry(table, shape, 32, 130), nullptr);
    EXPECT_EQ(plan::find_entry(table, shape, 32, 0), nullptr);
    const std::function<void(Shape*)> changes[] = {
        [](Shape* s) { s->hidden = 4096; },
        [](Shape* s) { s->inter = 2048; },
        [](Shape* s) { s->num_experts = 32; },
        [](Shape* s) { s->topk = 8; },
        [](Shape* s) { s->shared_inter = 2304; },
        [](Shape* s) { s->has_bias = true; },
        [](Shape* s) { s->num_ranks = 2; },
        [](Shape* s) { s->activation_scale = ActivationScale::kUe8m0K32; },
        [](Shape* s) { s->weight_placement = WeightPlacement::kAfterSecondGemm; },
    };
    for (std::size_t i = 0; i < std::size(changes); ++i) {
        Shape other = shape;
        changes[i](&other);
        EXPECT_EQ(plan::find_entry(table, other, 32, 132), nullptr) << i;
    }
}

TEST(TunedTables, DerivedOnesScaleTheSms) {
    const TunedTable h200 = parsed(std::string(kTunedHead) + kTunedEntry);
    TunedTable h20;
    ASSERT_TRUE(plan::derive_table(h200, "NVIDIA H20", 78, &h20).ok());
    EXPECT_EQ(h20.gpu, "NVIDIA H20");
    EXPECT_EQ(h20.sms, 78);
    EXPECT_EQ(h20.derived_from, "NVIDIA H200, 132 SMs");
    const TunedEntry& entry = h20.entries.front();
    EXPECT_EQ(entry.options.partition.dispatch_units, 4);  // 3 pairs * 78 / 132 = 1.8
    EXPECT_EQ(entry.options.partition.compute_units, 74);
    EXPECT_EQ(entry.options.lead_blocks, 6);  // 10 * 78 / 132 = 5.9
    EXPECT_EQ(entry.options.row_block, 24);
    EXPECT_EQ(entry.options.ring_blocks, 32);
    EXPECT_EQ(entry.median_us, 0);
    EXPECT_EQ(entry.gain_percent(), 0);
    // Too small for the kernels' floor of compute SMs.
    TunedTable tiny;
    expect_refused(plan::derive_table(h200, "small", 32, &tiny), Code::kBadConfig,
                   {"compute_units = 30", "32"});
}

TEST(TunedTables, DerivedOnesHaveNoTimes) {
    const std::string head =
        replaced(kTunedHead, "\"derived_from\":null", "\"derived_from\":\"NVIDIA H200\"");
    TunedTable table;
    expect_refused(parse(head + kTunedEntry, &table), Code::kBadConfig,
                   {"median_us = 250.5", "null", "derived"});
    const std::string entry = replaced(replaced(kTunedEntry, "250.5", "null"), "260.0", "null");
    EXPECT_TRUE(parsed(head + entry).is_derived());
}

}  // namespace
}  // namespace gcmoe
