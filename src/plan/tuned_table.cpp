#include "plan/tuned_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "plan/choose_plan.hpp"
#include "plan/shipped_tables.hpp"

namespace gcmoe::plan {
namespace {

std::vector<TunedTable> parse_shipped() {
    std::vector<TunedTable> tables;
    for (const auto& [name, text] : shipped_table_texts()) {
        const Status status = parse_tuned_table(text, fmt::format("the library's table '{}'", name),
                                                &tables.emplace_back());
        GCMOE_CHECK(status.ok(), status.message());
    }
    return tables;
}

// Nearest to `value * to / from`.
int in_proportion(int value, int to, int from) {
    return static_cast<int>((2 * std::int64_t{value} * to + from) / (2 * std::int64_t{from}));
}

// SMs are handed out in pairs, and role 1 needs one.
Partition scaled_partition(const Partition& partition, int to, int from) {
    if (partition.dispatch_units == 0) return {};
    const int pairs = std::max(in_proportion(partition.dispatch_units / 2, to, from), 1);
    const int share = gpu_machine(to, 1).units_of_share;
    return {2 * pairs, share - 2 * pairs};
}

}  // namespace

TunedLayer tuned_layer(const Shape& shape) {
    return {shape.hidden,       shape.inter,    shape.num_experts,     shape.topk,
            shape.shared_inter, shape.has_bias, shape.activation_scale};
}

Shape shape_of(const TunedLayer& layer) {
    Shape shape;
    shape.hidden = layer.hidden;
    shape.inter = layer.inter;
    shape.num_experts = layer.experts;
    shape.topk = layer.topk;
    shape.shared_inter = layer.shared_inter;
    shape.has_bias = layer.bias;
    shape.activation_scale = layer.activation_scale;
    return shape;
}

bool TunedEntry::keeps_rules() const {
    return options.partition.dispatch_units == 0 && options.partition.compute_units == 0 &&
           options.row_block == 0 && options.ring_blocks == 0 && options.lead_blocks == 0 &&
           options.combine == CombineUnits::kAuto;
}

double TunedEntry::gain_percent() const {
    return default_us > 0 ? 100 * (1 - median_us / default_us) : 0;
}

const std::vector<TunedTable>& shipped_tables() {
    static const std::vector<TunedTable> tables = parse_shipped();
    return tables;
}

const TunedEntry* find_entry(const TunedTable& table, const Shape& shape, int max_tokens, int sms) {
    if (table.sms != sms || shape.num_ranks != 1 ||
        shape.weight_placement != WeightPlacement::kBeforeRequantise) {
        return nullptr;
    }
    const TunedLayer layer = tuned_layer(shape);
    for (const TunedEntry& entry : table.entries) {
        const bool in_band = entry.from <= max_tokens && max_tokens <= entry.to;
        if (in_band && entry.layer == layer) return &entry;
    }
    return nullptr;
}

Status derive_table(const TunedTable& from, const std::string& gpu, int sms, TunedTable* out) {
    TunedTable table = from;
    table.where = fmt::format("{}, for {} SMs", from.where, sms);
    table.gpu = gpu;
    table.sms = sms;
    table.derived_from = fmt::format("{}, {} SMs", from.gpu, from.sms);
    for (TunedEntry& entry : table.entries) {
        entry.median_us = 0;
        entry.default_us = 0;
        PlanOptions& options = entry.options;
        options.partition = scaled_partition(options.partition, sms, from.sms);
        if (options.lead_blocks != 0) {
            options.lead_blocks = std::max(in_proportion(options.lead_blocks, sms, from.sms), 1);
        }
        for (const int tokens : {entry.from, entry.to}) {
            backend::Plan plan;
            GCMOE_RETURN_IF_ERROR(
                choose_plan(shape_of(entry.layer), tokens, options, gpu_machine(sms, 1), &plan));
        }
    }
    *out = std::move(table);
    return {};
}

const char* combine_word(CombineUnits units) {
    switch (units) {
        case CombineUnits::kAuto:
            return "auto";
        case CombineUnits::kFollow:
            return "follow";
        case CombineUnits::kCompute:
            return "compute";
        case CombineUnits::kDispatch:
            return "dispatch";
        case CombineUnits::kAll:
            return "all";
    }
    return "?";
}

const char* combine_word(layout::CombineOn units) {
    switch (units) {
        case layout::CombineOn::kCompute:
            return "compute";
        case layout::CombineOn::kFollow:
            return "follow";
        case layout::CombineOn::kDispatch:
            return "dispatch";
        case layout::CombineOn::kAll:
            return "all";
    }
    return "?";
}

const char* placement_word(SmPlacement placement) {
    switch (placement) {
        case SmPlacement::kBalanced:
            return "balanced";
        case SmPlacement::kInOrder:
            return "in-order";
        case SmPlacement::kByGpc:
            return "by-gpc";
    }
    return "?";
}

const char* launch_word(LaunchMode mode) {
    switch (mode) {
        case LaunchMode::kGraph:
            return "graph";
        case LaunchMode::kEager:
            return "eager";
        case LaunchMode::kSerial:
            return "serial";
    }
    return "?";
}

const char* scale_word(ActivationScale scale) {
    switch (scale) {
        case ActivationScale::kFp32K128:
            return "fp32-k128";
        case ActivationScale::kUe8m0K32:
            return "ue8m0-k32";
    }
    return "?";
}

}  // namespace gcmoe::plan
