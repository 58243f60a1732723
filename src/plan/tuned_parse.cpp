// The text of a tuned table: what each field may hold.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "checkpoint/input_file.hpp"
#include "checkpoint/message.hpp"
#include "plan/choose_plan.hpp"
#include "plan/tuned_fields.hpp"
#include "plan/tuned_table.hpp"

namespace gcmoe::plan {
namespace {

using checkpoint::Json;

constexpr int kMost = std::numeric_limits<int>::max();
constexpr int kMostLaunches = 100000;
constexpr int kMostMib = 1 << 20;
constexpr double kMostUs = 1e9;
constexpr double kMostPercent = 100;

std::string line_of(const TunedTable& table, int line) {
    return fmt::format("{}, line {}", table.where, line);
}

Status read_head(const Json& object, const std::string& where, TunedTable* out) {
    TunedFields fields(object, where);
    int ignored = 0;
    fields.word("kind", {kTunedKind}, &ignored);
    fields.integer("version", kTunedVersion, kTunedVersion, &ignored);
    fields.text("gpu", &out->gpu);
    fields.integer("sms", 2, kMaxUnits, &out->sms);
    fields.text_or_null("derived_from", &out->derived_from);
    fields.text("driver", &out->driver);
    fields.text("commit", &out->commit);
    fields.text("date", &out->date);
    fields.integer("warm", 0, kMostLaunches, &out->warm);
    fields.integer("timed", 1, kMostLaunches, &out->timed);
    fields.integer("flush_mib", 0, kMostMib, &out->flush_mib);
    fields.integers("seeds", 0, kMost, &out->seeds);
    fields.number("threshold_percent", 0, kMostPercent, &out->threshold_percent);
    return fields.end();
}

Status read_options(const Json& object, const std::string& where, PlanOptions* out) {
    TunedFields fields(object, where);
    fields.optional_integer("dispatch_units", 1, kMaxUnits, &out->partition.dispatch_units);
    fields.optional_integer("compute_units", 1, kMaxUnits, &out->partition.compute_units);
    fields.optional_integer("row_block", kMinRowBlock, kMaxRowBlock, &out->row_block);
    fields.optional_integer("ring_blocks", 1, kMaxRingBlocks, &out->ring_blocks);
    fields.optional_integer("lead_blocks", 1, kMaxRingBlocks, &out->lead_blocks);
    int combine = 0;
    fields.optional_word("combine", {"auto", "follow", "compute", "dispatch", "all"}, &combine);
    out->combine = static_cast<CombineUnits>(combine);
    if ((out->partition.dispatch_units == 0) != (out->partition.compute_units == 0)) {
        fields.fail("dispatch_units and compute_units stand together: one of them is missing");
    }
    return fields.end();
}

Status read_counts(const Json& object, const std::string& where, TunedCounts* out) {
    TunedFields fields(object, where);
    fields.integer("generated", 1, kMost, &out->generated);
    fields.integer("invalid", 0, kMost, &out->invalid);
    fields.integer("duplicate", 0, kMost, &out->duplicate);
    fields.integer("dominated", 0, kMost, &out->dominated);
    fields.integer("budget", 0, kMost, &out->budget);
    fields.integer("measured", 0, kMost, &out->measured);
    fields.integer("finalists", 0, kMost, &out->finalists);
    const std::int64_t sum =
        std::int64_t{out->invalid} + out->duplicate + out->dominated + out->budget + out->measured;
    if (fields.ok() && sum != out->generated) {
        fields.fail(
            fmt::format("invalid + duplicate + dominated + budget + measured = {} "
                        "must be generated = {}",
                        sum, out->generated));
    }
    return fields.end();
}

void read_layer(TunedFields* fields, TunedLayer* out) {
    fields->integer("hidden", 1, kMost, &out->hidden);
    fields->integer("inter", 1, kMost, &out->inter);
    fields->integer("experts", 1, kMost, &out->experts);
    fields->integer("topk", 1, kMost, &out->topk);
    fields->integer("shared_inter", 0, kMost, &out->shared_inter);
    fields->boolean("bias", &out->bias);
    int scale = 0;
    fields->word("activation_scale", {"fp32-k128", "ue8m0-k32"}, &scale);
    out->activation_scale = static_cast<ActivationScale>(scale);
}

void read_band(TunedFields* fields, TunedEntry* out) {
    fields->integer("from", 1, kMost, &out->from);
    fields->integer("to", 1, kMost, &out->to);
    fields->integer("tokens", 1, kMost, &out->tokens);
    if (!fields->ok()) return;
    if (out->from > out->to) {
        fields->fail(fmt::format("from = {} must be at most to = {}", out->from, out->to));
    } else if (out->tokens < out->from || out->tokens > out->to) {
        fields->fail(fmt::format("tokens = {} must be in from..to = {}..{}", out->tokens, out->from,
                                 out->to));
    }
}

// Of the rest of the line, once the sizes are known to be right.
Status read_entry(const Json& object, const TunedTable& table, TunedEntry* out) {
    const std::string where = line_of(table, out->line);
    TunedFields fields(object, where);
    int ignored = 0;
    int launch = 0;
    fields.word("kind", {"entry"}, &ignored);
    fields.text("model", &out->model);
    read_layer(&fields, &out->layer);
    read_band(&fields, out);
    fields.word("launch", {"graph", "eager", "serial"}, &launch);
    out->launch = static_cast<LaunchMode>(launch);
    if (table.is_derived()) {
        fields.null("median_us", "the table is derived, nothing was measured");
        fields.null("default_us", "the table is derived, nothing was measured");
    } else {
        fields.number("median_us", 1e-3, kMostUs, &out->median_us);
        fields.number("default_us", 1e-3, kMostUs, &out->default_us);
    }
    const Json* options = fields.object("options");
    const Json* counts = fields.object("candidates");
    GCMOE_RETURN_IF_ERROR(fields.end());
    GCMOE_RETURN_IF_ERROR(read_options(*options, where + ": options", &out->options));
    GCMOE_RETURN_IF_ERROR(read_counts(*counts, where + ": candidates", &out->counts));
    out->options.name = where;
    return {};
}

// A layer that the operator takes, and a plan at both ends of the band.
Status check_entry(const TunedTable& table, const TunedEntry& entry) {
    const Shape shape = shape_of(entry.layer);
    if (Status status = validate(shape); !status.ok()) {
        return {Code::kBadConfig,
                fmt::format("{}: {}", line_of(table, entry.line), status.message())};
    }
    for (const int tokens : {entry.from, entry.to}) {
        backend::Plan plan;
        GCMOE_RETURN_IF_ERROR(
            choose_plan(shape, tokens, entry.options, gpu_machine(table.sms, 1), &plan));
    }
    return {};
}

// In the order of the file: the later of two entries that overlap is named.
Status check_bands(const TunedTable& table, const TunedEntry& entry) {
    for (const TunedEntry& other : table.entries) {
        if (!(other.layer == entry.layer)) continue;
        if (other.to < entry.from || other.from > entry.to) continue;
        return {Code::kBadConfig,
                fmt::format("{}: from..to = {}..{} overlaps {}..{} of the same layer, line {}",
                            line_of(table, entry.line), entry.from, entry.to, other.from, other.to,
                            other.line)};
    }
    return {};
}

Status read_line(std::string_view text, int line, TunedTable* out) {
    const std::string where = line_of(*out, line);
    Json object;
    if (Status status = checkpoint::parse_json(text, where, &object); !status.ok()) {
        return {Code::kBadConfig, status.message()};
    }
    if (line == 1) return read_head(object, where, out);
    if (out->entries.size() == kMaxTunedEntries) {
        return {Code::kBadConfig, fmt::format("{}: more than {} entries", where, kMaxTunedEntries)};
    }
    TunedEntry entry;
    entry.line = line;
    GCMOE_RETURN_IF_ERROR(read_entry(object, *out, &entry));
    GCMOE_RETURN_IF_ERROR(check_entry(*out, entry));
    GCMOE_RETURN_IF_ERROR(check_bands(*out, entry));
    out->entries.push_back(std::move(entry));
    return {};
}

}  // namespace

Status parse_tuned_table(std::string_view text, const std::string& where, TunedTable* out) {
    TunedTable table;
    table.where = where;
    if (text.size() > kMaxTunedBytes) {
        return {Code::kBadConfig, fmt::format("{}: {} bytes, at most {} are read", where,
                                              text.size(), kMaxTunedBytes)};
    }
    int line = 0;
    while (!text.empty()) {
        const std::size_t length = std::min(text.find('\n'), text.size());
        GCMOE_RETURN_IF_ERROR(read_line(text.substr(0, length), ++line, &table));
        text.remove_prefix(std::min(length + 1, text.size()));
    }
    if (table.entries.empty()) {
        return {Code::kBadConfig, fmt::format("{}: {}, needs a head and at least one entry", where,
                                              line == 0 ? "empty" : "no entry")};
    }
    *out = std::move(table);
    return {};
}

Status read_tuned_table(const std::string& path, TunedTable* out) {
    const std::string where = fmt::format("tuned table {}", checkpoint::quote(path));
    std::shared_ptr<const checkpoint::InputFile> file;
    if (Status status = checkpoint::InputFile::open(path, &file); !status.ok()) {
        return {Code::kBadConfig, fmt::format("{}: {}", where, status.message())};
    }
    if (file->num_bytes() > kMaxTunedBytes) {
        return {Code::kBadConfig, fmt::format("{}: {} bytes, at most {} are read", where,
                                              file->num_bytes(), kMaxTunedBytes)};
    }
    std::string text(file->num_bytes(), '\0');
    if (Status status = file->read(0, text.size(), text.data()); !status.ok()) {
        return {Code::kBadConfig, fmt::format("{}: {}", where, status.message())};
    }
    return parse_tuned_table(text, where, out);
}

}  // namespace gcmoe::plan
