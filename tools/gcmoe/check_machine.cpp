#include "check_machine.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "cached_source.hpp"
#include "console.hpp"

namespace gcmoe::cli {
namespace {

// Beyond that all sets go (a full-width one is 100 MB and used twice).
constexpr std::int64_t kKeepBytes = std::int64_t{512} << 20;

class HostMachine final : public CheckMachine {
  public:
    Status make_weights(const checkpoint::GeneratedLayer& layer, const Shape& shape,
                        WeightSet* out) override {
        std::unique_ptr<WeightSource> live;
        GCMOE_RETURN_IF_ERROR(checkpoint::open_generated_layer(layer, &live));
        GCMOE_RETURN_IF_ERROR(checkpoint::pad_source(
            std::move(live), {shape.hidden, shape.inter, shape.shared_inter}, &out->generated));
        out->source = std::make_shared<CachedSource>(out->generated.get(),
                                                     static_cast<std::uint64_t>(kKeepBytes));
        for (int rank = 0; rank < shape.num_ranks; ++rank) {
            std::shared_ptr<const PackedWeights> packed;
            PackReport report;
            GCMOE_RETURN_IF_ERROR(
                PackedWeights::pack(*out->source, shape, rank, {}, &packed, &report));
            out->packed.push_back(std::move(packed));
            out->packed_bytes += report.packed_bytes;
        }
        return {};
    }
    [[nodiscard]] std::int64_t keep_bytes() const override { return kKeepBytes; }
    [[nodiscard]] bool judges_device_memory() const override { return false; }

    Status judge(const reference::Problem& problem,
                 const std::vector<reference::RankOutputs>& outputs,
                 const reference::Tolerance& tolerance,
                 std::vector<reference::RankExpected>* expected,
                 std::vector<reference::RankJudgement>* out) override {
        reference::Problem on_host = problem;
        on_host.num_threads = static_cast<int>(std::max(2U, std::thread::hardware_concurrency()));
        std::vector<reference::RankExpected> own;
        if (expected == nullptr) expected = &own;
        if (expected->empty()) {
            std::vector<reference::RankStages> stages;
            GCMOE_RETURN_IF_ERROR(reference::evaluate_layer(on_host, &stages));
            *expected = reference::take_expected(std::move(stages));
        }
        return reference::judge_layer(on_host, outputs, *expected, tolerance, out);
    }
};

}  // namespace

Status make_check_machine(const std::string& name, int device, std::unique_ptr<CheckMachine>* out) {
    if (name == "host") {
        *out = std::make_unique<HostMachine>();
        return {};
    }
    if (name != "gpu") return option_error("--judge", name, "must be host or gpu");
#ifdef GCMOE_HAS_CUDA
    return make_gpu_check_machine(device, out);
#else
    static_cast<void>(device);
    return {Code::kUnsupported,
            "--judge gpu: this build has no GPU kernels (configure with -DGCMOE_CUDA=ON)"};
#endif
}

}  // namespace gcmoe::cli
