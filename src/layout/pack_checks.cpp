#include "layout/pack_checks.hpp"

#include <fmt/format.h>

#include <utility>

#include "layout/weight_tile.hpp"

namespace gcmoe::layout {
namespace {

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

}  // namespace

Status check_packable(const Shape& shape, int rank) {
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

Status check_shared_expert(const Shape& shape, const SharedExpertBytes& bytes) {
    const int inter = shape.shared_inter;
    GCMOE_RETURN_IF_ERROR(check_shared_view("gate", bytes.gate, inter, shape.hidden));
    GCMOE_RETURN_IF_ERROR(check_shared_view("up", bytes.up, inter, shape.hidden));
    return check_shared_view("down", bytes.down, shape.hidden, inter);
}

}  // namespace gcmoe::layout
