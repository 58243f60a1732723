// Packing streams: the most memory that it holds does not grow with the number of experts.
//
// Counts every allocation of this program through operator new.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>

#include "checkpoint/open_layer.hpp"
#include "checkpoint/packed_writer.hpp"
#include "checkpoint/synth.hpp"

namespace {

std::atomic<std::int64_t> live_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

void* counted(std::size_t size) {
    void* memory = std::malloc(size == 0 ? 1 : size);
    if (memory == nullptr) throw std::bad_alloc();
    const std::int64_t now = live_bytes += static_cast<std::int64_t>(malloc_usable_size(memory));
    std::int64_t peak = peak_bytes;
    while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
    }
    return memory;
}

void release(void* memory) noexcept {
    if (memory == nullptr) return;
    live_bytes -= static_cast<std::int64_t>(malloc_usable_size(memory));
    std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }

namespace gcmoe::checkpoint {
namespace {

constexpr int kHidden = 512;
constexpr int kInter = 256;
constexpr std::int64_t kWeights = std::int64_t{3} * kHidden * kInter;  // of one expert

class PackMemory : public testing::TestWithParam<CheckpointFormat> {
  protected:
    // Of one expert, scales left out.
    static std::int64_t stored_bytes() {
        switch (routed_format_of(GetParam())) {
            case RoutedFormat::kMxfp4:
                return kWeights / 2;
            case RoutedFormat::kFp8:
                return kWeights;
            case RoutedFormat::kBf16:
                return 2 * kWeights;
        }
        return 0;
    }

    // The most bytes that packing so many experts held above what was there before.
    std::int64_t peak_of(int num_experts, PackTarget target) {
        const std::string folder = testing::TempDir() + "gcmoe_pack_memory_" +
                                   std::to_string(::getpid()) + "_" + std::to_string(num_experts);
        std::filesystem::remove_all(folder);
        SynthOptions options;
        options.folder = folder;
        options.format = GetParam();
        options.layer.shape.hidden = kHidden;
        options.layer.shape.inter = kInter;
        options.layer.shape.num_experts = num_experts;
        options.layer.shape.topk = 1;
        SynthReport written;
        EXPECT_TRUE(synthesise_checkpoint(options, &written).ok());
        ReadOptions read;
        read.quantise = routed_format_of(GetParam()) != RoutedFormat::kMxfp4;
        OpenedLayer opened;
        EXPECT_TRUE(open_checkpoint_layer(folder, read, &opened).ok());
        PackedLayer layer;
        layer.shape = layer_shape(opened.info, 1);
        layer.target = target;
        layer.model_hidden = kHidden;
        layer.model_inter = kInter;
        const std::int64_t before = live_bytes;
        peak_bytes = before;
        PackReport report;
        EXPECT_TRUE(
            write_packed_file(*opened.source, layer, {}, folder + "/packed", {}, &report).ok());
        EXPECT_EQ(report.num_experts, num_experts);
        const std::int64_t peak = peak_bytes - before;
        std::filesystem::remove_all(folder);
        return peak;
    }
};

TEST_P(PackMemory, DoesNotGrowWithTheExperts) {
    for (const PackTarget target : {PackTarget::kSm90, PackTarget::kSm100}) {
        const std::int64_t few = peak_of(2, target);
        const std::int64_t many = peak_of(64, target);
        // An expert as it is stored, its tiles of at most 17 / 32 of a byte a weight, and what is
        // quantised or cut out of rows in turn beside them; factors take little.
        EXPECT_GT(few, kWeights);
        EXPECT_LT(few, stored_bytes() + kWeights * 5 / 4);
        // 62 experts more: their directory, and the set of experts that were measured. An expert's
        // tiles alone are 200,000 bytes.
        EXPECT_LT(many - few, 62 * 1024) << target_name(target) << ": " << few << ", " << many;
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, PackMemory,
                         testing::Values(CheckpointFormat::kDeepseekV4, CheckpointFormat::kBlockFp8,
                                         CheckpointFormat::kBf16, CheckpointFormat::kGptOss));

}  // namespace
}  // namespace gcmoe::checkpoint
