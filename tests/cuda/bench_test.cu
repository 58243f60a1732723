// What `gcmoe bench` measures with, and the command itself on a small layer.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cuda/gpu_ranks.hpp"
#include "cuda/measure/closed_launch.hpp"
#include "cuda/measure/copy_only.hpp"
#include "cuda/measure/device_bytes.hpp"
#include "cuda/measure/launch_timer.hpp"

namespace gcmoe {
namespace {

using cuda::measure::ClosedLaunch;
using cuda::measure::ClosingWork;
using cuda::measure::copy_only;
using cuda::measure::device_bytes;
using cuda::measure::LaunchTimer;
using cuda::measure::read_device;
using cuda::measure::Work;

constexpr int kCtas = 116;

class BenchOnHopper : public testing::Test {
  protected:
    void SetUp() override {
        std::string seen;
        if (!test::has_hopper(&seen)) GTEST_SKIP() << "needs an sm_90 GPU: " << seen;
    }
};

testing::AssertionResult ok(const Status& status) {
    if (status.ok()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << status.message();
}

TEST_F(BenchOnHopper, DeviceBytesHoldTheirFill) {
    std::shared_ptr<void> memory;
    ASSERT_TRUE(ok(device_bytes(1000, 0x5A, "a test", &memory)));
    std::vector<unsigned char> bytes(1000);
    ASSERT_TRUE(ok(read_device(memory.get(), bytes.size(), bytes.data())));
    EXPECT_EQ(bytes, std::vector<unsigned char>(1000, 0x5A));
    const Status status = device_bytes(std::size_t{1} << 50, 0, "a test", &memory);
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find("a test"), std::string::npos) << status.message();
}

// Ten times the bytes take about ten times as long, and no memory is faster than 6 TB/s.
TEST_F(BenchOnHopper, CopiesTakeTimeByTheirBytes) {
    constexpr std::size_t kBytes = 870'400'000;
    std::shared_ptr<void> memory;
    ASSERT_TRUE(ok(device_bytes(kBytes, 1, "a test", &memory)));
    std::unique_ptr<LaunchTimer> timer;
    ASSERT_TRUE(ok(LaunchTimer::create(512U << 20, &timer)));
    const auto time = [&](std::size_t bytes) {
        std::vector<double> us;
        EXPECT_TRUE(ok(timer->time_window(
            [&] { return copy_only(memory.get(), bytes, kCtas, timer->stream()); }, 20, &us)));
        EXPECT_EQ(us.size(), 20U);
        std::sort(us.begin(), us.end());
        return us[10];
    };
    const double whole = time(kBytes);
    const double part = time(kBytes / 10);
    EXPECT_GT(whole, kBytes / 6e6);
    EXPECT_GT(whole, 6 * part);
    EXPECT_LT(whole, 12 * part);
}

// Work that fails ends the measurement with its own sentence.
TEST_F(BenchOnHopper, WorkThatFailsIsSeen) {
    std::unique_ptr<LaunchTimer> timer;
    ASSERT_TRUE(ok(LaunchTimer::create(0, &timer)));
    const Work fails = [] { return Status(Code::kBusy, "not now"); };
    double us = 0;
    std::vector<double> times;
    EXPECT_EQ(timer->time_once(fails, &us).message(), "not now");
    EXPECT_EQ(timer->time_window(fails, 3, &times).message(), "not now");
    EXPECT_EQ(timer->time_back_to_back({fails}, 0.01, &us).message(), "not now");
}

TEST_F(BenchOnHopper, BackToBackRunsEveryWorkInTurn) {
    std::unique_ptr<LaunchTimer> timer;
    ASSERT_TRUE(ok(LaunchTimer::create(0, &timer)));
    std::shared_ptr<void> memory;
    constexpr std::size_t kBytes = 87'040'000;
    ASSERT_TRUE(ok(device_bytes(kBytes, 1, "a test", &memory)));
    int runs[2] = {};
    const auto work = [&](int which) -> Work {
        return [&, which] {
            ++runs[which];
            return copy_only(memory.get(), kBytes, kCtas, timer->stream());
        };
    };
    double us = 0;
    ASSERT_TRUE(ok(timer->time_back_to_back({work(0), work(1)}, 0.2, &us)));
    EXPECT_GT(runs[0], 10);
    EXPECT_NEAR(runs[0], runs[1], 1);
    EXPECT_GT(us, kBytes / 6e6);
    EXPECT_LT(us, 1000);
}

// A region that ends within a store, and one of several stores a thread.
layout::RegionList two_regions() {
    layout::RegionList list;
    list.add("few", "bytes", 40);
    list.add("many", "bytes", 9000);
    return list;
}

TEST_F(BenchOnHopper, ClosingWorkClearsItsRegionsAndMeets) {
    std::unique_ptr<LaunchTimer> timer;
    ASSERT_TRUE(ok(LaunchTimer::create(0, &timer)));
    std::shared_ptr<void> memory;
    ASSERT_TRUE(ok(device_bytes(87'040'000, 1, "a test", &memory)));
    const Work roles = [&] { return copy_only(memory.get(), 87'040'000, kCtas, timer->stream()); };
    for (const bool clears : {false, true}) {
        for (const bool meets : {false, true}) {
            std::unique_ptr<ClosedLaunch> launch;
            ASSERT_TRUE(ok(ClosedLaunch::create(roles, ClosingWork{clears, meets}, two_regions(),
                                                timer->stream(), &launch)));
            std::vector<unsigned char> room;
            std::size_t num_met = 0;
            ASSERT_TRUE(ok(launch->read(&room, &num_met)));
            EXPECT_EQ(num_met, 0U);
            EXPECT_EQ(room, std::vector<unsigned char>(clears ? 10240 : 0, 0xFF));
            for (int i = 0; i < 100; ++i) ASSERT_TRUE(ok(launch->launch()));
            ASSERT_TRUE(ok(launch->synchronize()));
            ASSERT_TRUE(ok(launch->read(&room, &num_met)));
            EXPECT_EQ(num_met, meets ? 100U : 0U);
            if (!clears) continue;
            // Whole stores of 16 bytes, and nothing past them.
            const auto zeroes = [&](int from, int to) {
                return std::count(room.begin() + from, room.begin() + to, 0);
            };
            EXPECT_EQ(zeroes(0, 48), 48);
            EXPECT_EQ(zeroes(48, 1024), 0);
            EXPECT_EQ(zeroes(1024, 1024 + 9008), 9008);
            EXPECT_EQ(zeroes(1024 + 9008, 10240), 0);
        }
    }
}

TEST_F(BenchOnHopper, ClosedLaunchHandsOnWhatItsRolesSay) {
    std::unique_ptr<LaunchTimer> timer;
    ASSERT_TRUE(ok(LaunchTimer::create(0, &timer)));
    std::unique_ptr<ClosedLaunch> launch;
    const Status status =
        ClosedLaunch::create([] { return Status(Code::kBusy, "not now"); }, ClosingWork{},
                             two_regions(), timer->stream(), &launch);
    EXPECT_EQ(status.message(), "not now");
    // The stream captures no more.
    EXPECT_EQ(cudaStreamSynchronize(static_cast<cudaStream_t>(timer->stream())), cudaSuccess);
    layout::RegionList many;
    for (int i = 0; i < 17; ++i) many.add("one", "byte", 1);
    const Status refused = ClosedLaunch::create([] { return Status(); }, ClosingWork{true, false},
                                                many, timer->stream(), &launch);
    EXPECT_EQ(refused.code(), Code::kInternal);
    EXPECT_NE(refused.message().find("17 regions"), std::string::npos) << refused.message();
}

// The command beside this binary: build/cuda/bin, or bin of the bundle.
std::filesystem::path command_path() {
    const auto self = std::filesystem::read_symlink("/proc/self/exe");
    return self.parent_path().parent_path() / "bin" / "gcmoe";
}

int run_command(const std::string& arguments) {
    const std::string line = command_path().string() + " " + arguments + " >/dev/null";
    const int status = std::system(line.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(BenchOnHopper, CommandWritesAVerifiedLineAPoint) {
    const std::string path = testing::TempDir() + "gcmoe_bench_" + std::to_string(getpid());
    const std::string arguments =
        "bench --model v4.1-flash,glm-5.2 --reduced 4 --tokens 1,48 --seeds 2 --warm 1 --timed 3 "
        "--verify --ablation all --out " +
        path;
    ASSERT_EQ(run_command(arguments), 0);
    std::ifstream file(path);
    int layers = 0;
    int empties = 0;
    for (std::string line; std::getline(file, line);) {
        empties += line.rfind(R"({"kind":"empty")", 0) == 0 ? 1 : 0;
        layers += line.rfind(R"({"kind":"layer")", 0) == 0 ? 1 : 0;
        EXPECT_NE(line.find(R"("verified":true)"), std::string::npos) << line;
        EXPECT_NE(line.find(R"("placement_holds":true)"), std::string::npos) << line;
        EXPECT_EQ(line.find(R"("median_us":null)"), std::string::npos) << line;
    }
    // Two models, two numbers of tokens; the default and 27 variants.
    EXPECT_EQ(layers, 2 * 2 * 28);
    EXPECT_EQ(empties, 2);
    EXPECT_EQ(run_command(arguments), 2) << "there is a file already";
    std::filesystem::remove(path);
}

// Two numbers of rows on four of SMs, whose sums the command judges itself, and two targets.
TEST_F(BenchOnHopper, CommandMeasuresLoops) {
    const std::string path = testing::TempDir() + "gcmoe_loop_" + std::to_string(getpid());
    ASSERT_EQ(run_command("bench --loop --model v4-flash --reduced 8 --loop-rows 8,24 --loop-sms "
                          "3,64,100,116 --tokens 8,24 --warm 1 --timed 3 --out " +
                          path),
              0);
    std::ifstream file(path);
    int loops = 0;
    int targets = 0;
    for (std::string line; std::getline(file, line);) {
        loops += line.rfind(R"({"kind":"loop",)", 0) == 0 ? 1 : 0;
        targets += line.rfind(R"({"kind":"loop_target",)", 0) == 0 ? 1 : 0;
    }
    EXPECT_EQ(loops, 2 * 4);
    EXPECT_EQ(targets, 2);
    std::filesystem::remove(path);
}

TEST_F(BenchOnHopper, CommandNamesABadDeviceAndPlan) {
    EXPECT_EQ(run_command("bench --reduced 8 --tokens 1 --device 99 2>/dev/null"), 2);
    EXPECT_EQ(run_command("bench --reduced 8 --tokens 1 --row-block 7 2>/dev/null"), 2);
}

}  // namespace
}  // namespace gcmoe
