#include "plan/tuned_fields.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/message.hpp"
#include "plan/tuned_table.hpp"

namespace gcmoe::plan {

using checkpoint::Json;
using checkpoint::json_text;

namespace {

constexpr std::size_t kMostIntegers = 100;

bool is_integer_in(const Json& value, int least, int most) {
    if (!value.is_number_integer()) return false;
    // Above the largest signed number it would wrap.
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{1} << 62) {
        return false;
    }
    const auto number = value.get<std::int64_t>();
    return number >= least && number <= most;
}

}  // namespace

TunedFields::TunedFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) fail(fmt::format("holds {}, needs an object", json_text(object_)));
}

void TunedFields::fail(const std::string& what) {
    if (status_.ok()) status_ = {Code::kBadConfig, fmt::format("{}: {}", where_, what)};
}

void TunedFields::bad(const char* name, const Json& value, const std::string& rule) {
    fail(fmt::format("{} = {} must be {}", name, json_text(value), rule));
}

const Json* TunedFields::find(const char* name, bool optional) {
    known_.insert(name);
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    if (!optional) fail(fmt::format("{} is missing", name));
    return nullptr;
}

void TunedFields::text(const char* name, std::string* out) {
    const Json* value = find(name, false);
    if (value == nullptr) return;
    if (!value->is_string() || value->get_ref<const std::string&>().empty()) {
        return bad(name, *value, "a text that is not empty");
    }
    *out = checkpoint::printable(value->get_ref<const std::string&>());
}

void TunedFields::text_or_null(const char* name, std::string* out) {
    const Json* value = find(name, false);
    if (value == nullptr || value->is_null()) return;
    text(name, out);
}

void TunedFields::integer(const char* name, int least, int most, int* out) {
    const Json* value = find(name, false);
    if (value == nullptr) return;
    if (!is_integer_in(*value, least, most)) {
        return bad(name, *value, fmt::format("a whole number in {}..{}", least, most));
    }
    *out = value->get<int>();
}

void TunedFields::optional_integer(const char* name, int least, int most, int* out) {
    if (find(name, true) != nullptr) integer(name, least, most, out);
}

void TunedFields::boolean(const char* name, bool* out) {
    const Json* value = find(name, false);
    if (value == nullptr) return;
    if (!value->is_boolean()) return bad(name, *value, "true or false");
    *out = value->get<bool>();
}

void TunedFields::number(const char* name, double least, double most, double* out) {
    const Json* value = find(name, false);
    if (value == nullptr) return;
    const bool fits =
        value->is_number() && value->get<double>() >= least && value->get<double>() <= most;
    if (!fits) return bad(name, *value, fmt::format("a number in {}..{}", least, most));
    *out = value->get<double>();
}

void TunedFields::null(const char* name, const char* why) {
    const Json* value = find(name, false);
    if (value != nullptr && !value->is_null()) bad(name, *value, fmt::format("null: {}", why));
}

void TunedFields::integers(const char* name, int least, int most, std::vector<int>* out) {
    const Json* value = find(name, false);
    if (value == nullptr) return;
    const bool fits = value->is_array() && !value->empty() && value->size() <= kMostIntegers &&
                      std::all_of(value->begin(), value->end(),
                                  [&](const Json& one) { return is_integer_in(one, least, most); });
    if (!fits) {
        return bad(
            name, *value,
            fmt::format("a list of 1 to {} whole numbers in {}..{}", kMostIntegers, least, most));
    }
    *out = value->get<std::vector<int>>();
}

void TunedFields::word(const char* name, const std::vector<std::string>& words, int* out) {
    const Json* value = find(name, false);
    if (value == nullptr) return;
    const auto found = value->is_string()
                           ? std::find(words.begin(), words.end(), value->get<std::string>())
                           : words.end();
    if (found == words.end()) {
        return bad(name, *value, fmt::format("one of {}", fmt::join(words, ", ")));
    }
    *out = static_cast<int>(found - words.begin());
}

void TunedFields::optional_word(const char* name, const std::vector<std::string>& words, int* out) {
    if (find(name, true) != nullptr) word(name, words, out);
}

const Json* TunedFields::object(const char* name) { return find(name, false); }

Status TunedFields::end() {
    if (!status_.ok()) return status_;
    for (const auto& [name, value] : object_.items()) {
        if (known_.count(name) != 0) continue;
        fail(fmt::format("the field {} is unknown in version {}", checkpoint::quote(name),
                         kTunedVersion));
        break;
    }
    return status_;
}

}  // namespace gcmoe::plan
