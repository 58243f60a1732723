#include "layout/packed_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "layout/pack_matrix.hpp"

namespace gcmoe {
namespace {

using layout::kChunkK;
using layout::kTileRows;
using layout::PackedExpert;
using layout::RoutedSource;
using layout::SharedSource;

// The part of the shape that packing depends on; validate(shape) judges the rest.
Status check_shape(const Shape& shape, int rank) {
    const auto refuse = [](const char* name, int value, const std::string& want) {
        return Status(Code::kBadConfig, fmt::format("{} = {} must be {}", name, value, want));
    };
    if (shape.hidden < kChunkK || shape.hidden % kChunkK != 0) {
        return refuse("hidden", shape.hidden, "a positive multiple of 128");
    }
    if (shape.inter < kChunkK || shape.inter % kChunkK != 0) {
        return refuse("inter", shape.inter, "a positive multiple of 128");
    }
    if (shape.shared_inter < 0 || shape.shared_inter % kChunkK != 0) {
        return refuse("shared_inter", shape.shared_inter, "0 or a positive multiple of 128");
    }
    if (shape.num_ranks < 1) return refuse("num_ranks", shape.num_ranks, "at least 1");
    if (shape.num_experts < shape.num_ranks || shape.num_experts % shape.num_ranks != 0) {
        return refuse("num_experts", shape.num_experts,
                      fmt::format("a positive multiple of num_ranks = {}", shape.num_ranks));
    }
    if (rank < 0 || rank >= shape.num_ranks) {
        return refuse("rank", rank, fmt::format("in 0..{}", shape.num_ranks - 1));
    }
    return Status();
}

// Marks which local experts to pack. Ids that belong to other ranks are none of ours.
Status choose_experts(const Shape& shape, int rank, const std::vector<int>& only_experts,
                      std::vector<bool>* wanted) {
    const int num_local = shape.experts_per_rank();
    wanted->assign(static_cast<std::size_t>(num_local), only_experts.empty());
    for (const int expert_idx : only_experts) {
        if (expert_idx < 0 || expert_idx >= shape.num_experts) {
            return Status(Code::kBadConfig,
                          fmt::format("only_experts names expert {}, the layer has {}", expert_idx,
                                      shape.num_experts));
        }
        const int local_idx = expert_idx - rank * num_local;
        if (local_idx < 0 || local_idx >= num_local) continue;
        (*wanted)[static_cast<std::size_t>(local_idx)] = true;
    }
    return Status();
}

template <class View>
Status check_view(const std::string& owner, const char* matrix, const View& view, int rows,
                  int cols, bool has_bytes) {
    if (view.rows != rows || view.cols != cols) {
        return Status(Code::kBadCheckpoint,
                      fmt::format("{} {} is {} x {}, the shape wants {} x {}", owner, matrix,
                                  view.rows, view.cols, rows, cols));
    }
    if (!has_bytes) {
        return Status(Code::kBadCheckpoint,
                      fmt::format("{} {} has no weights or no scales (null)", owner, matrix));
    }
    return Status();
}

Status check_routed_view(const std::string& owner, const char* matrix, const Mxfp4View& view,
                         int rows, int cols) {
    const bool has_bytes = view.nibbles != nullptr && view.scales != nullptr;
    return check_view(owner, matrix, view, rows, cols, has_bytes);
}

Status check_shared_view(const char* matrix, const Fp8View& view, int rows, int cols) {
    const bool has_bytes = view.codes != nullptr && view.scales != nullptr;
    return check_view("shared expert", matrix, view, rows, cols, has_bytes);
}

Status check_expert(const Shape& shape, const std::string& owner, const ExpertBytes& bytes) {
    GCMOE_RETURN_IF_ERROR(check_routed_view(owner, "gate", bytes.gate, shape.inter, shape.hidden));
    GCMOE_RETURN_IF_ERROR(check_routed_view(owner, "up", bytes.up, shape.inter, shape.hidden));
    GCMOE_RETURN_IF_ERROR(check_routed_view(owner, "down", bytes.down, shape.hidden, shape.inter));
    if (!shape.has_bias) return Status();
    const std::pair<const char*, const float*> biases[] = {
        {"gate", bytes.gate_bias}, {"up", bytes.up_bias}, {"down", bytes.down_bias}};
    for (const auto& [matrix, bias] : biases) {
        if (bias != nullptr) continue;
        return Status(Code::kBadCheckpoint,
                      fmt::format("{} has no {} bias, the shape says has_bias", owner, matrix));
    }
    return Status();
}

void copy_biases(const ExpertBytes& bytes, PackedExpert* out) {
    for (int packed_row = 0; packed_row < out->first.rows; ++packed_row) {
        const layout::FirstGemmRow row = layout::first_gemm_row(packed_row);
        out->first.bias.push_back((row.is_up ? bytes.up_bias : bytes.gate_bias)[row.column]);
    }
    out->second.bias.assign(bytes.down_bias, bytes.down_bias + out->second.rows);
}

Status pack_expert(WeightSource& source, const PackedStorage& storage, int expert_idx,
                   bool allow_inexact, std::unique_ptr<PackedExpert>* out, PackReport* report) {
    ExpertBytes bytes;  // the only expert in memory
    GCMOE_RETURN_IF_ERROR(source.expert(expert_idx, &bytes));
    const std::string owner = fmt::format("expert {}", expert_idx);
    GCMOE_RETURN_IF_ERROR(check_expert(storage.shape, owner, bytes));
    auto packed = std::make_unique<PackedExpert>();
    const RoutedSource first{owner, true, bytes.gate, bytes.up, {}};
    const RoutedSource second{owner, false, {}, {}, bytes.down};
    GCMOE_RETURN_IF_ERROR(
        layout::pack_matrix(first, storage.order, allow_inexact, &packed->first, report));
    GCMOE_RETURN_IF_ERROR(
        layout::pack_matrix(second, storage.order, allow_inexact, &packed->second, report));
    if (storage.shape.has_bias) copy_biases(bytes, packed.get());
    ++report->num_experts;
    *out = std::move(packed);
    return Status();
}

Status pack_shared(WeightSource& source, PackedStorage* storage, PackReport* report) {
    const Shape& shape = storage->shape;
    SharedExpertBytes bytes;
    GCMOE_RETURN_IF_ERROR(source.shared_expert(&bytes));
    const int inter = shape.shared_inter;
    GCMOE_RETURN_IF_ERROR(check_shared_view("gate", bytes.gate, inter, shape.hidden));
    GCMOE_RETURN_IF_ERROR(check_shared_view("up", bytes.up, inter, shape.hidden));
    GCMOE_RETURN_IF_ERROR(check_shared_view("down", bytes.down, shape.hidden, inter));
    const SharedSource first{"shared expert", true, bytes.gate, bytes.up, {}};
    const SharedSource second{"shared expert", false, {}, {}, bytes.down};
    GCMOE_RETURN_IF_ERROR(layout::pack_fp8_matrix(first, &storage->shared_first));
    GCMOE_RETURN_IF_ERROR(layout::pack_fp8_matrix(second, &storage->shared_second));
    storage->has_shared = true;
    for (const layout::PackedFp8Matrix* matrix :
         {&storage->shared_first, &storage->shared_second}) {
        report->packed_bytes +=
            static_cast<std::int64_t>(matrix->tiles.size() + matrix->scales.size() * sizeof(float));
    }
    return Status();
}

Status pack_storage(WeightSource& source, const PackOptions& options, PackedStorage* storage,
                    PackReport* report) {
    const Shape& shape = storage->shape;
    GCMOE_RETURN_IF_ERROR(check_shape(shape, storage->rank));
    std::vector<bool> wanted;
    GCMOE_RETURN_IF_ERROR(choose_experts(shape, storage->rank, options.only_experts, &wanted));
    storage->order = layout::routed_k_order(shape.activation_scale);
    storage->experts.resize(wanted.size());
    for (std::size_t local_idx = 0; local_idx < wanted.size(); ++local_idx) {
        if (!wanted[local_idx]) continue;
        const int expert_idx =
            storage->rank * shape.experts_per_rank() + static_cast<int>(local_idx);
        GCMOE_RETURN_IF_ERROR(pack_expert(source, *storage, expert_idx, options.allow_inexact,
                                          &storage->experts[local_idx], report));
    }
    return shape.shared_inter > 0 ? pack_shared(source, storage, report) : Status();
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
