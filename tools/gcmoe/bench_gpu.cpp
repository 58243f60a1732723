// The protocols of a bench on a GPU. Empty in builds without kernels.
#ifdef GCMOE_HAS_CUDA

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "base/math.hpp"
#include "bench_device.hpp"
#include "bench_launches.hpp"
#include "cuda/measure/copy_only.hpp"
#include "cuda/measure/device_bytes.hpp"
#include "cuda/measure/launch_timer.hpp"
#include "cuda/weights/generate_layer.hpp"
#include "machine.hpp"

namespace gcmoe::cli {
namespace {

using cuda::measure::LaunchTimer;
using cuda::measure::Work;

// The paper's protocol.
constexpr int kPaperWarm = 10;
constexpr int kPaperWindows = 30;
constexpr int kPaperLaunches = 100;

constexpr double kSustainedSeconds = 2.0;
constexpr std::chrono::milliseconds kPause{5};

// SMs of the copies, whatever the partition is: figures of different days are to be compared.
constexpr int kCopySms = 116;

using Variants = std::vector<std::unique_ptr<VariantLaunches>>;

class GpuBench final : public BenchDevice {
  public:
    explicit GpuBench(const BenchPlan& plan) : plan_(plan) {}

    Status create() {
        GCMOE_RETURN_IF_ERROR(cuda::weights::use_device(plan_.device));
        const Devices devices = find_devices();
        if (size_of(plan_.device) < devices.found.size()) {
            copy_ctas_ = std::min(kCopySms, devices.found[size_of(plan_.device)].sms);
        }
        return LaunchTimer::create(plan_.flush_bytes, &timer_);
    }

    Status open_model(const checkpoint::ModelEntry& model) override {
        weights_.reset();  // before the next model's are made
        weights_ = std::make_unique<BenchWeights>(model);
        return {};
    }

    Status measure(int tokens, std::vector<BenchPoint>* out) override {
        return measure_variants(plan_.variants, tokens, false, out);
    }

    Status measure_empty(BenchPoint* out) override {
        std::vector<BenchPoint> points;
        GCMOE_RETURN_IF_ERROR(measure_variants({masked_variant(plan_)}, 1, true, &points));
        *out = std::move(points.front());
        return {};
    }

  private:
    Status measure_variants(const std::vector<BenchVariant>& wanted, int tokens, bool masked,
                            std::vector<BenchPoint>* out) {
        BenchSite site{&plan_, weights_.get(), nullptr, timer_->stream()};
        GCMOE_RETURN_IF_ERROR(Group::in_process(1, {}, &site.group));
        Variants variants;
        std::vector<BenchPoint> points;
        for (const BenchVariant& variant : wanted) {
            points.push_back(empty_point(plan_, weights_->model(), variant, tokens));
            if (masked) points.back().mask();
            std::vector<std::vector<LaunchKey>> keys;
            for (const BenchSeed& seed : points.back().seeds) {
                keys.push_back(launch_keys(variant.shared, masked, seed.seed, tokens));
            }
            variants.push_back(std::make_unique<VariantLaunches>());
            GCMOE_RETURN_IF_ERROR(variants.back()->create(site, variant, keys));
        }
        GCMOE_RETURN_IF_ERROR(prime(site, variants, &points));
        if (plan_.decode) GCMOE_RETURN_IF_ERROR(time_decode(variants, &points));
        for (std::size_t i = 0; i < points.size(); ++i) {
            GCMOE_RETURN_IF_ERROR(finish(variants[i].get(), &points[i]));
            out->push_back(std::move(points[i]));
        }
        return {};
    }

    // Every launch once: verdicts, and which experts get rows.
    Status prime(const BenchSite& site, const Variants& variants, std::vector<BenchPoint>* points) {
        ReferenceOutputs reference(site);
        for (std::size_t i = 0; i < variants.size(); ++i) {
            VariantLaunches& variant = *variants[i];
            BenchPoint& point = (*points)[i];
            if (plan_.verify) {
                GCMOE_RETURN_IF_ERROR(variant.compare(&reference));
                point.verified = true;
            } else {
                for (std::size_t seed = 0; seed < variant.num_seeds(); ++seed) {
                    GCMOE_RETURN_IF_ERROR(variant.launch(seed));
                }
                GCMOE_RETURN_IF_ERROR(variant.synchronize());
            }
            for (std::size_t seed = 0; seed < variant.num_seeds(); ++seed) {
                point.seeds[seed].touched = variant.touched(seed);
            }
        }
        return {};
    }

