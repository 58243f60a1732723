#include "reference/case_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/math.hpp"
#include "numerics/hash.hpp"
#include "numerics/quantise.hpp"
#include "reference/parallel.hpp"

namespace gcmoe::reference {
namespace {

// Independent streams of random words of a case.
enum class Stream : std::uint64_t {
    kX = 1,
    kScore,
    kScoreTie,
    kMask,
    kHotCount,
    kGumbel,
    kExpertOrder,
};

constexpr int kTokensOfThread = 64;  // at a time; fewer tokens than that start no thread

std::uint64_t name_seed(const std::string& name) {
    std::uint64_t seed = 0;
    for (const char c : name) {
        seed = numerics::hash_combine(seed, static_cast<unsigned char>(c));
    }
    return seed;
}

std::uint64_t word(const SuiteCase& suite_case, Stream stream, int rank, std::int64_t index) {
    const std::uint64_t stream_seed =
        numerics::hash_combine(name_seed(suite_case.name), static_cast<std::uint64_t>(stream));
    const std::uint64_t rank_seed =
        numerics::hash_combine(stream_seed, static_cast<std::uint64_t>(rank));
    return numerics::hash_combine(rank_seed, static_cast<std::uint64_t>(index));
}

// --- Routing ---------------------------------------------------------------------------------

// Positions of experts by falling key; equal keys: smaller id first.
std::vector<int> ranked(const std::vector<double>& keys, int begin, int end) {
    std::vector<int> order(size_of(end - begin));
    std::iota(order.begin(), order.end(), begin);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return keys[size_of(a)] > keys[size_of(b)]; });
    return order;
}

// A permutation of the experts that all ranks share. place[e] = position of expert e.
std::vector<int> expert_places(const SuiteCase& suite_case, int num_experts) {
    std::vector<double> keys(size_of(num_experts));
    for (int e = 0; e < num_experts; ++e) {
        keys[size_of(e)] = static_cast<double>(
            numerics::hash_uniform(word(suite_case, Stream::kExpertOrder, 0, e)));
    }
    const std::vector<int> order = ranked(keys, 0, num_experts);
    std::vector<int> places(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) places[size_of(order[i])] = static_cast<int>(i);
    return places;
}

struct Scorer {
    const SuiteCase& suite_case;
    const Shape& shape;
    int rank;
    int token;

    [[nodiscard]] std::uint64_t draw(Stream stream, int expert) const {
        const auto index = static_cast<std::int64_t>(token) * shape.num_experts + expert;
        return word(suite_case, stream, rank, index);
    }
    // Nearly normal; the second term only parts equal ones.
    [[nodiscard]] double score(int expert) const {
        const auto normal =
            static_cast<double>(numerics::hash_normal(draw(Stream::kScore, expert)));
        const auto tie =
            static_cast<double>(numerics::hash_uniform(draw(Stream::kScoreTie, expert)));
        return normal + 0x1p-9 * tie;
    }
    // The k largest of log(weight) + Gumbel noise are a draw of k without replacement.
    [[nodiscard]] double zipf_key(int place, int expert) const {
        const auto uniform =
            static_cast<double>(numerics::hash_uniform(draw(Stream::kGumbel, expert))) + 0x1p-25;
        return -suite_case.routing.amount * std::log(place + 1.0) - std::log(-std::log(uniform));
    }
};

// How many of a token's experts stand on the hot rank: amount / ranks of topk, fractions by chance.
int hot_count(const Scorer& scorer) {
    const SuiteCase& suite_case = scorer.suite_case;
    const double share = suite_case.routing.amount / scorer.shape.num_ranks;
    const double wanted = scorer.shape.topk * share;
    const auto chance = static_cast<double>(
        numerics::hash_uniform(word(suite_case, Stream::kHotCount, scorer.rank, scorer.token)));
    const double whole = std::floor(wanted);
    const int count = static_cast<int>(whole) + (chance < wanted - whole ? 1 : 0);
    return std::min({count, scorer.shape.topk, scorer.shape.experts_per_rank()});
}

std::vector<int> hot_experts(const Scorer& scorer, const std::vector<double>& scores) {
    const int begin = scorer.suite_case.routing.target * scorer.shape.experts_per_rank();
    const int end = begin + scorer.shape.experts_per_rank();
    const int count = hot_count(scorer);
    std::vector<int> chosen = ranked(scores, begin, end);
    chosen.resize(size_of(count));
    for (const int expert : ranked(scores, 0, scorer.shape.num_experts)) {
        if (static_cast<int>(chosen.size()) == scorer.shape.topk) break;
        if (expert < begin || expert >= end) chosen.push_back(expert);
    }
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](int a, int b) { return scores[size_of(a)] > scores[size_of(b)]; });
    return chosen;
}

