// What a tuning writes is what plans read.
#include "tools/gcmoe/tune_table.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "plan/tuned_text.hpp"

namespace gcmoe::cli {
namespace {

using plan::TunedTable;

TunedTable table_of(const std::string& text) {
    TunedTable table;
    const Status status = plan::parse_tuned_table(text, "test", &table);
    EXPECT_TRUE(status.ok()) << status.message();
    return table;
}

TEST(TuneTable, WritesWhatIsRead) {
    const std::string given = std::string(test::kTunedHead) + test::kTunedEntry;
    std::string text;
    ASSERT_TRUE(tuned_text(table_of(given), &text).ok());
    EXPECT_EQ(text, given);
}

TEST(TuneTable, WritesDerivedTablesAndThoseThatKeepTheRules) {
    const TunedTable from = table_of(std::string(test::kTunedHead) + test::kTunedEntry);
    TunedTable derived;
    ASSERT_TRUE(plan::derive_table(from, "NVIDIA H20", 78, &derived).ok());
    std::string text;
    ASSERT_TRUE(tuned_text(derived, &text).ok());
    EXPECT_NE(text.find("\"derived_from\":\"NVIDIA H200, 132 SMs\""), std::string::npos) << text;
    EXPECT_NE(text.find("\"median_us\":null,\"default_us\":null"), std::string::npos) << text;
    EXPECT_EQ(table_of(text).entries.front().options.partition.dispatch_units, 4);
    TunedTable kept = from;
    kept.entries.front().options = {};
    ASSERT_TRUE(tuned_text(kept, &text).ok());
    EXPECT_NE(text.find("\"options\":{}"), std::string::npos) << text;
    EXPECT_TRUE(table_of(text).entries.front().keeps_rules());
}

TEST(TuneTable, NeverWritesWhatCannotBeRead) {
    TunedTable table = table_of(std::string(test::kTunedHead) + test::kTunedEntry);
    table.entries.push_back(table.entries.front());
    std::string text;
    const Status status = tuned_text(table, &text);
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_NE(status.message().find("overlaps"), std::string::npos) << status.message();
}

TEST(TuneTable, FilesAreReplacedOnlyByForce) {
    const std::string path = testing::TempDir() + "gcmoe_tune_table.jsonl";
    std::ofstream(path) << "precious";
    const TunedTable table = table_of(std::string(test::kTunedHead) + test::kTunedEntry);
    TunedFile refused;
    const Status status = refused.open(path, false);
    EXPECT_NE(status.message().find("--force"), std::string::npos) << status.message();
    {
        TunedFile unfinished;
        ASSERT_TRUE(unfinished.open(path, true).ok());
    }
    std::ifstream before(path);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(before), {}), "precious");
    TunedFile file;
    ASSERT_TRUE(file.open(path, true).ok());
    ASSERT_TRUE(file.write(table).ok());
    TunedTable back;
    EXPECT_TRUE(plan::read_tuned_table(path, &back).ok());
    std::remove(path.c_str());
    TunedFile nowhere;
    ASSERT_TRUE(nowhere.open("", false).ok());
    EXPECT_TRUE(nowhere.write(table).ok());
}

}  // namespace
}  // namespace gcmoe::cli
