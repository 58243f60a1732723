#include "layout/packed_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/check.hpp"
#include "layout/pack_checks.hpp"
#include "layout/pack_expert.hpp"

namespace gcmoe {
namespace {

Status pack_storage(WeightSource& source, const PackOptions& options, PackedStorage* storage,
                    PackReport* report) {
    const Shape& shape = storage->shape;
    GCMOE_RETURN_IF_ERROR(layout::check_packable(shape, storage->rank));
    std::vector<bool> wanted;
    GCMOE_RETURN_IF_ERROR(
        layout::choose_experts(shape, storage->rank, options.only_experts, &wanted));
    storage->order = layout::routed_k_order(shape.activation_scale);
    storage->experts.resize(wanted.size());
    for (std::size_t local_idx = 0; local_idx < wanted.size(); ++local_idx) {
        if (!wanted[local_idx]) continue;
        const int expert_idx =
            storage->rank * shape.experts_per_rank() + static_cast<int>(local_idx);
        GCMOE_RETURN_IF_ERROR(layout::pack_expert(source, shape, expert_idx, options.allow_inexact,
                                                  &storage->experts[local_idx], report));
    }
    if (shape.shared_inter == 0) return Status();
    layout::PackedSharedExpert shared;
    GCMOE_RETURN_IF_ERROR(layout::pack_shared_expert(source, shape, &shared, report));
    storage->has_shared = true;
    storage->shared_first = std::move(shared.first);
    storage->shared_second = std::move(shared.second);
    return Status();
}

// Runs `call`; what it throws becomes a status. What is neither a broken promise nor a lack of
// memory comes from the user's WeightSource.
template <class Call>
Status guarded(int rank, const PackReport& report, const Call& call) {
    try {
        return call();
    } catch (const InternalError& error) {
        return Status(Code::kInternal, error.what());
    } catch (const std::bad_alloc&) {
        return Status(Code::kUnsupported,
                      fmt::format("out of memory while packing rank {}, after {} experts and {} "
                                  "bytes of tiles",
                                  rank, report.num_experts, report.packed_bytes));
    } catch (const std::exception& error) {
        return Status(Code::kBadCheckpoint,
                      fmt::format("the weight source threw while packing rank {}, after {} "
                                  "experts: {}",
                                  rank, report.num_experts, error.what()));
    } catch (...) {
        return Status(Code::kBadCheckpoint,
                      fmt::format("the weight source threw while packing rank {}, after {} "
                                  "experts: no std::exception",
                                  rank, report.num_experts));
    }
}

}  // namespace

Status PackedWeights::pack(WeightSource& source, const Shape& shape, int rank,
                           const PackOptions& options, std::shared_ptr<const PackedWeights>* out,
                           PackReport* report) {
    PackReport local_report;
    Status status = guarded(rank, local_report, [&]() -> Status {
        auto storage = std::make_unique<PackedStorage>();
        storage->shape = shape;
        storage->rank = rank;
        GCMOE_RETURN_IF_ERROR(pack_storage(source, options, storage.get(), &local_report));
        *out = std::make_shared<const PackedWeights>(std::move(storage));
        return {};
    });
    if (!status.ok()) return status;
    if (report != nullptr) *report = local_report;
    return Status();
}

PackedWeights::PackedWeights(std::unique_ptr<PackedStorage> storage)
    : storage_(std::move(storage)) {}

PackedWeights::~PackedWeights() = default;

bool PackedWeights::has_expert(int expert_idx) const {
    const int num_local = static_cast<int>(storage_->experts.size());
    const int local_idx = expert_idx - storage_->rank * num_local;
    if (local_idx < 0 || local_idx >= num_local) return false;
    if (storage_->experts[static_cast<std::size_t>(local_idx)] != nullptr) return true;
    return storage_->device != nullptr && storage_->device->has_expert(local_idx);
}

}  // namespace gcmoe
