#include "layout/pack_expert.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "layout/pack_checks.hpp"
#include "layout/pack_matrix.hpp"

namespace gcmoe::layout {
namespace {

// The sources of an expert's two matrices. View is Mxfp4View or Fp8View.
template <class View, class Bytes>
std::pair<MatrixSource<View>, MatrixSource<View>> sources_of(const std::string& owner,
                                                             const Bytes& bytes) {
    return {MatrixSource<View>{owner, true, bytes.gate, bytes.up, {}},
            MatrixSource<View>{owner, false, {}, {}, bytes.down}};
}

// row_of: which column's gate or up a packed row is.
template <class RowOf>
void copy_biases(const ExpertBytes& bytes, int first_rows, int second_rows, const RowOf& row_of,
                 std::vector<float>* first, std::vector<float>* second) {
    for (int packed_row = 0; packed_row < first_rows; ++packed_row) {
        const FirstGemmRow row = row_of(packed_row);
        first->push_back((row.is_up ? bytes.up_bias : bytes.gate_bias)[row.column]);
    }
    second->assign(bytes.down_bias, bytes.down_bias + second_rows);
}

Status read_expert(WeightSource& source, const Shape& shape, int expert_idx, ExpertBytes* out) {
    GCMOE_RETURN_IF_ERROR(source.expert(expert_idx, out));
    return check_expert(shape, fmt::format("expert {}", expert_idx), *out);
}

Status read_shared_expert(WeightSource& source, const Shape& shape, SharedExpertBytes* out) {
    GCMOE_RETURN_IF_ERROR(source.shared_expert(out));
    return check_shared_expert(shape, *out);
}

}  // namespace

Status pack_expert(WeightSource& source, const Shape& shape, int expert_idx, bool allow_inexact,
                   std::unique_ptr<PackedExpert>* out, PackReport* report) {
    ExpertBytes bytes;  // the only expert in memory
    GCMOE_RETURN_IF_ERROR(read_expert(source, shape, expert_idx, &bytes));
    const auto [first, second] = sources_of<Mxfp4View>(fmt::format("expert {}", expert_idx), bytes);
    const KOrder order = routed_k_order(shape.activation_scale);
    auto packed = std::make_unique<PackedExpert>();
    GCMOE_RETURN_IF_ERROR(pack_matrix(first, order, allow_inexact, &packed->first, report));
    GCMOE_RETURN_IF_ERROR(pack_matrix(second, order, allow_inexact, &packed->second, report));
    if (shape.has_bias) {
        copy_biases(bytes, packed->first.rows, packed->second.rows, first_gemm_row,
                    &packed->first.bias, &packed->second.bias);
    }
    ++report->num_experts;
    *out = std::move(packed);
    return Status();
}

Status pack_shared_expert(WeightSource& source, const Shape& shape, PackedSharedExpert* out,
                          PackReport* report) {
    SharedExpertBytes bytes;
    GCMOE_RETURN_IF_ERROR(read_shared_expert(source, shape, &bytes));
    const auto [first, second] = sources_of<Fp8View>("shared expert", bytes);
    GCMOE_RETURN_IF_ERROR(pack_fp8_matrix(first, &out->first));
    GCMOE_RETURN_IF_ERROR(pack_fp8_matrix(second, &out->second));
    for (const PackedFp8Matrix* matrix : {&out->first, &out->second}) {
        report->packed_bytes +=
            static_cast<std::int64_t>(matrix->tiles.size() + matrix->scales.size() * sizeof(float));
    }
    return Status();
}

Status pack_expert_sm100(WeightSource& source, const Shape& shape, int expert_idx, Sm100Expert* out,
                         PackReport* report) {
    ExpertBytes bytes;
    GCMOE_RETURN_IF_ERROR(read_expert(source, shape, expert_idx, &bytes));
    const auto [first, second] = sources_of<Mxfp4View>(fmt::format("expert {}", expert_idx), bytes);
    *out = {};
    GCMOE_RETURN_IF_ERROR(pack_sm100(first, &out->first, report));
    GCMOE_RETURN_IF_ERROR(pack_sm100(second, &out->second, report));
    if (shape.has_bias) {
        copy_biases(bytes, out->first.rows, out->second.rows, sm100_first_gemm_row,
                    &out->first.bias, &out->second.bias);
    }
    ++report->num_experts;
    return Status();
}

Status pack_shared_expert_sm100(WeightSource& source, const Shape& shape, bool allow_inexact,
                                Sm100Expert* out, PackReport* report) {
    SharedExpertBytes bytes;
    GCMOE_RETURN_IF_ERROR(read_shared_expert(source, shape, &bytes));
    const auto [first, second] = sources_of<Fp8View>("shared expert", bytes);
    *out = {};
    GCMOE_RETURN_IF_ERROR(pack_sm100(first, allow_inexact, &out->first, report));
    return pack_sm100(second, allow_inexact, &out->second, report);
}

}  // namespace gcmoe::layout
