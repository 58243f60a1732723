#include "plan/tuned_plan.hpp"

#include <fmt/format.h>

#include "plan/tuned_table.hpp"

namespace gcmoe {

const char* plan_origin_name(PlanOrigin origin) {
    switch (origin) {
        case PlanOrigin::kExplicit:
            return "explicit";
        case PlanOrigin::kTuned:
            return "tuned";
        case PlanOrigin::kRule:
            return "rule";
    }
    return "?";
}

namespace plan {
namespace {

// An entry and what is said about it.
struct Found {
    const TunedTable* table = nullptr;
    const TunedEntry* entry = nullptr;
};

std::string entry_text(const Found& found) {
    const TunedEntry& entry = *found.entry;
    const TunedTable& table = *found.table;
    std::string text = fmt::format("{}, line {}: {}, {}..{} tokens, ", table.where, entry.line,
                                   entry.model, entry.from, entry.to);
    if (table.is_derived()) {
        return text + fmt::format("derived, not measured ({})", table.derived_from);
    }
    text += fmt::format("{:.1f} us at {} on {}", entry.median_us, entry.tokens, table.gpu);
    return text + fmt::format(", the rules' plan {:.1f} us", entry.default_us);
}

// Why no table can speak for this plan whatever is in it; empty: one can.
std::string no_table_reason(const PlanOptions& options, const Machine& machine) {
    if (options.tuned == kNoTable) return "none: not wanted";
    if (machine.sms == 0) return "none: tables are for a rank that has a GPU for itself";
    if (!options.overlap) return "none: tables are for plans with overlap";
    if (options.shared_experts == SharedExperts::kRole4) return "none: tables are not for role 4";
    return {};
}

// The caller's values, and the entry's where he gave none.
PlanOptions merged(const PlanOptions& given, const PlanOptions& entry, PlanOptions* tuned) {
    PlanOptions both = given;
    const auto fill = [](int* value, int from, int* filled) {
        if (*value != 0 || from == 0) return;
        *value = *filled = from;
    };
    if (given.partition.dispatch_units == 0 && given.partition.compute_units == 0) {
        both.partition = tuned->partition = entry.partition;
    }
    fill(&both.row_block, entry.row_block, &tuned->row_block);
    fill(&both.ring_blocks, entry.ring_blocks, &tuned->ring_blocks);
    fill(&both.lead_blocks, entry.lead_blocks, &tuned->lead_blocks);
    if (given.combine == CombineUnits::kAuto) both.combine = tuned->combine = entry.combine;
    return both;
}

Status find_in_tables(const Shape& shape, int max_tokens, const PlanOptions& options,
                      const Machine& machine, TunedTable* own, Found* out) {
    if (!options.tuned.empty()) {
        GCMOE_RETURN_IF_ERROR(read_tuned_table(options.tuned, own));
        *out = {own, find_entry(*own, shape, max_tokens, machine.sms)};
        return {};
    }
    for (const TunedTable& table : shipped_tables()) {
        *out = {&table, find_entry(table, shape, max_tokens, machine.sms)};
        if (out->entry != nullptr) break;
    }
    return {};
}

// True: the entry made the plan.
bool apply(const Shape& shape, int max_tokens, const Machine& machine, const Found& found,
           PlanSources* sources, backend::Plan* plan) {
    PlanOptions tuned;
    const PlanOptions both = merged(sources->given, found.entry->options, &tuned);
    sources->note = entry_text(found);
    if (found.entry->keeps_rules()) {
        sources->note += ": the rules' values stay";
        sources->launch = launch_word(found.entry->launch);
        return false;
    }
    const Status status = choose_plan(shape, max_tokens, both, machine, plan);
    if (!status.ok()) {
        sources->note = fmt::format("set aside: {}; with the values given, {}", sources->note,
                                    status.message());
        return false;
    }
    sources->tuned = tuned;
    sources->launch = launch_word(found.entry->launch);
    return true;
}

PlanOrigin origin_of(bool is_given, bool is_tuned) {
    if (is_given) return PlanOrigin::kExplicit;
    return is_tuned ? PlanOrigin::kTuned : PlanOrigin::kRule;
}

}  // namespace

PlanReport PlanSources::report(const backend::Plan& plan) const {
    PlanReport report{plan.name, {}, note, launch};
    const layout::PlanMemory& memory = plan.memory;
    const auto add = [&](const char* name, const auto& value, bool is_given, bool is_tuned) {
        report.values.push_back({name, fmt::format("{}", value), origin_of(is_given, is_tuned)});
    };
    const auto add_number = [&](const char* name, std::uint32_t value, int asked, int filled) {
        add(name, value, asked != 0, filled != 0);
    };
    add_number("dispatch_units", memory.dispatch_units, given.partition.dispatch_units,
               tuned.partition.dispatch_units);
    add_number("compute_units", memory.compute_units, given.partition.compute_units,
               tuned.partition.compute_units);
    add_number("row_block", memory.row_block, given.row_block, tuned.row_block);
    add_number("ring_blocks", memory.ring_blocks, given.ring_blocks, tuned.ring_blocks);
    add_number("second_columns", memory.second_columns, given.second_columns, 0);
    add_number("lead_blocks", plan.lead_blocks, given.lead_blocks, tuned.lead_blocks);
    add("combine", combine_word(memory.combine_on), given.combine != CombineUnits::kAuto,
        tuned.combine != CombineUnits::kAuto);
    add("overlap", plan.overlap ? "on" : "off", !given.overlap, false);
    if (places_units) {
        add("placement", placement_word(plan.placement), given.placement != SmPlacement::kBalanced,
            false);
    }
    add("shared_experts", plan.has_role4 ? "role4" : "in-order",
        given.shared_experts != SharedExperts::kAuto, false);
    return report;
}

Status choose_tuned_plan(const Shape& shape, int max_tokens, const PlanOptions& options,
                         const Machine& machine, backend::Plan* plan, PlanSources* sources) {
    *sources = {};
    sources->given = options;
    sources->places_units = machine.units_of_share != 0;
    TunedTable own;
    Found found;
    sources->note = no_table_reason(options, machine);
    if (sources->note.empty()) {
        GCMOE_RETURN_IF_ERROR(find_in_tables(shape, max_tokens, options, machine, &own, &found));
    } else if (!options.tuned.empty() && options.tuned != kNoTable) {
        GCMOE_RETURN_IF_ERROR(read_tuned_table(options.tuned, &own));
    }
    if (found.entry != nullptr && apply(shape, max_tokens, machine, found, sources, plan)) {
        return {};
    }
    if (sources->note.empty()) {
        sources->note = fmt::format("none: no entry for this layer and max_tokens = {} on {} SMs",
                                    max_tokens, machine.sms);
    }
    return choose_plan(shape, max_tokens, options, machine, plan);
}

}  // namespace plan
}  // namespace gcmoe
