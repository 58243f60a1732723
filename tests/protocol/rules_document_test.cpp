// docs/protocol.md and the code say the same: every rule of rules.hpp stands in the table with the
// test that catches its loss, and that test is in this binary.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "protocol/rules.hpp"

namespace gcmoe {
namespace {

constexpr int kNumRules = static_cast<int>(protocol::Rule::kCount) - 1;

std::string read_source(const std::string& path) {
    const char* root = std::getenv("GCMOE_SOURCE_DIR");
    if (root == nullptr) return {};
    std::ifstream file(std::string(root) + "/" + path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// Rule number -> name without its k, from the comments of rules.hpp.
std::map<int, std::string> rules_in_code() {
    std::map<int, std::string> rules;
    const std::string text = read_source("src/protocol/rules.hpp");
    const std::regex line(R"(\bk(\w+)( = 1)?,\s*// R(\d+) )");
    for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it) {
        rules[std::stoi((*it)[3])] = (*it)[1];
    }
    return rules;
}

struct Row {
    std::string name;
    std::string tests;
};

// Rule number -> row, from the table of docs/protocol.md: | R1 | `Name` | rule | loss | tests |.
std::map<int, Row> rules_in_document() {
    std::map<int, Row> rows;
    std::istringstream text(read_source("docs/protocol.md"));
    const std::regex row(R"(\| R(\d+) \| `(\w+)` \|.*\|.*\|(.*)\|)");
    std::string line;
    std::smatch match;
    while (std::getline(text, line)) {
        if (!std::regex_match(line, match, row)) continue;
        EXPECT_EQ(rows.count(std::stoi(match[1])), 0U) << "R" << match[1] << " stands there twice";
        rows[std::stoi(match[1])] = {match[2], match[3]};
    }
    return rows;
}

std::set<std::string> tests_in_binary() {
    std::set<std::string> names;
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    for (int i = 0; i < all.total_test_suite_count(); ++i) {
        const testing::TestSuite& suite = *all.GetTestSuite(i);
        for (int j = 0; j < suite.total_test_count(); ++j) {
            names.insert(std::string(suite.name()) + "." + suite.GetTestInfo(j)->name());
        }
    }
    return names;
}

class RulesDocument : public testing::Test {
  protected:
    void SetUp() override {
        if (std::getenv("GCMOE_SOURCE_DIR") == nullptr) {
            GTEST_SKIP() << "GCMOE_SOURCE_DIR is not set; ctest sets it";
        }
    }
};

TEST_F(RulesDocument, NamesEveryRule) {
    const auto code = rules_in_code();
    const auto document = rules_in_document();
    ASSERT_EQ(static_cast<int>(code.size()), kNumRules);
    ASSERT_EQ(static_cast<int>(document.size()), kNumRules);
    for (int number = 1; number <= kNumRules; ++number) {
        ASSERT_EQ(code.count(number), 1U) << "R" << number;
        ASSERT_EQ(document.count(number), 1U) << "R" << number;
        EXPECT_EQ(document.at(number).name, code.at(number)) << "R" << number;
    }
}

TEST_F(RulesDocument, NamesTestsThatExist) {
    const std::set<std::string> tests = tests_in_binary();
    const std::regex test_name(R"(`(\w+\.(R\d+)\w*)`)");
    for (const auto& [number, row] : rules_in_document()) {
        std::sregex_iterator it(row.tests.begin(), row.tests.end(), test_name);
        EXPECT_NE(it, std::sregex_iterator()) << "R" << number << " names no test";
        for (; it != std::sregex_iterator(); ++it) {
            EXPECT_EQ((*it)[2], "R" + std::to_string(number)) << (*it)[1];
            EXPECT_EQ(tests.count((*it)[1]), 1U) << (*it)[1] << " is not in this binary";
        }
    }
}

// The other way round: each mutant's test is named in the table.
TEST_F(RulesDocument, NamesEveryMutant) {
    const auto document = rules_in_document();
    const std::regex mutant(R"((Mutants|RedundantRules)\.R(\d+)\w*)");
    for (const std::string& name : tests_in_binary()) {
        std::smatch match;
        if (!std::regex_match(name, match, mutant)) continue;
        const auto row = document.find(std::stoi(match[2]));
        ASSERT_NE(row, document.end()) << name;
        EXPECT_NE(row->second.tests.find("`" + name + "`"), std::string::npos) << name;
    }
}

}  // namespace
}  // namespace gcmoe
