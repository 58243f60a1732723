// What --ablation of gcmoe bench measures beside the default: names, and the variants of each.
#pragma once

#include <string>
#include <vector>

#include "bench_options.hpp"

namespace gcmoe::cli {

// In the order in which `all` takes them.
[[nodiscard]] const std::vector<std::string>& ablation_names();

// The variants of one ablation: `base` but for one thing. Callers: name is one of ablation_names().
void add_ablation(const std::string& name, const BenchVariant& base,
                  std::vector<BenchVariant>* out);

}  // namespace gcmoe::cli