std::vector<int> candidates(const Scorer& scorer, const std::vector<double>& scores) {
    const Shape& shape = scorer.shape;
    const Routing& routing = scorer.suite_case.routing;
    switch (routing.kind) {
        case Routing::Kind::kOnlyExpert:
            return {routing.target};
        case Routing::Kind::kOnlyRank: {
            const int begin = routing.target * shape.experts_per_rank();
            return ranked(scores, begin, begin + shape.experts_per_rank());
        }
        case Routing::Kind::kHotRank:
            return hot_experts(scorer, scores);
        case Routing::Kind::kZipf: {
            const std::vector<int> places = expert_places(scorer.suite_case, shape.num_experts);
            std::vector<double> keys(scores.size());
            for (int e = 0; e < shape.num_experts; ++e) {
                keys[size_of(e)] = scorer.zipf_key(places[size_of(e)], e);
            }
            return ranked(keys, 0, shape.num_experts);
        }
        case Routing::Kind::kUniform:
        case Routing::Kind::kFirstTwice:
            break;
    }
    return ranked(scores, 0, shape.num_experts);
}

Status check_routing(const SuiteCase& suite_case, const Shape& shape) {
    const Routing& routing = suite_case.routing;
    const bool one_rank = routing.kind == Routing::Kind::kOnlyRank;
    const int available = one_rank ? shape.experts_per_rank() : shape.num_experts;
    if (shape.topk > available) {
        return {Code::kBadInput, fmt::format("case {}: topk = {} of {} experts that may be chosen",
                                             suite_case.name, shape.topk, available)};
    }
    if (routing.kind == Routing::Kind::kHotRank &&
        shape.topk > shape.num_experts - shape.experts_per_rank()) {
        return {Code::kBadInput,
                fmt::format("case {}: topk = {} of {} experts off the hot rank", suite_case.name,
                            shape.topk, shape.num_experts - shape.experts_per_rank())};
    }
    if (routing.kind == Routing::Kind::kOnlyExpert && routing.target >= shape.num_experts) {
        return {Code::kBadInput, fmt::format("case {}: expert {} of {}", suite_case.name,
                                             routing.target, shape.num_experts)};
    }
    return {};
}

// --- Tensors ---------------------------------------------------------------------------------

bool is_extreme(const SuiteCase& suite_case) {
    return suite_case.weight_scales.rfind("rows_of_codes", 0) == 0;
}

// 128 values of a token to codes and one scale word, times 2^exponent.
std::uint32_t quantise_chunk(const float* values, ActivationScale form, int exponent,
                             std::uint8_t* codes) {
    if (form == ActivationScale::kFp32K128) {
        float scale = 0.0F;
        numerics::quantise_e4m3_fp32(values, 128, codes, &scale);
        return numerics::float_to_bits(scale * numerics::power_of_two(exponent));
    }
    std::uint32_t scale_word = 0;
    for (int group = 0; group < 4; ++group) {
        std::uint8_t code = 0;
        numerics::quantise_e4m3_ue8m0(values + 32 * group, 32, codes + 32 * group, &code);
        const auto shifted = static_cast<std::uint32_t>(static_cast<int>(code) + exponent);
        scale_word |= shifted << (8 * group);
    }
    return scale_word;
}

void fill_token(const SuiteCase& suite_case, const Shape& shape, int live, int rank, int token,
                RankInputs* out) {
    const std::uint64_t seed = word(suite_case, Stream::kX, rank, token);
    const int exponent = is_extreme(suite_case) ? kExtremeXExponent : 0;
    const std::size_t num_chunks = size_of(shape.hidden / 128);
    for (std::size_t chunk = 0; chunk < num_chunks; ++chunk) {
        float values[128];
        for (std::size_t i = 0; i < 128; ++i) {
            const std::size_t col = chunk * 128 + i;
            values[i] = col < size_of(live) ? numerics::hash_normal(seed + col) : 0.0F;
        }
        const std::size_t place = size_of(token) * num_chunks + chunk;
        out->x_scale[place] =
            quantise_chunk(values, shape.activation_scale, exponent, out->x.data() + place * 128);
    }
}

