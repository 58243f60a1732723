#include "tune_search.hpp"

#include <algorithm>
#include <numeric>

#include "base/math.hpp"
#include "bench_figures.hpp"

namespace gcmoe::cli {
namespace {

// Candidates that take turns, the rules' plan among them: what the machine does meanwhile it does
// to all, and times are compared as multiples of the rules' plan.
constexpr std::size_t kChunk = 64;
// The part of the time after which a round over all candidates begins no other chunk.
constexpr double kScreenShare = 0.5;
// A stride through the candidates without a common factor with the grid's sizes: if time runs out,
// what was not measured lies everywhere.
constexpr std::size_t kStride = 97;

constexpr std::size_t kBases = 3;  // whose rings and leads are varied, beside those of the rules
constexpr std::size_t kFinalists = 5;
// Routings of the rounds before the finals. One would not do: a lead that fits the blocks of one
// routing is 4 % faster there, and no faster elsewhere (V4-Flash, 4 tokens, H200).
constexpr int kRoutings = 3;

// Launches of a round, and how many stay.
struct Round {
    int warm = 0;
    int timed = 0;
    std::size_t stay = 0;
};
constexpr Round kScreen{1, 3, 16};
constexpr Round kSecond{2, 8, 8};
constexpr Round kThird{3, 12, kFinalists};

class Search {
  public:
    Search(TuneDevice* device, const TuneSite& site, const TuneLimits& limits)
        : device_(device), site_(site), limits_(limits), list_(site), begin_(limits.now()) {}

    Status run(TunedPoint* out) {
        GCMOE_RETURN_IF_ERROR(list_.add_rules());
        list_.add_grid();
        std::vector<std::size_t> best;
        GCMOE_RETURN_IF_ERROR(screen(strided(1, list_.kept().size()), &best));
        GCMOE_RETURN_IF_ERROR(rank(best, kSecond, &best));
        const std::size_t first_new = list_.kept().size();
        std::vector<std::size_t> bases = {0};
        for (std::size_t i = 0; i < std::min(kBases, best.size()); ++i) bases.push_back(best[i]);
        for (const std::size_t idx : bases) {
            const PlanOptions base = list_.kept()[idx].plan;  // the list grows meanwhile
            list_.add_variations(base);
        }
        std::vector<std::size_t> varied;
        GCMOE_RETURN_IF_ERROR(screen(strided(first_new, list_.kept().size()), &varied));
        best.insert(best.end(), varied.begin(), varied.end());
        GCMOE_RETURN_IF_ERROR(rank(best, kThird, &best));
        GCMOE_RETURN_IF_ERROR(finals(best, out));
        GCMOE_RETURN_IF_ERROR(confirm(out));
        out->counts = list_.counts();
        out->counts.budget = num_left_out_;
        out->counts.measured -= num_left_out_;
        out->counts.finalists = static_cast<int>(out->finalists.size());
        return {};
    }

  private:
    // first..last - 1, neighbours far apart.
    static std::vector<std::size_t> strided(std::size_t first, std::size_t last) {
        std::vector<std::size_t> order;
        const std::size_t count = last - first;
        std::vector<bool> taken(count, false);
        for (std::size_t i = 0, at = 0; i < count; ++i, at = (at + kStride) % count) {
            while (taken[at]) at = (at + 1) % count;
            taken[at] = true;
            order.push_back(first + at);
        }
        return order;
    }

    [[nodiscard]] bool is_late() const {
        return limits_.now() - begin_ > kScreenShare * limits_.seconds;
    }

    static std::vector<int> routings(int first, int count) {
        std::vector<int> seeds(size_of(count));
        std::iota(seeds.begin(), seeds.end(), first);
        return seeds;
    }

    // Times as multiples of the rules' plan in the same turns.
    Status score(const std::vector<std::size_t>& chunk, const Round& round,
                 std::vector<std::pair<double, std::size_t>>* scores) {
        std::vector<Candidate> candidates = {list_.kept().front()};
        for (const std::size_t idx : chunk) candidates.push_back(list_.kept()[idx]);
        const std::vector<int> seeds = routings(0, std::min(limits_.seeds, kRoutings));
        GCMOE_RETURN_IF_ERROR(device_->open(site_, candidates, seeds, false));
        GCMOE_RETURN_IF_ERROR(device_->compare());
        std::vector<std::vector<double>> medians;
        GCMOE_RETURN_IF_ERROR(device_->time(round.warm, round.timed, &medians));
        for (std::size_t i = 0; i < chunk.size(); ++i) {
            scores->emplace_back(mean(medians[i + 1]) / mean(medians[0]), chunk[i]);
        }
        return {};
    }

    static void keep_best(std::vector<std::pair<double, std::size_t>> scores, std::size_t stay,
                          std::vector<std::size_t>* out) {
        std::sort(scores.begin(), scores.end());
        out->clear();
        for (std::size_t i = 0; i < std::min(stay, scores.size()); ++i) {
            out->push_back(scores[i].second);
        }
    }

