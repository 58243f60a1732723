#include "tune_candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/math.hpp"
#include "plan/choose_plan.hpp"

namespace gcmoe::cli {
namespace {

constexpr int kDispatchSms[] = {2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32};
constexpr CombineUnits kForms[] = {CombineUnits::kFollow, CombineUnits::kDispatch,
                                   CombineUnits::kCompute, CombineUnits::kAll};
// Parts of the rules' ring and lead.
constexpr std::pair<int, int> kRings[] = {{1, 4}, {1, 2}, {1, 1}, {2, 1}, {4, 1}};
constexpr std::pair<int, int> kLeads[] = {{1, 4}, {1, 2}, {3, 4}, {1, 1}, {5, 4},
                                          {3, 2}, {2, 1}, {3, 1}, {4, 1}, {6, 1}};

// Reading weights half as often again costs more than any kernel of fewer rows saves.
constexpr int kMostReads = 3;
constexpr int kOfReads = 2;
// FP8 weights are two of FP4.
constexpr int kSharedReads = 2;

int part_of(int value, const std::pair<int, int>& part) {
    return std::max(value * part.first / part.second, 1);
}

CombineUnits units_of(layout::CombineOn units) {
    switch (units) {
        case layout::CombineOn::kCompute:
            return CombineUnits::kCompute;
        case layout::CombineOn::kFollow:
            return CombineUnits::kFollow;
        case layout::CombineOn::kDispatch:
            return CombineUnits::kDispatch;
        case layout::CombineOn::kAll:
            break;
    }
    return CombineUnits::kAll;
}

// The plan as options that name every value. Serial launches make their own plan of it: ring, lead
// and combine stay open.
PlanOptions spelled_out(const backend::Plan& plan, LaunchMode mode) {
    PlanOptions options;
    options.tuned = plan::kNoTable;
    options.partition = {static_cast<int>(plan.memory.dispatch_units),
                         static_cast<int>(plan.memory.compute_units)};
    options.row_block = static_cast<int>(plan.memory.row_block);
    if (mode == LaunchMode::kSerial) return options;
    options.ring_blocks = static_cast<int>(plan.memory.ring_blocks);
    options.lead_blocks = static_cast<int>(plan.lead_blocks);
    options.combine = units_of(plan.memory.combine_on);
    return options;
}

}  // namespace

std::string candidate_text(const Candidate& candidate) {
    const PlanOptions& plan = candidate.plan;
    std::string text = fmt::format("{}+{} SMs, {} rows", plan.partition.dispatch_units,
                                   plan.partition.compute_units, plan.row_block);
    if (candidate.launch_mode == LaunchMode::kSerial) return text + ", serial";
    text += fmt::format(", ring {}, lead {}, {}", plan.ring_blocks, plan.lead_blocks,
                        plan::combine_word(plan.combine));
    return candidate.launch_mode == LaunchMode::kEager ? text + ", eager" : text;
}

std::int64_t CandidateList::num_reads(int row_block) const {
    const std::int64_t shared =
        site_.shape.shared_inter == 0 ? 0 : kSharedReads * ceil_div(site_.tokens, row_block);
    std::int64_t reads = 0;
    for (const std::vector<int>& routing : site_.expert_rows) {
        reads += shared;
        for (const int rows : routing) reads += ceil_div(rows, row_block);
    }
    return reads;
}

bool CandidateList::is_dominated(int row_block) const {
    const std::int64_t reads = num_reads(row_block);
    if (row_block > plan::kMinRowBlock && num_reads(row_block - plan::kMinRowBlock) == reads) {
        return true;
    }
    return reads * kOfReads > num_reads(plan::kMaxRowBlock) * kMostReads;
}

Status CandidateList::add_rules() {
    backend::Plan plan;
    PlanOptions options;
    options.tuned = plan::kNoTable;
    GCMOE_RETURN_IF_ERROR(plan::choose_plan(site_.shape, site_.tokens, options,
                                            plan::gpu_machine(site_.sms, 1), &plan));
    offer(options, LaunchMode::kGraph);
    return {};
}

void CandidateList::offer(const PlanOptions& options, LaunchMode mode) {
    ++counts_.generated;
    PlanOptions asked = options;
    if (mode == LaunchMode::kSerial) {
        asked.overlap = false;
        asked.combine = CombineUnits::kCompute;
    }
    backend::Plan plan;
    if (!plan::choose_plan(site_.shape, site_.tokens, asked, plan::gpu_machine(site_.sms, 1), &plan)
             .ok()) {
        ++counts_.invalid;
        return;
    }
    const layout::PlanMemory& memory = plan.memory;
    const Key key{mode,
                  memory.dispatch_units,
                  memory.compute_units,
                  memory.row_block,
                  memory.ring_blocks,
                  plan.lead_blocks,
                  memory.combine_on};
    const bool is_first = seen_.empty();
    if (!seen_.insert(key).second) {
        ++counts_.duplicate;
    } else if (!is_first && is_dominated(static_cast<int>(memory.row_block))) {
        ++counts_.dominated;
    } else {
        kept_.push_back({spelled_out(plan, mode), mode});
    }
}

void CandidateList::add_grid() {
    for (int rows = plan::kMinRowBlock; rows <= plan::kMaxRowBlock; rows += plan::kMinRowBlock) {
        for (const CombineUnits form : kForms) {
            for (const int sms : kDispatchSms) {
                PlanOptions options;
                options.partition.dispatch_units = sms;
                options.row_block = rows;
                options.combine = form;
                offer(options, LaunchMode::kGraph);
            }
        }
    }
}

void CandidateList::add_variations(const PlanOptions& base) {
    for (const auto& ring : kRings) {
        for (const auto& lead : kLeads) {
            PlanOptions options = base;
            options.ring_blocks = part_of(base.ring_blocks, ring);
            options.lead_blocks = part_of(base.lead_blocks, lead);
            offer(options, LaunchMode::kGraph);
        }
    }
}

void CandidateList::add_launch_modes(const PlanOptions& base) {
    offer(base, LaunchMode::kEager);
    PlanOptions serial = base;
    serial.ring_blocks = 0;
    serial.lead_blocks = 0;
    offer(serial, LaunchMode::kSerial);
}

plan::TunedCounts CandidateList::counts() const {
    plan::TunedCounts counts = counts_;
    counts.measured = static_cast<int>(kept_.size());
    return counts;
}

}  // namespace gcmoe::cli
