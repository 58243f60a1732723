// A device whose times a formula gives: what a search makes of them can be foretold.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/gcmoe/tune_search.hpp"

namespace gcmoe::test {

class FakeTuneDevice final : public cli::TuneDevice {
  public:
    // One opening and what was asked of it.
    struct Opened {
        std::vector<cli::Candidate> candidates;
        std::vector<int> seeds;
        bool apart = false;
        bool compared = false;
        int warm = -1;  // not timed
        int timed = -1;
    };

    Status open_model(const checkpoint::ModelEntry&) override { return {}; }
    Status open(const cli::TuneSite&, const std::vector<cli::Candidate>& candidates,
                const std::vector<int>& seeds, bool apart) override {
        opened.push_back({candidates, seeds, apart});
        clock += seconds_per_open;
        return {};
    }
    Status compare() override {
        opened.back().compared = true;
        return compare_status;
    }
    Status time(int warm, int timed, std::vector<std::vector<double>>* medians) override {
        opened.back().warm = warm;
        opened.back().timed = timed;
        medians->clear();
        for (const cli::Candidate& candidate : opened.back().candidates) {
            medians->emplace_back();
            for (const int seed : opened.back().seeds) {
                medians->back().push_back(us(candidate, seed));
            }
        }
        return {};
    }

    std::function<double(const cli::Candidate&, int seed)> us = [](const auto&, int) {
        return 1.0;
    };
    Status compare_status;
    double seconds_per_open = 0;
    double clock = 0;
    std::vector<Opened> opened;
};

}  // namespace gcmoe::test
