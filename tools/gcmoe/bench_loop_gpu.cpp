// The stand-alone loop on a GPU. Empty in builds without kernels.
#ifdef GCMOE_HAS_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/math.hpp"
#include "bench_device.hpp"
#include "bench_loop.hpp"
#include "cuda/measure/copy_only.hpp"
#include "cuda/measure/judge_loop.hpp"
#include "cuda/measure/launch_timer.hpp"
#include "cuda/measure/stream_loop.hpp"
#include "cuda/weights/generate_layer.hpp"
#include "machine.hpp"

namespace gcmoe::cli {
namespace {

using cuda::measure::LaunchTimer;
using cuda::measure::StreamLoop;
using cuda::measure::Work;

// SMs of the copies, as of gcmoe bench's.
constexpr int kCopySms = 116;
// What of a first launch is held against the host: last tasks of so many CTAs, these rows of each.
constexpr int kJudgedCtas = 4;
const std::vector<int> kJudgedRows = {0, 71, 138, 255};

class GpuLoop final : public LoopDevice {
  public:
    explicit GpuLoop(const BenchPlan& plan) : plan_(plan) {}

    Status create() {
        GCMOE_RETURN_IF_ERROR(cuda::weights::use_device(plan_.device));
        const Devices devices = find_devices();
        if (size_of(plan_.device) < devices.found.size()) {
            const int has = devices.found[size_of(plan_.device)].sms;
            copy_ctas_ = std::min(kCopySms, has);
            auto& sms = plan_.loop_sms;
            sms.erase(std::upper_bound(sms.begin(), sms.end(), has), sms.end());
            if (sms.empty()) {
                return option_error("--loop-sms", "", fmt::format("the GPU has {} SMs", has));
            }
        }
        return LaunchTimer::create(plan_.flush_bytes, &timer_);
    }

    Status measure(const checkpoint::ModelEntry& model, int rows,
                   std::vector<LoopPoint>* out) override {
        const Shape shape = bench_shape(model, false);
        std::unique_ptr<StreamLoop> loop;
        GCMOE_RETURN_IF_ERROR(StreamLoop::create(
            {shape.hidden, shape.inter, kLoopExperts, rows, plan_.loop_sms.back(), 1}, &loop));
        std::vector<Work> works;
        for (const int sms : plan_.loop_sms) {
            LoopPoint point;
            point.model = model.name;
            point.shape = shape;
            point.rows = rows;
            point.sms = sms;
            GCMOE_RETURN_IF_ERROR(judge(loop.get(), &point));
            out->push_back(std::move(point));
            works.push_back(
                [this, sms, to = loop.get()] { return to->launch(sms, timer_->stream()); });
        }
        works.push_back([this, from = loop.get()] {
            return cuda::measure::copy_only(from->tiles(), from->geometry().tile_bytes(),
                                            copy_ctas_, timer_->stream());
        });
        std::vector<std::vector<double>> times(works.size());
        GCMOE_RETURN_IF_ERROR(time_in_turns(works, &times));
        for (std::size_t i = 0; i < out->size(); ++i) {
            LoopPoint& point = (*out)[i];
            point.median_us = median(times[i]);
            point.min_us = *std::min_element(times[i].begin(), times[i].end());
            point.copy_us = median(times.back());
        }
        return {};
    }

  private:
    // The first launch's sums.
    Status judge(StreamLoop* loop, LoopPoint* point) {
        GCMOE_RETURN_IF_ERROR(loop->launch(point->sms, timer_->stream()));
        for (int i = 0; i < kJudgedCtas; ++i) {
            cuda::measure::LoopPlace place{point->sms, i * point->sms / kJudgedCtas, 0};
            const int rounds = cuda::measure::loop_rounds(loop->geometry(), place.ctas, place.cta);
            if (rounds == 0) continue;
            place.round = rounds - 1;
            double error = 0;
            GCMOE_RETURN_IF_ERROR(cuda::measure::judge_loop(*loop, place, kJudgedRows, &error));
            if (!(error <= cuda::measure::kLoopErrorBound)) {
                return {Code::kInternal,
                        fmt::format("loop of {}, {} rows, {} SMs: CTA {}'s sums of round {} have a "
                                    "relative error of {:.1e}, over {:.0e}",
                                    point->model, point->rows, point->sms, place.cta, place.round,
                                    error, cuda::measure::kLoopErrorBound)};
            }
            point->error = std::max(point->error, error);
        }
        return {};
    }

    // Loops and copies launch by launch: what the machine does to one it does to all.
    Status time_in_turns(const std::vector<Work>& works, std::vector<std::vector<double>>* times) {
        for (int turn = 0; turn < plan_.warm + plan_.timed; ++turn) {
            for (std::size_t i = 0; i < works.size(); ++i) {
                double us = 0;
                GCMOE_RETURN_IF_ERROR(timer_->time_once(works[i], &us));
                if (turn >= plan_.warm) (*times)[i].push_back(us);
            }
        }
        return {};
    }

    BenchPlan plan_;
    std::unique_ptr<LaunchTimer> timer_;
    int copy_ctas_ = kCopySms;
};

}  // namespace

Status make_gpu_loop(const BenchPlan& plan, std::unique_ptr<LoopDevice>* out) {
    auto loop = std::make_unique<GpuLoop>(plan);
    GCMOE_RETURN_IF_ERROR(loop->create());
    *out = std::move(loop);
    return {};
}

}  // namespace gcmoe::cli

#endif
