#include "reference/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/math.hpp"

namespace gcmoe::reference {
namespace {

// The columns of both files; the last two are the shared suite's.
constexpr const char* kColumns[] = {
    "name",   "model",         "hidden",   "inter",  "experts",     "topk",         "ranks",
    "tokens", "routing",       "mask",     "factor", "clamp",       "alpha",        "beta",
    "biases", "weight_scales", "capacity", "poison", "cpu_experts", "shared_inter", "shared_grid"};
constexpr std::size_t kRoutedColumns = 19;
constexpr std::size_t kSharedColumns = 21;

constexpr int kReduction = 8;
constexpr int kExpertMultiple = 8;

// Splits one line at commas; "a,b" in quotes is one field.
bool split_line(std::string_view line, std::vector<std::string>* fields) {
    fields->assign(1, "");
    bool quoted = false;
    for (const char c : line) {
        if (c == '"') {
            quoted = !quoted;
        } else if (c == ',' && !quoted) {
            fields->emplace_back();
        } else {
            fields->back() += c;
        }
    }
    return !quoted;
}

std::vector<std::string> split(const std::string& text, char separator) {
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

bool read_number(const std::string& text, double* out) {
    if (text.empty()) return false;
    char* end = nullptr;
    *out = std::strtod(text.c_str(), &end);
    return *end == '\0' && *out == *out;
}

bool read_int(const std::string& text, int low, int high, int* out) {
    double value = 0.0;
    if (!read_number(text, &value) || value < low || value > high) return false;
    *out = static_cast<int>(value);
    return static_cast<double>(*out) == value;
}

// One line's fields by position; the first bad one is remembered.
class Fields {
  public:
    Fields(int line, const std::vector<std::string>& fields) : line_(line), fields_(fields) {}

    [[nodiscard]] const std::string& text(std::size_t column) const { return fields_[column]; }
    int integer(std::size_t column, int low, int high) {
        int value = low;
        if (!read_int(fields_[column], low, high, &value)) {
            reject(column, fmt::format("is not a whole number in {}..{}", low, high));
        }
        return value;
    }
    double number(std::size_t column, double low, double high) {
        double value = low;
        if (!read_number(fields_[column], &value) || value < low || value > high) {
            reject(column, fmt::format("is not a number in {}..{}", low, high));
        }
        return value;
    }
    void reject(std::size_t column, const std::string& why) {
        if (!status_.ok()) return;
        status_ = Status(Code::kBadInput, fmt::format("suite line {}: {} = '{}' {}", line_,
                                                      kColumns[column], fields_[column], why));
    }
    [[nodiscard]] const Status& status() const { return status_; }

  private:
    int line_;
    const std::vector<std::string>& fields_;
    Status status_;
};

constexpr int kMaxCount = 1 << 20;

Routing read_routing(Fields* fields, std::size_t column, const SuiteCase& sizes) {
    Routing routing;
    const std::vector<std::string> parts = split(fields->text(column), ':');
    const auto is = [&](const char* name, std::size_t arguments) {
        return parts[0] == name && parts.size() == arguments + 1;
    };
    bool ok = true;
    if (is("uniform", 0)) {
        routing.kind = Routing::Kind::kUniform;
    } else if (is("first_twice", 0)) {
        routing.kind = Routing::Kind::kFirstTwice;
        ok = sizes.topk >= 2;
    } else if (is("only_expert", 1)) {
        routing.kind = Routing::Kind::kOnlyExpert;
        ok = read_int(parts[1], 0, sizes.experts - 1, &routing.target);
    } else if (is("only_rank", 1)) {
        routing.kind = Routing::Kind::kOnlyRank;
        ok = read_int(parts[1], 0, sizes.ranks - 1, &routing.target);
    } else if (is("hot_rank", 2)) {
        routing.kind = Routing::Kind::kHotRank;
        ok = read_int(parts[1], 0, sizes.ranks - 1, &routing.target) &&
             read_number(parts[2], &routing.amount) && routing.amount >= 0.0 &&
             routing.amount <= sizes.ranks;
    } else if (is("zipf", 1)) {
        routing.kind = Routing::Kind::kZipf;
        ok = read_number(parts[1], &routing.amount) && routing.amount >= 0.0;
    } else {
        ok = false;
    }
    if (!ok) fields->reject(column, "is no routing rule of this layer");
    return routing;
}

std::vector<int> read_tokens(Fields* fields, std::size_t column, const SuiteCase& sizes) {
    std::vector<int> tokens;
    for (const std::string& part : split(fields->text(column), ' ')) {
        int value = 0;
        if (!read_int(part, 0, sizes.capacity, &value)) {
            fields->reject(column, fmt::format("is not in 0..capacity = {}", sizes.capacity));
        }
        tokens.push_back(value);
    }
    if (tokens.size() == 1) tokens.assign(static_cast<std::size_t>(sizes.ranks), tokens[0]);
    if (tokens.size() != static_cast<std::size_t>(sizes.ranks)) {
        fields->reject(column, fmt::format("needs one number, or {}", sizes.ranks));
    }
    return tokens;
}

ScaleGrid read_grid(Fields* fields, std::size_t column) {
    const std::string& text = fields->text(column);
    if (text == "fp32-128x128") return ScaleGrid::kFp32Block128;
    if (text == "ue8m0-128x128") return ScaleGrid::kUe8m0Block128;
    if (text == "ue8m0-32x32") return ScaleGrid::kUe8m0Block32;
    if (text == "ue8m0-1x32") return ScaleGrid::kUe8m0Row32;
    fields->reject(column, "is no scale grid");
    return ScaleGrid::kUe8m0Block128;
}

SuiteCase read_case(Fields* fields, bool has_shared) {
    SuiteCase result;
    result.name = fields->text(0);
    if (result.name.empty()) fields->reject(0, "is empty");
    result.model = fields->text(1);
    result.hidden = fields->integer(2, 1, kMaxCount);
    result.inter = fields->integer(3, 1, kMaxCount);
    result.experts = fields->integer(4, 1, kMaxCount);
    result.topk = fields->integer(5, 1, result.experts);
    result.ranks = fields->integer(6, 1, 72);
    if (result.experts % result.ranks != 0) fields->reject(4, "is no multiple of ranks");
    result.capacity = fields->integer(16, 1, kMaxCount);
    result.tokens = read_tokens(fields, 7, result);
    result.routing = read_routing(fields, 8, result);
    result.mask = fields->number(9, 0.0, 1.0);
    result.factor = fields->number(10, 0.0, 1e3);
    constexpr float kOff = std::numeric_limits<float>::infinity();
    result.activation.clamp =
        fields->text(11) == "off" ? kOff : static_cast<float>(fields->number(11, 1e-6, 1e6));
    result.activation.alpha = static_cast<float>(fields->number(12, -1e3, 1e3));
    result.activation.beta = static_cast<float>(fields->number(13, -1e3, 1e3));
    result.biases = fields->integer(14, 0, 1) == 1;
    result.weight_scales = fields->text(15);
    if (result.weight_scales.empty()) fields->reject(15, "is empty");
    result.poison = fields->integer(17, 0, 1) == 1;
    result.cpu_experts = fields->integer(18, 0, result.experts);
    if (has_shared) {
        result.shared_inter = fields->integer(19, 1, kMaxCount);
        result.shared_grid = read_grid(fields, 20);
    }
    return result;
}

// The names of the columns, as the first line must give them.
std::string header_line(std::size_t num_columns) {
    std::string line = kColumns[0];
    for (std::size_t i = 1; i < num_columns; ++i) line += std::string(",") + kColumns[i];
    return line;
}

int nearest_multiple(int value, int divisor, int multiple, int least) {
    // round(value / divisor / multiple) * multiple, a half goes up
    const int unit = divisor * multiple;
    return std::max((2 * value + unit) / (2 * unit) * multiple, least);
}

bool keeps_inter(const SuiteCase& suite_case) {
    return suite_case.name == "v4.1-flash-t8" || suite_case.name == "glm-5.2-t16" ||
           (suite_case.name == "masked-30" && suite_case.shared_inter == 4608);
}

}  // namespace

Status parse_suite(std::string_view csv, std::vector<SuiteCase>* out) {
    out->clear();
    std::size_t num_columns = 0;
    int line_number = 0;
    while (!csv.empty()) {
        const std::size_t end = std::min(csv.find('\n'), csv.size());
        std::string_view line = csv.substr(0, end);
        csv.remove_prefix(std::min(end + 1, csv.size()));
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        ++line_number;
        if (line_number == 1) {
            if (line == header_line(kRoutedColumns)) num_columns = kRoutedColumns;
            if (line == header_line(kSharedColumns)) num_columns = kSharedColumns;
            if (num_columns != 0) continue;
            return {Code::kBadInput,
                    fmt::format("suite line 1: columns '{}' are not those of a suite", line)};
        }
        if (line.empty()) continue;
        std::vector<std::string> texts;
        if (!split_line(line, &texts) || texts.size() != num_columns) {
            return {Code::kBadInput, fmt::format("suite line {}: {} fields, expected {}",
                                                 line_number, texts.size(), num_columns)};
        }
        Fields fields(line_number, texts);
        out->push_back(read_case(&fields, num_columns == kSharedColumns));
        GCMOE_RETURN_IF_ERROR(fields.status());
    }
    if (out->empty()) return {Code::kBadInput, "suite without a case"};
    return {};
}

Shape case_shape(const SuiteCase& suite_case, CaseSize size) {
    Shape shape;
    shape.topk = suite_case.topk;
    shape.num_ranks = suite_case.ranks;
    shape.has_bias = suite_case.biases;
    shape.activation = suite_case.activation;
    if (size == CaseSize::kFull) {
        shape.hidden = round_up(suite_case.hidden, 128);
        shape.inter = round_up(suite_case.inter, 128);
        shape.num_experts = suite_case.experts;
        shape.shared_inter = round_up(suite_case.shared_inter, 128);
        return shape;
    }
    const int divisor = keeps_inter(suite_case) ? 1 : kReduction;
    shape.hidden = nearest_multiple(suite_case.hidden, kReduction, 128, 128);
    shape.inter = nearest_multiple(suite_case.inter, divisor, 128, 128);
    shape.num_experts = suite_case.cpu_experts != 0
                            ? suite_case.cpu_experts
                            : nearest_multiple(suite_case.experts, kReduction, kExpertMultiple,
                                               std::max(round_up(suite_case.topk, kExpertMultiple),
                                                        kExpertMultiple));
    if (suite_case.shared_inter > 0) {
        shape.shared_inter = nearest_multiple(suite_case.shared_inter, divisor, 128, 128);
    }
    return shape;
}

Shape live_shape(const SuiteCase& suite_case, CaseSize size) {
    Shape shape = case_shape(suite_case, size);
    if (size == CaseSize::kFull) {
        shape.hidden = suite_case.hidden;
        shape.inter = suite_case.inter;
        shape.shared_inter = suite_case.shared_inter;
    }
    return shape;
}

int live_hidden(const SuiteCase& suite_case, CaseSize size) {
    return live_shape(suite_case, size).hidden;
}

}  // namespace gcmoe::reference
