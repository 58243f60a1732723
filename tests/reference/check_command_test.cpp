// gcmoe check as a script sees it: exit codes, the JSON line, expected outputs in files.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace gcmoe {
namespace {

struct Ran {
    int exit_code = -1;
    std::string output;  // stdout and stderr

    [[nodiscard]] nlohmann::json last_line() const {
        const std::size_t end = output.find_last_not_of('\n');
        const std::size_t begin = output.rfind('\n', end);
        return nlohmann::json::parse(output.substr(begin + 1, end - begin), nullptr, false);
    }
};

class CheckCommand : public ::testing::Test {
  protected:
    void SetUp() override {
        const char* command = std::getenv("GCMOE_COMMAND");
        if (command == nullptr || access(command, X_OK) != 0) {
            GTEST_SKIP() << "GCMOE_COMMAND names no command";
        }
        command_ = command;
        folder_ =
            std::filesystem::temp_directory_path() / ("gcmoe-check-" + std::to_string(getpid()));
    }
    void TearDown() override {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }
    [[nodiscard]] Ran check(const std::string& options) const {
        const std::string line = "'" + command_ + "' check " + options + " 2>&1";
        Ran ran;
        FILE* pipe = popen(line.c_str(), "r");
        if (pipe == nullptr) return ran;
        char buffer[4096];
        for (std::size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
            ran.output.append(buffer, n);
        }
        const int status = pclose(pipe);
        ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        return ran;
    }
    void expect_bad_input(const std::string& options, const std::string& text) const {
        const Ran ran = check(options);
        EXPECT_EQ(ran.exit_code, 2) << options << ran.output;
        EXPECT_NE(ran.output.find(text), std::string::npos) << ran.output;
    }

    std::string command_;
    std::filesystem::path folder_;
};

TEST_F(CheckCommand, OneCaseOfBothSuitesPasses) {
    const Ran ran = check("--case v4-flash-t1 idle-all --json");
    EXPECT_EQ(ran.exit_code, 0) << ran.output;
    const nlohmann::json json = ran.last_line();
    ASSERT_TRUE(json.is_object()) << ran.output;
    EXPECT_EQ(json["suite"], "all");
    EXPECT_EQ(json["backend"], "cpu");
    EXPECT_EQ(json["cases"], 4);
    EXPECT_EQ(json["rank_checks"], 32);
    EXPECT_EQ(json["failed"], 0);
    EXPECT_GT(json["worst_stage_error"], 0.5);
    EXPECT_LE(json["worst_stage_error"], 1.0);
    EXPECT_LE(json["worst_rel_l2"], 1e-2);
    EXPECT_GE(json["min_cosine"], 0.99995);
    EXPECT_GT(json["laps"], 0);
    EXPECT_GT(json["seconds"], 0.0);
}

TEST_F(CheckCommand, StepperNoOverlapWrapAndOtherFormsPass) {
    for (const char* options :
         {"--executor stepper --seed 5", "--no-overlap", "--near-wrap", "--ranks 2",
          "--activation-scale ue8m0-k32", "--weight-placement after", "--ring-blocks 1"}) {
        const Ran ran = check(std::string("--suite shared --case v4-flash-t2 ") + options);
        EXPECT_EQ(ran.exit_code, 0) << options << "\n" << ran.output;
    }
}

TEST_F(CheckCommand, BadInputIsNamed) {
    expect_bad_input("--case v4-flash-t3", "--case v4-flash-t3: did you mean v4-flash-t");
    expect_bad_input("--suite both", "--suite both");
    expect_bad_input("--backend gpu", "--backend gpu");
    expect_bad_input("--executor steps", "--executor steps");
    expect_bad_input("--size whole", "--size whole");
    expect_bad_input("--judge gpu", "--judge gpu excludes --backend cpu");
    expect_bad_input("--judge me", "--judge me: must be host or gpu");
    expect_bad_input("--case v4-flash-t1 --row-block 12", "row_block = 12");
    expect_bad_input("--case v4-flash-t1 --ring-blocks 3", "ring_blocks = 3");
    expect_bad_input("--case one-rank --ranks 5", "num_experts = 48");
    expect_bad_input("--case v4-flash-t2 --ranks 3", "num_experts = ");  // uniform routing
}

TEST_F(CheckCommand, ExpectedOutputsGoThroughFiles) {
    const std::string folder = folder_.string();
    const std::string one = "--suite routed --case v4-flash-t2 ";
    EXPECT_EQ(check(one + "--dump-expected " + folder).exit_code, 0);
    EXPECT_EQ(check(one + "--expected " + folder).exit_code, 0);
    expect_bad_input("--suite routed --case v4-flash-t1 --expected " + folder, "cannot be opened");
    expect_bad_input(one + "--activation-scale ue8m0-k32 --expected " + folder,
                     "was made from other inputs");
    const std::filesystem::path file = folder_ / "routed-v4-flash-t2.expected";
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
    expect_bad_input(one + "--expected " + folder, "does not hold the outputs");
}

// Expected outputs that are not this layer's: exit code 1, and the failure says what was compared.
TEST_F(CheckCommand, AFailedCheckIsNoError) {
    const std::string folder = folder_.string();
    const std::string one = "--suite routed --case v4-flash-t2 ";
    ASSERT_EQ(check(one + "--dump-expected " + folder).exit_code, 0);
    const std::filesystem::path path = folder_ / "routed-v4-flash-t2.expected";
    FILE* file = fopen(path.c_str(), "r+b");
    ASSERT_NE(file, nullptr);
    fseek(file, 24, SEEK_SET);  // y of rank 0
    for (int i = 0; i < 64; ++i) fputc(0x41, file);
    fclose(file);
    const Ran ran = check(one + "--json --expected " + folder);
    EXPECT_EQ(ran.exit_code, 1) << ran.output;
    EXPECT_NE(ran.output.find("rank 0 y against the bit-true layer"), std::string::npos);
    EXPECT_EQ(ran.last_line()["failed"], 1);
}

}  // namespace
}  // namespace gcmoe