    // Every candidate of the list, as far as there is time.
    Status screen(const std::vector<std::size_t>& order, std::vector<std::size_t>* best) {
        std::vector<std::pair<double, std::size_t>> scores;
        for (std::size_t begin = 0; begin < order.size(); begin += kChunk - 1) {
            const std::size_t end = std::min(begin + kChunk - 1, order.size());
            if (begin != 0 && is_late()) {
                num_left_out_ += static_cast<int>(order.size() - begin);
                break;
            }
            const std::vector<std::size_t> chunk(order.begin() + static_cast<std::ptrdiff_t>(begin),
                                                 order.begin() + static_cast<std::ptrdiff_t>(end));
            GCMOE_RETURN_IF_ERROR(score(chunk, kScreen, &scores));
        }
        keep_best(std::move(scores), kScreen.stay, best);
        return {};
    }

    Status rank(const std::vector<std::size_t>& chunk, const Round& round,
                std::vector<std::size_t>* best) {
        if (chunk.empty()) return {};
        std::vector<std::pair<double, std::size_t>> scores;
        GCMOE_RETURN_IF_ERROR(score(chunk, round, &scores));
        keep_best(std::move(scores), round.stay, best);
        return {};
    }

    // Mean of the medians of the routings first_seed .. for each candidate.
    Status measure(const std::vector<Candidate>& candidates, int first_seed,
                   std::vector<double>* out) {
        const std::vector<int> seeds = routings(first_seed, limits_.seeds);
        GCMOE_RETURN_IF_ERROR(device_->open(site_, candidates, seeds, true));
        GCMOE_RETURN_IF_ERROR(device_->compare());
        std::vector<std::vector<double>> medians;
        GCMOE_RETURN_IF_ERROR(device_->time(limits_.warm, limits_.timed, &medians));
        out->clear();
        for (const std::vector<double>& one : medians) out->push_back(mean(one));
        return {};
    }

    // The rules' plan, the best ones, and the best one's other launch modes.
    Status finals(const std::vector<std::size_t>& best, TunedPoint* out) {
        std::vector<Candidate> candidates = {list_.kept().front()};
        for (const std::size_t idx : best) candidates.push_back(list_.kept()[idx]);
        const std::size_t first_new = list_.kept().size();
        list_.add_launch_modes(candidates[candidates.size() > 1 ? 1 : 0].plan);
        for (std::size_t i = first_new; i < list_.kept().size(); ++i) {
            candidates.push_back(list_.kept()[i]);
        }
        std::vector<double> times;
        GCMOE_RETURN_IF_ERROR(measure(candidates, 0, &times));
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            out->finalists.push_back({candidates[i], times[i]});
        }
        return {};
    }

    [[nodiscard]] bool is_better(double us, double than_us) const {
        return us < than_us * (1 - limits_.threshold_percent / 100);
    }

    // The best finalist, and its eager launches, against the rules' plan on other routings: the
    // best of several was lucky as well. Serial launches only have the finals' times.
    Status confirm(TunedPoint* out) {
        std::size_t best = 0;
        for (std::size_t i = 1; i < out->finalists.size(); ++i) {
            const Finalist& finalist = out->finalists[i];
            if (finalist.candidate.launch_mode != LaunchMode::kGraph) continue;
            if (finalist.median_us < out->finalists[best].median_us) best = i;
        }
        const Finalist rules = out->finalists.front();
        const Finalist winner = out->finalists[best];
        Candidate eager = winner.candidate;
        eager.launch_mode = LaunchMode::kEager;
        std::vector<double> times;
        GCMOE_RETURN_IF_ERROR(
            measure({rules.candidate, winner.candidate, eager}, limits_.seeds, &times));
        out->rules_us = times[0];
        out->best_us = times[1];
        out->keeps_rules =
            !is_better(winner.median_us, rules.median_us) || !is_better(times[1], times[0]);
        out->chosen = out->keeps_rules ? rules.candidate : winner.candidate;
        out->chosen_us = out->keeps_rules ? times[0] : times[1];
        if (is_better(times[2], std::min(times[0], times[1]))) out->launch = LaunchMode::kEager;
        for (const Finalist& finalist : out->finalists) {
            const bool is_serial = finalist.candidate.launch_mode == LaunchMode::kSerial;
            if (is_serial && is_better(finalist.median_us, winner.median_us)) {
                out->launch = LaunchMode::kSerial;
            }
        }
        return {};
    }

    TuneDevice* device_;
    const TuneSite& site_;
    const TuneLimits& limits_;
    CandidateList list_;
    double begin_ = 0;
    int num_left_out_ = 0;
};

}  // namespace

Status tune_point(TuneDevice* device, const TuneSite& site, const TuneLimits& limits,
                  TunedPoint* out) {
    return Search(device, site, limits).run(out);
}

}  // namespace gcmoe::cli
