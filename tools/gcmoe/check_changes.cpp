#include "check_changes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "console.hpp"
#include "protocol/words.hpp"

namespace gcmoe::cli {
namespace {

using reference::SuiteCase;

// The case on another number of ranks: tokens are cut or repeated.
void change_ranks(int ranks, SuiteCase* suite_case) {
    if (ranks == suite_case->ranks) return;
    const std::vector<int> tokens = suite_case->tokens;
    suite_case->tokens.clear();
    for (int i = 0; i < ranks; ++i) {
        suite_case->tokens.push_back(tokens[static_cast<std::size_t>(i) % tokens.size()]);
    }
    suite_case->ranks = ranks;
    if (suite_case->routing.kind == reference::Routing::Kind::kOnlyRank ||
        suite_case->routing.kind == reference::Routing::Kind::kHotRank) {
        suite_case->routing.target %= ranks;
    }
}

// The case with as many tokens on every rank.
Status change_tokens(int tokens, SuiteCase* suite_case) {
    const int most = static_cast<int>(protocol::kMaxCount) / suite_case->topk;
    if (tokens < 0 || tokens > most) {
        return option_error("--tokens", std::to_string(tokens),
                            fmt::format("must be in 0..{} (top {}, 24 bits of a count word)", most,
                                        suite_case->topk));
    }
    std::fill(suite_case->tokens.begin(), suite_case->tokens.end(), tokens);
    suite_case->capacity = std::max(suite_case->capacity, std::max(tokens, 1));
    return {};
}

}  // namespace

Status change_case(const CheckOptions& options, SuiteCase* suite_case) {
    change_ranks(options.ranks.value_or(suite_case->ranks), suite_case);
    return options.tokens.has_value() ? change_tokens(*options.tokens, suite_case) : Status();
}

}  // namespace gcmoe::cli
