#include "number_lists.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <set>

#include "console.hpp"

namespace gcmoe::cli {

bool parse_int(const std::string& word, int* out) {
    const char* end = word.data() + word.size();
    const std::from_chars_result result = std::from_chars(word.data(), end, *out);
    return result.ec == std::errc() && result.ptr == end;
}

bool parse_double(const std::string& word, double* out) {
    const char* end = word.data() + word.size();
    const std::from_chars_result result = std::from_chars(word.data(), end, *out);
    return result.ec == std::errc() && result.ptr == end && std::isfinite(*out);
}

std::vector<std::string> split_at(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
        if (c == separator) {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    return parts;
}

Status parse_counts(const std::string& option, const std::string& text, std::vector<int>* out) {
    out->clear();
    for (const std::string& word : split_at(text, ',')) {
        int count = 0;
        if (!parse_int(word, &count) || count < 0) {
            return option_error(option, text,
                                fmt::format("'{}' is no count; write 8 or 0,1,2,3", word));
        }
        out->push_back(count);
    }
    return {};
}

Status parse_ids(const std::string& option, const std::string& text, int limit,
                 std::vector<int>* out) {
    std::set<int> ids;
    for (const std::string& word : split_at(text, ',')) {
        const std::vector<std::string> ends = split_at(word, '-');
        int first = 0;
        int last = 0;
        if (ends.size() > 2 || !parse_int(ends.front(), &first) || !parse_int(ends.back(), &last)) {
            return option_error(option, text,
                                fmt::format("'{}' is no id or range; write 0-7,12", word));
        }
        if (first < 0 || last >= limit || first > last) {
            return option_error(option, text,
                                fmt::format("'{}' is not a range within 0..{}", word, limit - 1));
        }
        for (int id = first; id <= last; ++id) ids.insert(id);
    }
    out->assign(ids.begin(), ids.end());
    return {};
}

std::string ids_text(const std::vector<int>& ascending) {
    constexpr std::size_t kMostRanges = 8;
    std::vector<std::string> ranges;
    for (std::size_t begin = 0; begin < ascending.size();) {
        std::size_t end = begin + 1;
        while (end < ascending.size() && ascending[end] == ascending[end - 1] + 1) ++end;
        if (ranges.size() == kMostRanges) {
            ranges.emplace_back("...");
            break;
        }
        ranges.push_back(end - begin == 1
                             ? fmt::format("{}", ascending[begin])
                             : fmt::format("{}-{}", ascending[begin], ascending[end - 1]));
        begin = end;
    }
    return joined(ranges);
}

}  // namespace gcmoe::cli
