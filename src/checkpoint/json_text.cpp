#include "checkpoint/json_text.hpp"

#include <fmt/format.h>

#include <memory>
#include <unordered_set>
#include <vector>

#include "checkpoint/input_file.hpp"
#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr int kMaxDepth = 32;

// Leaves the parser from inside its callback; never leaves parse_json.
struct Refusal {
    std::string reason;
};

// Sees every event of the parser and throws a Refusal for what strict JSON does not allow.
class StrictKeys {
  public:
    bool operator()(int depth, Json::parse_event_t event, Json& value) {
        if (event == Json::parse_event_t::object_start ||
            event == Json::parse_event_t::array_start) {
            if (depth >= kMaxDepth) {
                throw Refusal{fmt::format("nested deeper than {} levels", kMaxDepth)};
            }
            // Keys of the object that starts at this depth arrive with depth + 1.
            const auto level = static_cast<std::size_t>(depth) + 1;
            if (keys_.size() <= level) keys_.resize(level + 1);
            keys_[level].clear();
        } else if (event == Json::parse_event_t::key) {
            const std::string& key = value.get_ref<const std::string&>();
            if (!keys_[static_cast<std::size_t>(depth)].insert(key).second) {
                throw Refusal{fmt::format("the name {} stands there twice", quote(key))};
            }
        }
        return true;
    }

  private:
    std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

Status parse_json(std::string_view text, const std::string& where, Json* out) {
    StrictKeys strict;
    try {
        *out = Json::parse(text.begin(), text.end(),
                           [&strict](int depth, Json::parse_event_t event, Json& value) {
                               return strict(depth, event, value);
                           });
    } catch (const Refusal& refusal) {
        return {Code::kBadCheckpoint, fmt::format("{}: {}", where, refusal.reason)};
    } catch (const Json::exception& error) {
        return {Code::kBadCheckpoint,
                fmt::format("{} is not valid JSON: {}", where, printable(error.what()))};
    }
    return {};
}

Status read_json_file(const std::string& path, Json* out) {
    std::shared_ptr<const InputFile> file;
    GCMOE_RETURN_IF_ERROR(InputFile::open(path, &file));
    const std::string where = fmt::format("file {}", quote(path));
    if (file->num_bytes() > kMaxJsonBytes) {
        return {Code::kBadCheckpoint, fmt::format("{}: {} bytes of JSON, the cap is {}", where,
                                                  file->num_bytes(), kMaxJsonBytes)};
    }
    std::string text(file->num_bytes(), '\0');
    GCMOE_RETURN_IF_ERROR(file->read(0, text.size(), text.data()));
    GCMOE_RETURN_IF_ERROR(parse_json(text, where, out));
    if (!out->is_object()) {
        return {Code::kBadCheckpoint,
                fmt::format("{}: holds {}, needs a JSON object", where, json_text(*out))};
    }
    return {};
}

std::string json_text(const Json& value) {
    return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

}  // namespace gcmoe::checkpoint