void fill_routing(const SuiteCase& suite_case, const Shape& shape, int rank, int token,
                  RankInputs* out) {
    const Choice choice = choose_experts(suite_case, shape, rank, token);
    const std::vector<float> weights = softmax_weights(choice, suite_case.factor);
    const float scale =
        is_extreme(suite_case) ? numerics::power_of_two(kExtremeWeightExponent) : 1.0F;
    for (int slot = 0; slot < shape.topk; ++slot) {
        const std::size_t place = size_of(token) * size_of(shape.topk) + size_of(slot);
        const std::uint64_t draw =
            word(suite_case, Stream::kMask, rank, static_cast<std::int64_t>(place));
        const bool masked = static_cast<double>(numerics::hash_uniform(draw)) < suite_case.mask;
        const std::int64_t expert = masked ? -1 : choice.experts[size_of(slot)];
        out->topk_idx[place] = expert;
        out->topk_weight[place] = expert < 0 && suite_case.poison
                                      ? numerics::bits_to_float(0xFFFFFFFFU)
                                      : weights[size_of(slot)] * scale;
    }
}

// Rows past the tokens: nothing may depend on them.
void fill_unused(const SuiteCase& suite_case, const Shape& shape, RankInputs* out) {
    const std::size_t rows = size_of(out->capacity);
    const std::size_t slots = rows * size_of(shape.topk);
    const bool poison = suite_case.poison;
    out->x.assign(rows * size_of(shape.hidden), poison ? 0xFF : 0);
    out->x_scale.assign(rows * size_of(shape.hidden / 128), poison ? 0xFFFFFFFFU : 0);
    out->topk_weight.assign(slots, poison ? numerics::bits_to_float(0xFFFFFFFFU) : 0.0F);
    out->topk_idx.assign(slots, -1);
    if (!poison) return;
    for (std::size_t i = 0; i < slots; ++i) {
        out->topk_idx[i] = static_cast<std::int64_t>(i % size_of(shape.num_experts));
    }
}

}  // namespace

Choice choose_experts(const SuiteCase& suite_case, const Shape& shape, int rank, int token) {
    const Scorer scorer{suite_case, shape, rank, token};
    std::vector<double> scores(size_of(shape.num_experts));
    for (int e = 0; e < shape.num_experts; ++e) scores[size_of(e)] = scorer.score(e);
    const std::vector<int> chosen = candidates(scorer, scores);
    Choice choice;
    choice.experts.assign(size_of(shape.topk), -1);
    choice.scores.assign(size_of(shape.topk), 0.0);
    for (std::size_t slot = 0; slot < size_of(shape.topk) && slot < chosen.size(); ++slot) {
        choice.experts[slot] = chosen[slot];
        choice.scores[slot] = scores[size_of(chosen[slot])];
    }
    if (suite_case.routing.kind == Routing::Kind::kFirstTwice) {
        choice.experts[1] = choice.experts[0];
        choice.scores[1] = choice.scores[0];
    }
    return choice;
}

std::vector<float> softmax_weights(const Choice& choice, double factor) {
    double largest = -1e300;
    for (std::size_t i = 0; i < choice.experts.size(); ++i) {
        if (choice.experts[i] >= 0) largest = std::max(largest, choice.scores[i]);
    }
    double sum = 0.0;
    std::vector<double> parts(choice.experts.size(), 0.0);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (choice.experts[i] >= 0) parts[i] = std::exp(choice.scores[i] - largest);
        sum += parts[i];
    }
    std::vector<float> weights;
    for (const double part : parts) weights.push_back(static_cast<float>(part / sum * factor));
    return weights;
}

Status make_inputs(const SuiteCase& suite_case, CaseSize size, const Shape& shape, int rank,
                   RankInputs* out) {
    GCMOE_RETURN_IF_ERROR(check_routing(suite_case, shape));
    out->num_tokens = suite_case.tokens[size_of(rank)];
    out->capacity = suite_case.capacity;
    fill_unused(suite_case, shape, out);
    const int live = live_hidden(suite_case, size);
    const int pieces = ceil_div(out->num_tokens, kTokensOfThread);
    const auto threads = static_cast<int>(std::thread::hardware_concurrency());
    for_each_item(size_of(pieces), threads, [&](std::size_t piece) {
        const int first = static_cast<int>(piece) * kTokensOfThread;
        for (int token = first; token < std::min(first + kTokensOfThread, out->num_tokens);
             ++token) {
            fill_token(suite_case, shape, live, rank, token, out);
            fill_routing(suite_case, shape, rank, token, out);
        }
    });
    return {};
}

Status make_all_inputs(const SuiteCase& suite_case, CaseSize size, const Shape& shape,
                       std::vector<RankInputs>* out) {
    out->assign(size_of(shape.num_ranks), RankInputs{});
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        GCMOE_RETURN_IF_ERROR(make_inputs(suite_case, size, shape, rank, &(*out)[size_of(rank)]));
    }
    return {};
}

}  // namespace gcmoe::reference
