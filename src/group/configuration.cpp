#include "group/configuration.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

namespace gcmoe::group {
namespace {

// Field i of a configuration as "field = value".
std::string field_text(const Configuration& configuration, std::size_t i) {
    if (i >= configuration.size()) return fmt::format("{} fields", configuration.size());
    return fmt::format("{} = {}", configuration[i].first, configuration[i].second);
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
    if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
    const std::vector<int> most(ranks.begin(), ranks.end() - 1);
    return fmt::format("ranks {} and {}", fmt::join(most, ", "), ranks.back());
}

std::string difference(const std::vector<const Configuration*>& configurations) {
    std::size_t num_fields = 0;
    for (const Configuration* one : configurations) num_fields = std::max(num_fields, one->size());
    for (std::size_t i = 0; i < num_fields; ++i) {
        std::vector<std::pair<std::string, std::vector<int>>> values;  // in order of the first rank
        for (std::size_t rank = 0; rank < configurations.size(); ++rank) {
            const std::string text = field_text(*configurations[rank], i);
            auto found = std::find_if(values.begin(), values.end(),
                                      [&text](const auto& value) { return value.first == text; });
            if (found == values.end()) found = values.insert(values.end(), {text, {}});
            found->second.push_back(static_cast<int>(rank));
        }
        if (values.size() == 1) continue;
        std::vector<std::string> parts;
        for (const auto& [text, ranks] : values) {
            parts.push_back(fmt::format("{} on {}", text, rank_list(ranks)));
        }
        return fmt::format("{}", fmt::join(parts, " but "));
    }
    return {};
}

}  // namespace gcmoe::group
