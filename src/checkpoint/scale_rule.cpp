#include "checkpoint/scale_rule.hpp"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr std::string_view kRowsWord = "rows_of_codes:";
constexpr std::string_view kK128Word = "span_per_k128:";
constexpr std::string_view kExpertWord = "span_per_expert:";
constexpr int kMaxCode = 254;
constexpr int kMaxSpan = 240;

Status fail(const std::string& text, const std::string& reason) {
    return {Code::kBadConfig, fmt::format("weight_scales {}: {}", quote(text), reason)};
}

// True if word is a plain number in [0, limit].
bool parse_count(std::string_view word, int limit, int* out) {
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *out);
    return error == std::errc() && end == word.data() + word.size() && *out >= 0 && *out <= limit;
}

bool starts_with(std::string_view text, std::string_view word) {
    return text.substr(0, word.size()) == word;
}

Status parse_codes(const std::string& text, ScaleRule* out) {
    std::string_view rest = std::string_view(text).substr(kRowsWord.size());
    for (bool is_last = false; !is_last;) {
        const std::size_t comma = rest.find(',');
        is_last = comma == std::string_view::npos;
        const std::string_view word = rest.substr(0, comma);
        int code = 0;
        if (!parse_count(word, kMaxCode, &code)) {
            return fail(text, fmt::format("{} is not a code in 0..{}", quote(word), kMaxCode));
        }
        if (out->num_codes == ScaleRule::kMaxCodes) {
            return fail(text, fmt::format("more than {} codes", ScaleRule::kMaxCodes));
        }
        out->codes[out->num_codes++] = static_cast<std::uint8_t>(code);
        if (!is_last) rest.remove_prefix(comma + 1);
    }
    out->kind = ScaleRule::Kind::kRowsOfCodes;
    return {};
}

Status parse_span(const std::string& text, ScaleRule* out) {
    const std::string_view all = text;
    const std::size_t middle = all.find(';');
    const std::string_view second =
        middle == std::string_view::npos ? std::string_view() : all.substr(middle + 1);
    if (!starts_with(second, kExpertWord)) {
        return fail(text, fmt::format("needs ';{}' and a count", kExpertWord));
    }
    const std::string_view per_k128 = all.substr(0, middle).substr(kK128Word.size());
    const std::string_view per_expert = second.substr(kExpertWord.size());
    if (!parse_count(per_expert, kMaxSpan, &out->span_per_expert)) {
        return fail(text, fmt::format("span_per_expert {} is not a count in 0..{}",
                                      quote(per_expert), kMaxSpan));
    }
    if (!parse_count(per_k128, out->span_per_expert, &out->span_per_k128)) {
        return fail(text, fmt::format("span_per_k128 {} is not a count in 0..{}", quote(per_k128),
                                      out->span_per_expert));
    }
    out->kind = ScaleRule::Kind::kSpan;
    return {};
}

}  // namespace

Status parse_scale_rule(const std::string& text, ScaleRule* out) {
    *out = {};
    if (text == "normal") return {};
    if (starts_with(text, kRowsWord)) return parse_codes(text, out);
    if (starts_with(text, kK128Word)) return parse_span(text, out);
    return fail(text,
                "needs 'normal', 'rows_of_codes:c0,c1,...' or "
                "'span_per_k128:a;span_per_expert:b'");
}

}  // namespace gcmoe::checkpoint