    // Every variant and seed, and the copies of their bytes, in turns: what the machine does to one
    // of them in a moment it does to all.
    Status time_decode(const Variants& variants, std::vector<BenchPoint>* points) {
        std::vector<Work> works;
        std::map<std::size_t, std::size_t> copies;  // bytes -> index of the work that copies them
        for (std::size_t i = 0; i < variants.size(); ++i) {
            for (std::size_t seed = 0; seed < variants[i]->num_seeds(); ++seed) {
                works.push_back(
                    [launches = variants[i].get(), seed] { return launches->launch(seed); });
            }
        }
        for (const BenchPoint& point : *points) {
            for (const BenchSeed& seed : point.seeds) {
                const std::size_t bytes = bytes_of(point, seed);
                if (bytes == 0 || copies.count(bytes) != 0) continue;
                GCMOE_RETURN_IF_ERROR(keep_copy_source(bytes));
                copies[bytes] = works.size();
                works.push_back([this, bytes] { return copy(bytes); });
            }
        }
        std::vector<std::vector<double>> times(works.size());
        GCMOE_RETURN_IF_ERROR(time_in_turns(works, &times));
        std::size_t next = 0;
        for (BenchPoint& point : *points) {
            for (BenchSeed& seed : point.seeds) {
                const std::vector<double>& own = times[next++];
                seed.median_us = median(own);
                seed.min_us = *std::min_element(own.begin(), own.end());
                const auto copied = copies.find(bytes_of(point, seed));
                if (copied != copies.end()) seed.copy_us = median(times[copied->second]);
            }
            std::vector<double> medians;
            for (const BenchSeed& seed : point.seeds) medians.push_back(*seed.median_us);
            point.median_seed = median_idx(medians);
        }
        return {};
    }

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

    // What is measured one variant after the other.
    Status finish(VariantLaunches* variant, BenchPoint* point) {
        if (plan_.paper) GCMOE_RETURN_IF_ERROR(time_paper(variant, point));
        GCMOE_RETURN_IF_ERROR(variant->synchronize());
        point->plan = variant->granted();
        point->times = variant->times(point->median_seed);
        GCMOE_RETURN_IF_ERROR(variant->trace(point->median_seed, &point->trace));
        if (plan_.sustained) GCMOE_RETURN_IF_ERROR(time_sustained(variant, point));
        return variant->synchronize();
    }

    // The seed that the other protocol has chosen; without that one every seed, and their median.
    Status time_paper(VariantLaunches* variant, BenchPoint* point) {
        std::vector<double> medians;
        std::vector<std::size_t> seeds = {point->median_seed};
        for (std::size_t seed = 1; !plan_.decode && seed < variant->num_seeds(); ++seed) {
            seeds.push_back(seed);
        }
        for (const std::size_t seed : seeds) {
            const Work work = [variant, seed] { return variant->launch(seed); };
            std::vector<double> times;
            std::vector<double> windows;
            GCMOE_RETURN_IF_ERROR(timer_->time_window(work, kPaperWarm, &times));
            for (int window = 0; window < kPaperWindows; ++window) {
                GCMOE_RETURN_IF_ERROR(timer_->time_window(work, kPaperLaunches, &times));
                windows.push_back(mean(times));
            }
            medians.push_back(median(windows));
        }
        const std::size_t chosen = median_idx(medians);
        point->median_seed = seeds[chosen];
        point->paper_us = medians[chosen];
        return {};
    }

    Status time_sustained(VariantLaunches* variant, BenchPoint* point) {
        const auto work_of = [variant](std::size_t seed) -> Work {
            return [variant, seed] { return variant->launch(seed); };
        };
        std::vector<double> times;
        for (int i = 0; i < plan_.timed; ++i) {
            std::this_thread::sleep_for(kPause);
            double us = 0;
            GCMOE_RETURN_IF_ERROR(timer_->time_once(work_of(point->median_seed), &us));
            times.push_back(us);
        }
        point->burst_us = median(times);
        std::vector<Work> works;
        for (std::size_t seed = 0; seed < variant->num_seeds(); ++seed) {
            works.push_back(work_of(seed));
        }
        double us = 0;
        GCMOE_RETURN_IF_ERROR(timer_->time_back_to_back(works, kSustainedSeconds, &us));
        point->sustained_us = us;
        return {};
    }

    // Bytes that a launch has to read: touched experts, and the shared one.
    static std::size_t bytes_of(const BenchPoint& point, const BenchSeed& seed) {
        if (point.masked) return 0;
        return static_cast<std::size_t>(seed.touched * expert_bytes(point.shape) +
                                        shared_bytes(point.shape));
    }

    Status keep_copy_source(std::size_t bytes) {
        if (bytes <= copy_source_bytes_) return {};
        constexpr int kAnyByte = 0x5A;
        copy_source_.reset();
        copy_source_bytes_ = bytes;
        return cuda::measure::device_bytes(bytes, kAnyByte, "bytes to copy", &copy_source_);
    }

    Status copy(std::size_t bytes) {
        return cuda::measure::copy_only(copy_source_.get(), bytes, copy_ctas_, timer_->stream());
    }

    BenchPlan plan_;
    std::unique_ptr<LaunchTimer> timer_;
    std::unique_ptr<BenchWeights> weights_;
    std::shared_ptr<void> copy_source_;
    std::size_t copy_source_bytes_ = 0;
    int copy_ctas_ = kCopySms;
};

}  // namespace

Status make_gpu_bench(const BenchPlan& plan, std::unique_ptr<BenchDevice>* out) {
    auto bench = std::make_unique<GpuBench>(plan);
    GCMOE_RETURN_IF_ERROR(bench->create());
    *out = std::move(bench);
    return {};
}

}  // namespace gcmoe::cli

#endif
