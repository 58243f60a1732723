#include "checkpoint/message.hpp"

#include <fmt/format.h>

#include <system_error>

namespace gcmoe::checkpoint {
namespace {

constexpr std::size_t kMaxQuotedBytes = 200;
constexpr std::size_t kMaxShownDims = 16;

}  // namespace

std::string printable(std::string_view text) {
    std::string out;
    for (const char character : text.substr(0, kMaxQuotedBytes)) {
        const auto byte = static_cast<unsigned char>(character);
        if (byte < 0x20 || byte > 0x7e) {
            out += fmt::format("\\x{:02x}", byte);
        } else {
            out += character;
        }
    }
    if (text.size() > kMaxQuotedBytes) out += fmt::format("... ({} bytes)", text.size());
    return out;
}

std::string quote(std::string_view text) { return "'" + printable(text) + "'"; }

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string out = "[";
    for (std::size_t dim_idx = 0; dim_idx < shape.size(); ++dim_idx) {
        if (dim_idx == kMaxShownDims) {
            out += fmt::format(", ... ({} dimensions)", shape.size());
            break;
        }
        if (dim_idx > 0) out += ", ";
        out += std::to_string(shape[dim_idx]);
    }
    return out + "]";
}

std::string errno_text(int error) {
    return fmt::format("{} ({})", std::generic_category().message(error), error);
}

}  // namespace gcmoe::checkpoint
