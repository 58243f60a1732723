// The tuned tables that the library carries.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "plan/choose_plan.hpp"
#include "plan/shipped_tables.hpp"
#include "plan/tuned_table.hpp"

namespace gcmoe {
namespace {

using plan::TunedEntry;
using plan::TunedTable;

std::string file_text(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// What the library carries is what stands in src/plan/tuned, all of it.
TEST(ShippedTables, AreTheFilesOfTheSources) {
    const char* source = std::getenv("GCMOE_SOURCE_DIR");
    if (source == nullptr) GTEST_SKIP() << "GCMOE_SOURCE_DIR is not set";
    std::size_t files = 0;
    for (const auto& file :
         std::filesystem::directory_iterator(std::string(source) + "/src/plan/tuned")) {
        if (file.path().extension() != ".jsonl") continue;
        ++files;
        const std::string name = file.path().stem().string();
        bool found = false;
        for (const auto& [shipped, text] : plan::shipped_table_texts()) {
            if (shipped != name) continue;
            found = true;
            EXPECT_EQ(text, file_text(file.path())) << name;
        }
        EXPECT_TRUE(found) << name;
    }
    EXPECT_EQ(files, plan::shipped_table_texts().size());
    EXPECT_EQ(files, 6U);
}

TEST(ShippedTables, EveryEntryMakesAPlanOnItsGpu) {
    for (const TunedTable& table : plan::shipped_tables()) {
        for (const TunedEntry& entry : table.entries) {
            for (int tokens = entry.from; tokens <= entry.to; ++tokens) {
                backend::Plan plan;
                const Status status =
                    plan::choose_plan(plan::shape_of(entry.layer), tokens, entry.options,
                                      plan::gpu_machine(table.sms, 1), &plan);
                EXPECT_TRUE(status.ok()) << status.message();
            }
        }
    }
}

// Where the gain is below the table's threshold the rules' plan stays.
TEST(ShippedTables, ChangeNoPlanForNoise) {
    for (const TunedTable& table : plan::shipped_tables()) {
        EXPECT_GE(table.threshold_percent, 1.0) << table.where;
        for (const TunedEntry& entry : table.entries) {
            EXPECT_GE(entry.counts.generated, 200) << table.where << ", line " << entry.line;
            if (table.is_derived() || entry.keeps_rules()) continue;
            EXPECT_GT(entry.gain_percent(), table.threshold_percent)
                << table.where << ", line " << entry.line;
        }
    }
}

// The table of a name; none: without a head.
TunedTable shipped_table(const std::string& name) {
    TunedTable table;
    for (const auto& [shipped, text] : plan::shipped_table_texts()) {
        if (shipped != name) continue;
        EXPECT_TRUE(plan::parse_tuned_table(text, name, &table).ok()) << name;
    }
    return table;
}

void expect_same_plans(const TunedTable& shipped, const TunedTable& derived) {
    EXPECT_EQ(shipped.derived_from, derived.derived_from);
    ASSERT_EQ(shipped.entries.size(), derived.entries.size());
    for (std::size_t i = 0; i < derived.entries.size(); ++i) {
        const TunedEntry& is = shipped.entries[i];
        const TunedEntry& wanted = derived.entries[i];
        EXPECT_EQ(is.layer, wanted.layer) << i;
        EXPECT_EQ(is.from, wanted.from) << i;
        EXPECT_EQ(is.to, wanted.to) << i;
        EXPECT_EQ(is.options.partition.dispatch_units, wanted.options.partition.dispatch_units);
        EXPECT_EQ(is.options.partition.compute_units, wanted.options.partition.compute_units);
        EXPECT_EQ(is.options.row_block, wanted.options.row_block) << i;
        EXPECT_EQ(is.options.ring_blocks, wanted.options.ring_blocks) << i;
        EXPECT_EQ(is.options.lead_blocks, wanted.options.lead_blocks) << i;
        EXPECT_EQ(is.options.combine, wanted.options.combine) << i;
    }
}

// H20: what derive_table makes of the H200's tables, under its label.
TEST(ShippedTables, TheH20sAreDerivedFromTheH200s) {
    for (const std::string kind : {"", "-shared", "-shared-v41-flash"}) {
        SCOPED_TRACE(kind);
        const TunedTable h200 = shipped_table("h200" + kind);
        const TunedTable h20 = shipped_table("h20" + kind);
        EXPECT_EQ(h200.sms, plan::kH200Sms);
        EXPECT_EQ(h20.sms, 78);
        EXPECT_FALSE(h200.is_derived());
        EXPECT_TRUE(h20.is_derived());
        TunedTable derived;
        ASSERT_TRUE(plan::derive_table(h200, h20.gpu, 78, &derived).ok());
        expect_same_plans(h20, derived);
    }
}

}  // namespace
}  // namespace gcmoe
