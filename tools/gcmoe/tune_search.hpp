// The search for the best plan of a point: few launches of many candidates, many of few.
#pragma once

#include <functional>
#include <vector>

#include "checkpoint/models.hpp"
#include "tune_candidates.hpp"

namespace gcmoe::cli {

// Where candidates are launched.
class TuneDevice {
  public:
    virtual ~TuneDevice() = default;

    // The model of the points that follow.
    virtual Status open_model(const checkpoint::ModelEntry& model) = 0;
    // These candidates of the point, with each of these routings, are what the next calls launch.
    // apart: each in a workspace of its own, with an output of its own.
    virtual Status open(const TuneSite& site, const std::vector<Candidate>& candidates,
                        const std::vector<int>& seeds, bool apart) = 0;
    // Launches everything once. Opened apart: every candidate's y must be that of the first, bit
    // for bit. Errors: kInternal naming candidate, routing and place.
    virtual Status compare() = 0;
    // warm + timed turns over everything; the medians of the timed ones. Shapes: (candidates,
    // seeds).
    virtual Status time(int warm, int timed, std::vector<std::vector<double>>* medians) = 0;
};

struct TuneLimits {
    int seeds = 3;  // routings of the finals: 0 .. seeds - 1; those of the confirmation follow
    int warm = 10;  // of finals and confirmation
    int timed = 30;
    double threshold_percent = 1;
    double seconds = 10;          // for the point
    std::function<double()> now;  // seconds
};

struct Finalist {
    Candidate candidate;
    double median_us = 0;  // mean of the routings' medians
};

struct TunedPoint {
    plan::TunedCounts counts;
    std::vector<Finalist> finalists;  // of the last round but one; the rules' plan first
    Candidate chosen;                 // the rules' plan, or what was better in both last rounds
    bool keeps_rules = true;
    LaunchMode launch = LaunchMode::kGraph;  // recommended for the chosen plan
    double chosen_us = 0;                    // confirmed, on other routings than the finals'
    double rules_us = 0;                     // in the same turns
    double best_us = 0;  // of the best finalist, confirmed; chosen_us unless the rules were kept
};

// Errors: those of the device; the rules have no plan.
Status tune_point(TuneDevice* device, const TuneSite& site, const TuneLimits& limits,
                  TunedPoint* out);

}  // namespace gcmoe::cli
