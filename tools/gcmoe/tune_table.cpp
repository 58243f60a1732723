#include "tune_table.hpp"

#include <cmath>
#include <filesystem>
#include <system_error>

#include "console.hpp"

namespace gcmoe::cli {
namespace {

using Json = nlohmann::ordered_json;
using plan::TunedEntry;
using plan::TunedTable;

Json microseconds(double us) { return us > 0 ? Json(std::round(us * 1e3) / 1e3) : Json(); }

Json head_json(const TunedTable& table) {
    return {{"kind", plan::kTunedKind},
            {"version", plan::kTunedVersion},
            {"gpu", table.gpu},
            {"sms", table.sms},
            {"derived_from", table.is_derived() ? Json(table.derived_from) : Json()},
            {"driver", table.driver},
            {"commit", table.commit},
            {"date", table.date},
            {"warm", table.warm},
            {"timed", table.timed},
            {"flush_mib", table.flush_mib},
            {"seeds", table.seeds},
            {"threshold_percent", table.threshold_percent}};
}

// What the rules choose is left out.
Json options_json(const PlanOptions& options) {
    Json object = Json::object();
    for (const auto& [name, value] :
         {std::pair("dispatch_units", options.partition.dispatch_units),
          std::pair("compute_units", options.partition.compute_units),
          std::pair("row_block", options.row_block), std::pair("ring_blocks", options.ring_blocks),
          std::pair("lead_blocks", options.lead_blocks)}) {
        if (value != 0) object[name] = value;
    }
    if (options.combine != CombineUnits::kAuto) {
        object["combine"] = plan::combine_word(options.combine);
    }
    return object;
}

Json entry_json(const TunedEntry& entry) {
    const plan::TunedCounts& counts = entry.counts;
    return {{"kind", "entry"},
            {"model", entry.model},
            {"hidden", entry.layer.hidden},
            {"inter", entry.layer.inter},
            {"experts", entry.layer.experts},
            {"topk", entry.layer.topk},
            {"shared_inter", entry.layer.shared_inter},
            {"bias", entry.layer.bias},
            {"activation_scale", plan::scale_word(entry.layer.activation_scale)},
            {"from", entry.from},
            {"to", entry.to},
            {"tokens", entry.tokens},
            {"options", options_json(entry.options)},
            {"launch", plan::launch_word(entry.launch)},
            {"median_us", microseconds(entry.median_us)},
            {"default_us", microseconds(entry.default_us)},
            {"candidates",
             {{"generated", counts.generated},
              {"invalid", counts.invalid},
              {"duplicate", counts.duplicate},
              {"dominated", counts.dominated},
              {"budget", counts.budget},
              {"measured", counts.measured},
              {"finalists", counts.finalists}}}};
}

}  // namespace

Status tuned_text(const TunedTable& table, std::string* out) {
    *out = head_json(table).dump(-1, ' ', true) + "\n";
    for (const TunedEntry& entry : table.entries)
        *out += entry_json(entry).dump(-1, ' ', true) + "\n";
    TunedTable back;
    const Status status = plan::parse_tuned_table(*out, "the table to be written", &back);
    return status.ok() ? status : Status(Code::kInternal, status.message());
}

Status TunedFile::open(const std::string& path, bool force) {
    if (path.empty()) return {};
    std::error_code error;
    if (!force && std::filesystem::exists(path, error)) {
        return option_error("--out", path, "is there already; --force replaces it");
    }
    const Status status = checkpoint::AtomicFile::create(path, &file_);
    return status.ok() ? status : option_error("--out", path, status.message());
}

Status TunedFile::write(const TunedTable& table) {
    if (file_ == nullptr) return {};
    std::string text;
    GCMOE_RETURN_IF_ERROR(tuned_text(table, &text));
    GCMOE_RETURN_IF_ERROR(file_->write(text.data(), text.size()));
    return file_->commit();
}

}  // namespace gcmoe::cli
