// Judging one row's roundings, element by element: the same source on the host (judge.cpp) and, a
// thread per group of columns, on the device (reference/cuda).
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.hpp"
#include "numerics/nan_math.hpp"
#include "numerics/quantise.hpp"
#include "reference/element.hpp"
#include "reference/layer.hpp"

namespace gcmoe::reference {

// What FP32 sums may be off, in the unit of a sum (UnitRow).
struct Tolerance {
    double element;  // of one element, beyond half a step
    double row_rms;  // RMS over a row of what goes beyond half a step
    // Whether (d) holds for scale cases (Problem::per_column) too: not on tensor cores.
    bool end_to_end_scales = true;
};

// The floor of a group's amax, and two FP32 roundings on the way to its scale.
inline constexpr double kJudgedAmaxFloor = 1e-4;
inline constexpr double kScaleRounding = 0x1p-22;
// The activation in FP32: exp, a division and five roundings, each 2^-24 of the value or so. Where
// a clamp cuts gate and up nothing else is left of an error of the sums.
inline constexpr double kActivationRounding = 0x1p-20;
// FP32 holds no finer differences below 2^-126. Code-1 rows of the scale cases end there: their
// column's RMS is near 2^-133, so that one rounding of the FP32 sum is 1e-5 of it.
inline constexpr double kFloatSpacing = 0x1p-149;

// The unit of tau for every column of a row of sums: the row's RMS. In scale cases, where a row's
// columns are worlds apart, each element's own: the RMS of sum_k(+-w(j,k) * x(k)) over all signs,
// sqrt(sum_k (w(j,k) * x(k))^2), plus the magnitude of the bias. (A column's RMS over its batch
// estimates the same, but batches of one or two rows are common; a sum that happens to be near 0
// would then be its own unit.)
struct UnitRow {
    const double* elements = nullptr;  // (cols); null = row
    double row = 0.0;
    [[nodiscard]] GCMOE_HD double of(int col) const {
        return elements != nullptr ? elements[col] : row;
    }
};

// Something wrong with a row.
struct RowFailure {
    enum class Kind : std::uint8_t { kNone, kScale, kElement, kRowRms };
    Kind kind = Kind::kNone;
    int column = 0;       // kScale: the group's first
    int last_column = 0;  // kScale
    double seen = 0;
    double wanted = 0;  // kScale: the group's largest magnitude
    double bound = 0;
};

// The order in which a reader of the row would meet them.
GCMOE_HD constexpr bool is_before(const RowFailure& a, const RowFailure& b) {
    using Kind = RowFailure::Kind;
    if (a.kind == Kind::kNone || b.kind == Kind::kNone) return b.kind == Kind::kNone;
    if (a.kind == Kind::kRowRms || b.kind == Kind::kRowRms) return b.kind == Kind::kRowRms;
    return a.column != b.column ? a.column < b.column : a.kind < b.kind;
}

// What judging a row, or a part of it, has found. A worst value that is NaN stays NaN, so that
// nobody reads a small worst error off a broken row.
struct RowTally {
    double worst_error = 0;   // |error| / bound
    double worst_excess = 0;  // error beyond half a step, in units of a sum
    double squares = 0;       // of the excess
    double rms = 0;           // of the excess, once the row is finished
    RowFailure first;

