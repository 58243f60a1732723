#include "command_words.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>

#include "console.hpp"

namespace gcmoe::cli {
namespace {

// An option where a value was expected; a negative number is none.
bool is_option(const std::string& word) { return word.rfind("--", 0) == 0 || word == "-h"; }

template <class T>
bool is_number(const std::string& word) {
    const char* begin = word.data() + (word.rfind('+', 0) == 0 ? 1 : 0);
    const char* end = word.data() + word.size();
    T value{};
    const std::from_chars_result result = std::from_chars(begin, end, value);
    if (result.ec != std::errc() || result.ptr != end) return false;
    if constexpr (std::is_floating_point_v<T>) return std::isfinite(value);
    return true;
}

Status check_number(const std::string& name, const std::string& type, const std::string& value) {
    if (type == "INT") {
        if (is_number<int>(value)) return {};
        return option_error(
            name, value,
            fmt::format("must be a whole number in {}..{}", std::numeric_limits<int>::min(),
                        std::numeric_limits<int>::max()));
    }
    if (type == "UINT") {
        if (is_number<std::uint64_t>(value)) return {};
        return option_error(name, value,
                            fmt::format("must be a whole number in 0..{}",
                                        std::numeric_limits<std::uint64_t>::max()));
    }
    if (type != "FLOAT" || is_number<double>(value)) return {};
    return option_error(name, value, "must be a finite number");
}

Status check_value(const CLI::Option& option, const std::string& name, const std::string& value) {
    if (value.empty()) return option_error(name, "", "has an empty value");
    return check_number(name, option.get_type_name(), value);
}

}  // namespace

Status check_words(const CLI::App& command, const std::vector<std::string>& words) {
    for (std::size_t idx = 0; idx < words.size() && words[idx] != "--"; ++idx) {
        const std::string& word = words[idx];
        if (word.rfind("--", 0) != 0) continue;
        const std::size_t equals = word.find('=');
        const std::string name = word.substr(0, equals);
        const CLI::Option* option = command.get_option_no_throw(name);
        if (option == nullptr) continue;
        if (option->get_items_expected_max() == 0) {
            if (equals == std::string::npos) continue;
            return option_error(name, word.substr(equals + 1),
                                "takes no value: give the option or leave it out");
        }
        if (option->get_items_expected_min() == 0) continue;
        if (equals != std::string::npos) {
            GCMOE_RETURN_IF_ERROR(check_value(*option, name, word.substr(equals + 1)));
            continue;
        }
        if (idx + 1 == words.size()) {
            return option_error(name, "", "needs a value: " + option->get_type_name());
        }
        if (is_option(words[idx + 1])) {
            return option_error(name, "",
                                fmt::format("needs a value, but the option {} follows ({}={} if it "
                                            "is the value)",
                                            words[idx + 1], name, words[idx + 1]));
        }
        const bool takes_many = option->get_items_expected_max() > 1;
        do {
            GCMOE_RETURN_IF_ERROR(check_value(*option, name, words[++idx]));
        } while (takes_many && idx + 1 < words.size() && !is_option(words[idx + 1]));
    }
    return {};
}

}  // namespace gcmoe::cli
