// The accuracy suites (tests/suites/*.csv): parsing, and the layer each case stands for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::reference {

// How a case's tokens choose experts.
struct Routing {
    enum class Kind {
        kUniform,     // top-k of random scores
        kOnlyExpert,  // slot 0 to expert `target`, other slots unused
        kOnlyRank,    // top-k among the experts of rank `target`
        kHotRank,     // rank `target` gets `amount` times the mean
        kZipf,        // expert i of a random order has weight (i + 1)^-amount
        kFirstTwice,  // slot 1 repeats slot 0
    };
    Kind kind = Kind::kUniform;
    int target = 0;
    double amount = 0.0;
};

// One line of a suite, at full size.
struct SuiteCase {
    std::string name;
    std::string model;
    int hidden = 0;
    int inter = 0;
    int experts = 0;
    int topk = 0;
    int ranks = 0;
    std::vector<int> tokens;  // (ranks)
    Routing routing;
    double mask = 0.0;    // share of slots set to -1
    double factor = 1.0;  // routing weights = softmax over the chosen scores x factor
    Activation activation;
    bool biases = false;
    std::string weight_scales;  // "normal", "rows_of_codes:..", "span_per_k128:a;span_per_expert:b"
    int capacity = 0;           // tokens of the workspace
    bool poison = false;
    int cpu_experts = 0;   // experts at reduced size; 0 = experts / 8
    int shared_inter = 0;  // 0 in the routed suite
    ScaleGrid shared_grid = ScaleGrid::kUe8m0Block128;

    // Scale cases are judged per output column.
    [[nodiscard]] bool per_column() const { return weight_scales != "normal"; }
};

// Reads the text of a suite file. Errors: kBadInput naming line, column and value.
Status parse_suite(std::string_view csv, std::vector<SuiteCase>* out);

enum class CaseSize {
    kFull,     // as the file says; widths rounded up to 128
    kReduced,  // for the CPU: hidden, inter, shared_inter and experts divided by 8
};

// The layer of a case. Reduced: hidden and inter to the nearest multiple of 128, at least 128;
// experts to the nearest multiple of 8, at least max(topk, 8). v4.1-flash-t8, glm-5.2-t16 and the
// masked-30 with a shared expert of 4608 keep inter and shared_inter whole.
Shape case_shape(const SuiteCase& suite_case, CaseSize size);

// The layer of a case before its widths were rounded up: what the model has. Full size: as the file
// says; reduced: case_shape.
Shape live_shape(const SuiteCase& suite_case, CaseSize size);

// Columns of x that the model has; the rest of hidden is padding and zero.
int live_hidden(const SuiteCase& suite_case, CaseSize size);

}  // namespace gcmoe::reference
