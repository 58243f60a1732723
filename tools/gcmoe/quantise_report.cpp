#include "quantise_report.hpp"

#include <fmt/format.h>

#include <array>
#include <string>

namespace gcmoe::cli {
namespace {

constexpr std::array<const char*, 3> kNames = {"gate", "up", "down"};

void print_line(const std::string& name, const char* format,
                const checkpoint::QuantiseError& error) {
    if (error.num_matrices == 0) return;
    fmt::print(
        "quantised: {} of {} to {}: relative L2 {:.4f}, largest error {:.3g} (largest "
        "weight {:.3g})\n",
        name, error.num_matrices == 1 ? "1 expert" : fmt::format("{} experts", error.num_matrices),
        format, error.relative_l2(), error.largest_error, error.largest_value);
}

void add_object(const std::string& name, const checkpoint::QuantiseError& error,
                nlohmann::ordered_json* out) {
    if (error.num_matrices == 0) return;
    (*out)[name] = {{"matrices", error.num_matrices},
                    {"relative_l2", error.relative_l2()},
                    {"largest_error", error.largest_error},
                    {"largest_value", error.largest_value}};
}

}  // namespace

void print_quantise_report(const checkpoint::QuantiseReport& report) {
    for (std::size_t idx = 0; idx < kNames.size(); ++idx) {
        print_line(kNames[idx], "MXFP4", report.routed[idx]);
    }
    for (std::size_t idx = 0; idx < kNames.size(); ++idx) {
        print_line(std::string("shared ") + kNames[idx], "FP8", report.shared[idx]);
    }
}

nlohmann::ordered_json quantise_json(const checkpoint::QuantiseReport& report) {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (std::size_t idx = 0; idx < kNames.size(); ++idx) {
        add_object(kNames[idx], report.routed[idx], &out);
    }
    for (std::size_t idx = 0; idx < kNames.size(); ++idx) {
        add_object(std::string("shared_") + kNames[idx], report.shared[idx], &out);
    }
    return out;
}

}  // namespace gcmoe::cli
