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

// What FP32 sums may be off, in units of the row's RMS (scale cases: of the output column's RMS).
struct Tolerance {
    double element;  // of one element, beyond half a step
    double row_rms;  // RMS over a row of what goes beyond half a step
};

// The floor of a group's amax, and two FP32 roundings on the way to its scale.
inline constexpr double kJudgedAmaxFloor = 1e-4;
inline constexpr double kScaleRounding = 0x1p-22;
// FP32 holds no finer differences below 2^-126. Code-1 rows of the scale cases end there: their
// column's RMS is near 2^-133, so that one rounding of the FP32 sum is 1e-5 of it.
inline constexpr double kFloatSpacing = 0x1p-149;

// The unit of tau for every column of a row: the row's RMS, or each column's own over the batch.
struct UnitRow {
    const double* columns = nullptr;  // (cols); null = row
    double row = 0.0;
    [[nodiscard]] GCMOE_HD double of(int col) const {
        return columns != nullptr ? columns[col] : row;
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
    double worst_excess = 0;  // error beyond half a step, in units of the RMS
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
    // before it may.
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

// What a value before the requantisation may be off. It is a product, silu(gate) * up: beside the
// error in units of the row's RMS it carries its factors' relative errors, which at a row's peak (9
// RMS seen) are the larger part. Each factor is off by about the RMS bound of its own row, and the
// slope of silu adds at most half as much again.
GCMOE_HD inline double act_slack(const Tolerance& tolerance, double unit, double value) {
    return tolerance.element * unit + 3.0 * tolerance.row_rms * numerics::abs(value);
}

// A group's scale against its largest magnitude, which may be off by `slack`.
GCMOE_HD inline bool scale_is_right(const CodedRow& row, int col, double amax, double slack) {
    const double scale = coded_scale(row, col);
    if (row.form == ActivationScale::kFp32K128) {
        const double wanted = amax < kJudgedAmaxFloor ? kJudgedAmaxFloor : amax;
        return numerics::abs(448.0 * scale - wanted) <= slack + kScaleRounding * wanted;
    }
    const double down = amax * (1.0 - kScaleRounding) - slack;
    const double up = amax * (1.0 + kScaleRounding) + slack;
    const auto lowest = numerics::ue8m0_scale_code(static_cast<float>(0.0 < down ? down : 0.0));
    const auto highest = numerics::ue8m0_scale_code(static_cast<float>(up));
    return scale >= static_cast<double>(numerics::ue8m0_to_float(lowest)) &&
           scale <= static_cast<double>(numerics::ue8m0_to_float(highest));
}

// (a) for the columns of one scale, which begin at `begin`. Shapes: values (cols), FP64.
GCMOE_HD inline void judge_act_group(const CodedRow& row, int begin, const double* values,
                                     const UnitRow& units, const Tolerance& tolerance,
                                     RowTally* tally) {
    const int end = begin + scale_group(row.form);
    int largest = begin;
    for (int col = begin; col < end; ++col) {
        if (!(numerics::abs(values[col]) <= numerics::abs(values[largest]))) largest = col;
    }
    const double scale = coded_scale(row, begin);
    const double amax = numerics::abs(values[largest]);
    if (!scale_is_right(row, begin, amax, act_slack(tolerance, units.of(largest), amax))) {
        tally->note({RowFailure::Kind::kScale, begin, end - 1, scale, amax, 0.0});
    }
    for (int col = begin; col < end; ++col) {
        const double half_step = e4m3_half_step(values[col] / scale) * scale;
        tally->element(col, coded_value(row, col), values[col], half_step,
                       act_slack(tolerance, units.of(col), values[col]), units.of(col));
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