    GCMOE_HD void note(const RowFailure& failure) {
        if (is_before(failure, first)) first = failure;
    }
    GCMOE_HD void merge(const RowTally& other) {
        worst_error = numerics::max_nan(worst_error, other.worst_error);
        worst_excess = numerics::max_nan(worst_excess, other.worst_excess);
        squares += other.squares;
        note(other.first);
    }
    // seen against wanted; half_step is what a right rounding may be off, slack what the value
    // before it may, unit what slack is in units of tau. Any excess is infinite in a unit of 0.
    GCMOE_HD void element(int column, double seen, double wanted, double half_step, double slack,
                          double unit) {
        const double error = numerics::abs(seen - wanted);
        const double bound = half_step + slack;
        worst_error = numerics::max_nan(worst_error, error / bound);
        const double excess = error > half_step ? (error - half_step) / unit : 0.0;
        worst_excess = numerics::max_nan(worst_excess, excess);
        squares += excess * excess;
        if (error <= bound) return;  // NaN goes on
        note({RowFailure::Kind::kElement, column, column, seen, wanted, bound});
    }
    // After all elements: the RMS of the row's excess.
    GCMOE_HD void finish(const Tolerance& tolerance, int cols) {
        rms = std::sqrt(squares / static_cast<double>(cols));
        if (rms <= tolerance.row_rms) return;
        note({RowFailure::Kind::kRowRms, 0, cols - 1, rms, 0.0, tolerance.row_rms});
    }
};

// Both roundings of a row.
struct RowVerdict {
    RowTally act;     // second-GEMM input
    RowTally output;  // second-GEMM output
};

// A row of second-GEMM inputs in FP64, and the first GEMM's sums that it comes from.
struct GatedRow {
    const double* gate = nullptr;    // (cols) sums with bias, before the clamp
    const double* up = nullptr;      // (cols)
    const double* values = nullptr;  // (cols) their activation times the weight
    UnitRow gate_units;
    UnitRow up_units;
    double weight = 1.0;
    Activation activation;
};

// Where g * sigmoid(g) is least.
inline constexpr double kSiluDip = -1.2784645427610738;

// How much a value changes when its gate and up are off by tolerance * their units: the largest
// change of the activation over that box. In gate the activation falls to one dip and rises from
// there on, in up it is linear, and a clamp keeps both orders: no point of the box changes it more
// than a corner does, or the dip's ends if the dip lies inside. A slope would not do: under a clamp
// of 10 and sums of 10^4 the box reaches over the whole curve, and beyond the clamp it is flat.
GCMOE_HD inline double act_change(const GatedRow& row, int col, double tolerance) {
    const double gate_error = tolerance * row.gate_units.of(col);
    const double up_error = tolerance * row.up_units.of(col);
    const double low = row.gate[col] - gate_error;
    const double high = row.gate[col] + gate_error;
    const double dip = kSiluDip / static_cast<double>(row.activation.alpha);
    const double gates[3] = {low, high, dip};
    const double ups[2] = {row.up[col] - up_error, row.up[col] + up_error};
    const int num_gates = low < dip && dip < high ? 3 : 2;
    double largest = 0.0;
    for (int i = 0; i < num_gates; ++i) {
        for (int j = 0; j < 2; ++j) {
            const double value =
                numerics::swiglu_fp64(gates[i], ups[j], row.activation) * row.weight;
            largest = numerics::max_nan(largest, numerics::abs(value - row.values[col]));
        }
    }
    return largest;
}

// What a value may be off: that, and the activation's own arithmetic.
GCMOE_HD inline double act_slack(const GatedRow& row, int col, double tolerance) {
    return act_change(row, col, tolerance) + kActivationRounding * numerics::abs(row.values[col]);
}

// error / act_unit() is what the sums are off, in units of sums, if a value is off by error: what a
// box of the sums changes it, over the box's size. The box is halved as long as it explains the
// error. Where the activation is straight, every box gives the same; between the ends of a clamp a
// sum that is exactly 0 in FP64, and 10^-7 of its terms in FP32, is off by no more than that,
// though the value is as far off as it can be.
GCMOE_HD inline double act_unit(const GatedRow& row, int col, double error, double tolerance) {
    constexpr int kMostHalvings = 40;
    const double rounding = kActivationRounding * numerics::abs(row.values[col]);
    double box = 1.0;
    double slack = act_slack(row, col, tolerance);
    for (int halving = 0; halving < kMostHalvings && error > 0.0; ++halving) {
        const double half = 0.5 * box;
        const double explained = act_change(row, col, half * tolerance) + half * rounding;
        if (!(explained >= error)) break;  // also NaN
        box = half;
        slack = explained;
    }
    return slack / (box * tolerance);
}

// The bounds of a group's largest magnitude.
struct AmaxRange {
    double low = 0.0;
    double high = 0.0;
    GCMOE_HD void add(double value, double slack) {
        low = numerics::max_nan(low, numerics::abs(value) - slack);
        high = numerics::max_nan(high, numerics::abs(value) + slack);
    }
};

// A group's scale against its largest magnitude.
GCMOE_HD inline bool scale_is_right(const CodedRow& row, int col, const AmaxRange& amax) {
    const double scale = coded_scale(row, col);
    const double low = amax.low * (1.0 - kScaleRounding);
    const double high = amax.high * (1.0 + kScaleRounding);
    if (!(low <= high)) return false;  // NaN
    if (row.form == ActivationScale::kFp32K128) {
        const double least = (1.0 - kScaleRounding) * kJudgedAmaxFloor;
        const double most = (1.0 + kScaleRounding) * kJudgedAmaxFloor;
        return 448.0 * scale >= (low < least ? least : low) &&
               448.0 * scale <= (high < most ? most : high);
    }
    const auto lowest = numerics::ue8m0_scale_code(static_cast<float>(low));
    const auto highest = numerics::ue8m0_scale_code(static_cast<float>(high));
    return scale >= static_cast<double>(numerics::ue8m0_to_float(lowest)) &&
           scale <= static_cast<double>(numerics::ue8m0_to_float(highest));
}

// (a) for the columns of one scale, which begin at `begin`.
GCMOE_HD inline void judge_act_group(const CodedRow& row, int begin, const GatedRow& gated,
                                     const Tolerance& tolerance, RowTally* tally) {
    constexpr int kMostColumns = 128;
    double slacks[kMostColumns];
    AmaxRange amax;
    const int count = scale_group(row.form);
    int largest = begin;
    for (int i = 0; i < count; ++i) {
        const double value = gated.values[begin + i];
        slacks[i] = act_slack(gated, begin + i, tolerance.element);
        amax.add(value, slacks[i]);
        if (!(numerics::abs(value) <= numerics::abs(gated.values[largest]))) largest = begin + i;
    }
    const double scale = coded_scale(row, begin);
    if (!scale_is_right(row, begin, amax)) {
        tally->note({RowFailure::Kind::kScale, begin, begin + count - 1, scale,
                     numerics::abs(gated.values[largest]), 0.0});
    }
    for (int i = 0; i < count; ++i) {
        const double value = gated.values[begin + i];
        // The steps where the rounded value may have been, which a wide slack puts binades above.
        const double reach = numerics::abs(value) + slacks[i];
        const double half_step = e4m3_half_step(reach / scale) * scale;
        const double seen = coded_value(row, begin + i);
        const double error = numerics::abs(seen - value) - half_step;
        tally->element(begin + i, seen, value, half_step, slacks[i],
                       act_unit(gated, begin + i, error, tolerance.element));
    }
}

// (b) for one column.
GCMOE_HD inline void judge_output(std::uint16_t bits, int col, double value, const UnitRow& units,
                                  const Tolerance& tolerance, RowTally* tally) {
    tally->element(col, static_cast<double>(numerics::bf16_to_float(bits)), value,
                   bf16_half_step(value) + kFloatSpacing, tolerance.element * units.of(col),
                   units.of(col));
}

// The backend's second-GEMM input of a place. Shapes: outputs (num_ranks).
GCMOE_HD inline CodedRow act_row(const Shape& shape, const RankOutputs* outputs, int expert,
                                 const Place& place) {
    if (expert == kSharedExpert) {
        const RankOutputs& own = outputs[place.rank];
        const auto inter = static_cast<std::size_t>(shape.shared_inter);
        const auto token = static_cast<std::size_t>(place.token);
        return {own.shared_act + token * inter, own.shared_act_scale + token * (inter / 128),
                shape.activation_scale};
    }
    const int experts_per_rank = shape.num_experts / shape.num_ranks;
    const RankOutputs& owner = outputs[expert / experts_per_rank];
    const std::size_t idx = capture_idx(shape, owner.max_tokens, place);
    const auto inter = static_cast<std::size_t>(shape.inter);
    return {owner.act + idx * inter, owner.act_scale + idx * (inter / 128), shape.activation_scale};
}

// The backend's combine row (or shared row) of a place.
GCMOE_HD inline const std::uint16_t* output_row(const Shape& shape, const RankOutputs* outputs,
                                                const Place& place) {
    const RankOutputs& own = outputs[place.rank];
    if (place.slot == kSharedSlot) {
        return own.shared_row +
               static_cast<std::size_t>(place.token) * static_cast<std::size_t>(shape.hidden);
    }
    const std::size_t idx = slot_idx(shape, place.token, place.slot);
    return reinterpret_cast<const std::uint16_t*>(own.combine + idx * own.combine_stride);
}

// The backend's combine rows of one token. experts: (topk) ids of the token's slots.
GCMOE_HD inline TokenRows token_rows(const Shape& shape, const RankOutputs& own, int token,
                                     const std::int64_t* experts) {
    TokenRows rows;
    rows.rows = own.combine + slot_idx(shape, token, 0) * own.combine_stride;
    rows.row_stride = own.combine_stride;
    rows.experts = experts;
    rows.topk = shape.topk;
    rows.num_experts = shape.num_experts;
    if (shape.shared_inter > 0) rows.shared = output_row(shape, &own, {0, token, kSharedSlot});
    return rows;
}

// (c) for one element: equal bits, and no NaN.
GCMOE_HD inline bool sum_is_right(std::uint16_t seen, std::uint16_t wanted) {
    const float value = numerics::bf16_to_float(wanted);
    return seen == wanted && value == value;
}

// Sums behind (d): y against what it should be; scale cases divide each column by its unit.
struct DistanceSums {
    double errors = 0;
    double seen_norm = 0;
    double wanted_norm = 0;
    double product = 0;
    double abs_errors = 0;
    double max_abs = 0;
    std::int64_t count = 0;

    GCMOE_HD void add(double seen, double wanted, double unit) {
        const double a = seen / unit;
        const double b = wanted / unit;
        errors += (a - b) * (a - b);
        seen_norm += a * a;
        wanted_norm += b * b;
        product += a * b;
        abs_errors += numerics::abs(seen - wanted);
        max_abs = numerics::max_nan(max_abs, numerics::abs(seen - wanted));
        ++count;
    }
    GCMOE_HD void merge(const DistanceSums& other) {
        errors += other.errors;
        seen_norm += other.seen_norm;
        wanted_norm += other.wanted_norm;
        product += other.product;
        abs_errors += other.abs_errors;
        max_abs = numerics::max_nan(max_abs, other.max_abs);
        count += other.count;
    }
};

}  // namespace gcmoe::reference
