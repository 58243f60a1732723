// Generated weights of the suites: cases share them, so each set is generated and packed once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "check_machine.hpp"
#include "reference/suite.hpp"

namespace gcmoe::cli {

class WeightCache {
  public:
    explicit WeightCache(CheckMachine* machine) : machine_(machine) {}

    // The weights of a case on this layer (of case_shape): depend on sizes, scale rule, biases and
    // the shared expert's grid. Errors: those of generating and packing.
    Status find(const reference::SuiteCase& suite_case, reference::CaseSize size,
                const Shape& shape, std::shared_ptr<const WeightSet>* out);
    [[nodiscard]] std::size_t num_sets() const { return num_sets_; }

  private:
    CheckMachine* machine_;
    std::map<std::string, std::shared_ptr<const WeightSet>> sets_;
    std::int64_t bytes_ = 0;
    std::size_t num_sets_ = 0;  // ever made
};

}  // namespace gcmoe::cli
