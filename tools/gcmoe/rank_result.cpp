#include "rank_result.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/byte_stream.hpp"
#include "base/status_of.hpp"
#include "cpu/shared_memory.hpp"
#include "gcmoe_version.hpp"

namespace gcmoe::cli {
namespace {

using group::HostSession;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

// Calls visit(field) for everything that goes over, in one order for both ways.
template <class Result, class Visit>
void visit_fields(Result* result, const Visit& visit) {
    auto& stages = result->stages;
    visit(&stages.max_tokens);
    visit(&stages.num_tokens);
    visit(&stages.act);
    visit(&stages.act_scale);
    visit(&stages.combine);
    visit(&stages.shared_act);
    visit(&stages.shared_act_scale);
    visit(&stages.shared_row);
    visit(&stages.y);
    auto& statistics = result->statistics;
    visit(&statistics.generation);
    visit(&statistics.session);
    visit(&statistics.rows);
    visit(&statistics.blocks);
    visit(&statistics.laps);
    visit(&statistics.times);
    visit(&statistics.expert_rows);
    visit(&result->packed);
    visit(&result->launch_s);
    visit(&result->difference);
}

Status read_result(const SharedHandle& handle, RankResult* out) {
    cpu::SharedMemory memory;
    GCMOE_RETURN_IF_ERROR(cpu::SharedMemory::map(handle, handle.bytes, &memory));
    ByteReader reader(memory.data(), memory.size());
    visit_fields(out, [&reader](auto* field) { reader.get(field); });
    if (reader.is_whole()) return {};
    return {Code::kBadInput,
            fmt::format("a rank's result of {} bytes is not as long as it says", memory.size())};
}

Status share_result(const RankResult& result, SharedHandle* out) {
    ByteWriter writer;
    visit_fields(&result, [&writer](const auto* field) { writer.put(*field); });
    const std::vector<std::uint8_t> bytes = writer.take();
    cpu::SharedMemory memory;
    GCMOE_RETURN_IF_ERROR(cpu::SharedMemory::create(bytes.size(), &memory));
    std::memcpy(memory.data(), bytes.data(), bytes.size());
    return memory.share(out);
}

}  // namespace

reference::RankStages copy_stages(const Shape& shape, int num_tokens,
                                  const reference::RankOutputs& from) {
    const std::size_t slots = size_of(from.max_tokens) * size_of(shape.topk);
    const std::size_t all_slots = slots * size_of(shape.num_ranks);
    const std::size_t hidden = size_of(shape.hidden);
    const std::size_t tokens = size_of(from.max_tokens);
    reference::RankStages stages;
    stages.max_tokens = from.max_tokens;
    stages.num_tokens = num_tokens;
    stages.act.assign(from.act, from.act + all_slots * size_of(shape.inter));
    stages.act_scale.assign(from.act_scale,
                            from.act_scale + all_slots * size_of(shape.inter / 128));
    stages.combine.resize(slots * hidden);
    for (std::size_t slot = 0; slot < slots; ++slot) {
        std::memcpy(stages.combine.data() + slot * hidden,
                    from.combine + slot * from.combine_stride, hidden * sizeof(std::uint16_t));
    }
    stages.y.assign(from.y, from.y + size_of(num_tokens) * hidden);
    if (shape.shared_inter == 0) return stages;
    const std::size_t inter = size_of(shape.shared_inter);
    stages.shared_act.assign(from.shared_act, from.shared_act + tokens * inter);
    stages.shared_act_scale.assign(from.shared_act_scale,
                                   from.shared_act_scale + tokens * (inter / 128));
    stages.shared_row.assign(from.shared_row, from.shared_row + tokens * hidden);
    return stages;
}

Status check_sizes(const Shape& shape, const ResultSizes& known, const RankResult& result) {
    const reference::RankStages& stages = result.stages;
    const std::size_t tokens = known.has_stages ? size_of(known.max_tokens) : 0;
    const std::size_t local_experts = size_of(shape.num_experts / shape.num_ranks);
    const std::size_t slots = tokens * size_of(shape.topk);
    const std::size_t all_slots = slots * size_of(shape.num_ranks);
    const std::size_t hidden = size_of(shape.hidden);
    const std::size_t shared = size_of(shape.shared_inter);
    const struct {
        const char* name;
        std::size_t found;
        std::size_t wanted;
    } sizes[] = {
        {"max_tokens", size_of(stages.max_tokens), tokens},
        {"num_tokens", size_of(stages.num_tokens), size_of(known.num_tokens)},
        {"act", stages.act.size(), all_slots * size_of(shape.inter)},
        {"act_scale", stages.act_scale.size(), all_slots * size_of(shape.inter / 128)},
        {"combine", stages.combine.size(), slots * hidden},
        {"shared_act", stages.shared_act.size(), tokens * shared},
        {"shared_act_scale", stages.shared_act_scale.size(), tokens * (shared / 128)},
        {"shared_row", stages.shared_row.size(), shared > 0 ? tokens * hidden : 0},
        {"y", stages.y.size(), size_of(known.num_tokens) * hidden},
        {"expert_rows", result.statistics.expert_rows.size(),
         known.has_statistics ? local_experts : 0},
    };
    for (const auto& one : sizes) {
        if (one.found == one.wanted) continue;
        return {Code::kBadInput, fmt::format("a rank's result: {} is {} where this process has {}",
                                             one.name, one.found, one.wanted)};
    }
    return {};
}

group::Configuration results_configuration() {
    return {{"build", fmt::format("{} ({})", kVersion, kCommit)}};
}

Status gather_results(RankResult own, const CheckResult& check, HostSession* session,
                      std::vector<RankResult>* all) {
    group::Offer offer;
    offer.subject = "results";
    offer.configuration = results_configuration();
    const bool collects = session->options().rank == 0;
    if (!collects) offer.failure = share_result(own, &offer.handle);
    std::vector<RankResult> results;
    if (collects) results.resize(size_of(session->options().num_ranks));
    Status taken;
    const auto take = [&](int rank, const SharedHandle& handle) {
        RankResult* result = collects ? &results[size_of(rank)] : nullptr;
        if (collects && taken.ok()) taken = read_result(handle, result);
        if (collects && taken.ok()) taken = check(rank, *result);
    };
    const auto prepare = [&taken](const group::Agreement&) { return taken; };
    GCMOE_RETURN_IF_ERROR(session->meet(std::move(offer), take, prepare));
    if (collects) results[0] = std::move(own);
    *all = std::move(results);
    return {};
}

Status or_decline(HostSession* session, const std::function<Status()>& step) {
    if (session == nullptr) return step();
    const Status own = status_of(step);
    if (own.ok()) return own;
    group::Offer offer;
    offer.subject = "session";
    offer.failure = own;
    const Status told = session->meet(
        std::move(offer), [](int, const SharedHandle&) {},
        [&own](const group::Agreement&) { return own; });
    // Rank 0 may have ended before; what this rank knows is more than that.
    return told.code() == Code::kStalled ? own : told;
}

Status meet_ranks(const std::string& subject, group::Configuration fields, HostSession* session) {
    group::Offer offer;
    offer.subject = subject;
    offer.configuration = std::move(fields);
    offer.configuration.emplace_back("build", fmt::format("{} ({})", kVersion, kCommit));
    return session->meet(
        std::move(offer), [](int, const SharedHandle&) {},
        [](const group::Agreement&) { return Status(); });
}

}  // namespace gcmoe::cli
