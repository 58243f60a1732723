// Candidates on a GPU. Empty in builds without kernels.
#ifdef GCMOE_HAS_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/math.hpp"
#include "bench_device.hpp"
#include "bench_figures.hpp"
#include "bench_launches.hpp"
#include "cuda/measure/launch_timer.hpp"
#include "cuda/weights/generate_layer.hpp"
#include "tune_device.hpp"

namespace gcmoe::cli {
namespace {

using cuda::measure::LaunchTimer;

// Plans of a workspace: they share its memory and inputs, and what making it costs.
constexpr std::size_t kPlansPerWorkspace = 16;
// A candidate that stalls ends the tuning: a fault of ours, and no reason to wait for minutes.
constexpr WaitLimits kWaits{20, 5};

class GpuTuner final : public TuneDevice {
  public:
    explicit GpuTuner(const BenchPlan& plan) : plan_(plan) {}

    // One group for everything: partitions of the GPU are made once.
    Status create() {
        GCMOE_RETURN_IF_ERROR(cuda::weights::use_device(plan_.device));
        GCMOE_RETURN_IF_ERROR(LaunchTimer::create(plan_.flush_bytes, &timer_));
        return Group::in_process(1, {}, &group_);
    }

    Status open_model(const checkpoint::ModelEntry& model) override {
        close();
        weights_.reset();  // before the next model's are made
        weights_ = std::make_unique<BenchWeights>(model);
        return {};
    }

    Status open(const TuneSite& site, const std::vector<Candidate>& candidates,
                const std::vector<int>& seeds, bool apart) override {
        close();
        num_seeds_ = seeds.size();
        places_.resize(candidates.size());
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            places_[i].text = candidate_text(candidates[i]);
            places_[i].plan = fmt::format("candidate {}", i);
        }
        const std::size_t most = apart ? 1 : kPlansPerWorkspace;
        for (const LaunchMode mode :
             {LaunchMode::kGraph, LaunchMode::kEager, LaunchMode::kSerial}) {
            std::vector<std::size_t> members;
            for (std::size_t i = 0; i < candidates.size(); ++i) {
                if (candidates[i].launch_mode != mode) continue;
                members.push_back(i);
                if (members.size() < most) continue;
                GCMOE_RETURN_IF_ERROR(open_workspace(site, candidates, members, seeds));
                members.clear();
            }
            if (members.empty()) continue;
            GCMOE_RETURN_IF_ERROR(open_workspace(site, candidates, members, seeds));
        }
        apart_ = apart;
        return {};
    }

    Status compare() override {
        for (std::size_t seed = 0; seed < num_seeds_; ++seed) {
            std::vector<std::uint16_t> wanted;
            for (const Place& place : places_) {
                GCMOE_RETURN_IF_ERROR(launch(place, seed));
                if (!apart_) continue;
                GCMOE_RETURN_IF_ERROR(place.launches[seed]->synchronize());
                std::vector<std::uint16_t> rows;
                GCMOE_RETURN_IF_ERROR(place.launches[seed]->read(&rows));
                if (wanted.empty()) wanted = rows;
                GCMOE_RETURN_IF_ERROR(compare_rows(place, seed, rows, wanted));
            }
        }
        return synchronize();
    }

    Status time(int warm, int timed, std::vector<std::vector<double>>* medians) override {
        std::vector<std::vector<double>> times(places_.size() * num_seeds_);
        for (int turn = 0; turn < warm + timed; ++turn) {
            for (std::size_t i = 0; i < times.size(); ++i) {
                const Place& place = places_[i / num_seeds_];
                double us = 0;
                GCMOE_RETURN_IF_ERROR(
                    timer_->time_once([&] { return launch(place, i % num_seeds_); }, &us));
                if (turn >= warm) times[i].push_back(us);
            }
        }
        GCMOE_RETURN_IF_ERROR(synchronize());
        medians->assign(places_.size(), {});
        for (std::size_t i = 0; i < times.size(); ++i) {
            (*medians)[i / num_seeds_].push_back(median(times[i]));
        }
        return {};
    }

  private:
    // A candidate: its plan in the workspaces of the routings.
    struct Place {
        std::string text;
        std::string plan;
        std::vector<BenchLaunch*> launches;  // (seeds)
    };

    // Outputs go before weights, operators before their group.
    void close() {
        places_.clear();
        launches_.clear();
    }

    Status open_workspace(const TuneSite& site, const std::vector<Candidate>& candidates,
                          const std::vector<std::size_t>& members, const std::vector<int>& seeds) {
        const BenchSite where{&plan_, weights_.get(), group_, timer_->stream()};
        const bool with_shared = site.shape.shared_inter > 0;
        BenchVariant variant = plan_.variants.front();
        variant.launch_mode = candidates[members.front()].launch_mode;
        OperatorOptions options = launch_options(plan_, variant, site.tokens);
        options.wait_limits = kWaits;
        options.plans.clear();
        for (const std::size_t idx : members) {
            options.plans.push_back(candidates[idx].plan);
            options.plans.back().name = places_[idx].plan;
        }
        for (const int seed : seeds) {
            options.workspace = fmt::format("tune {}", launches_.size());
            auto made = std::make_unique<BenchLaunch>();
            GCMOE_RETURN_IF_ERROR(
                made->create(where, {with_shared, false, seed, site.tokens}, options));
            for (const std::size_t idx : members) places_[idx].launches.push_back(made.get());
            launches_.push_back(std::move(made));
        }
        return {};
    }

    static Status launch(const Place& place, std::size_t seed) {
        return place.launches[seed]->launch(place.plan);
    }

    Status synchronize() {
        for (const auto& launch : launches_) GCMOE_RETURN_IF_ERROR(launch->synchronize());
        return {};
    }

    [[nodiscard]] Status compare_rows(const Place& place, std::size_t seed,
                                      const std::vector<std::uint16_t>& rows,
                                      const std::vector<std::uint16_t>& wanted) const {
        const auto [mine, theirs] = std::mismatch(rows.begin(), rows.end(), wanted.begin());
        if (mine == rows.end()) return {};
        const LaunchKey& key = place.launches[seed]->key();
        const auto element = static_cast<std::size_t>(mine - rows.begin());
        const std::size_t hidden = rows.size() / size_of(key.tokens);
        return {Code::kInternal,
                fmt::format("{}, {} tokens, seed {}: {} gives {:#06x} at token {}, column {}; {} "
                            "gives {:#06x}",
                            weights_->model().name, key.tokens, key.seed, place.text, *mine,
                            element / hidden, element % hidden, places_.front().text, *theirs)};
    }

    BenchPlan plan_;
    std::unique_ptr<LaunchTimer> timer_;
    std::shared_ptr<Group> group_;
    std::unique_ptr<BenchWeights> weights_;
    std::vector<std::unique_ptr<BenchLaunch>> launches_;
    std::vector<Place> places_;
    std::size_t num_seeds_ = 0;
    bool apart_ = false;
};

}  // namespace

Status make_gpu_tuner(const BenchPlan& plan, std::unique_ptr<TuneDevice>* out) {
    auto tuner = std::make_unique<GpuTuner>(plan);
    GCMOE_RETURN_IF_ERROR(tuner->create());
    *out = std::move(tuner);
    return {};
}

}  // namespace gcmoe::cli

#endif
