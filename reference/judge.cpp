#include "reference/judge.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "numerics/quantise.hpp"
#include "reference/parallel.hpp"

namespace gcmoe::reference {
namespace {

// The floor of a group's amax, and two FP32 roundings on the way to its scale.
constexpr double kAmaxFloor = 1e-4;
constexpr double kScaleRounding = 0x1p-22;
// FP32 holds no finer differences below 2^-126. Code-1 rows of the scale cases end there: their
// column's RMS is near 2^-133, so that one rounding of the FP32 sum is 1e-5 of it.
constexpr double kFloatSpacing = 0x1p-149;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

void fail(RankJudgement* verdict, std::string text) {
    if (verdict->ok) verdict->first_failure = std::move(text);
    verdict->ok = false;
}

// max that keeps a NaN, so that nobody reads a small worst error off a broken row.
void raise_to(double* worst, double value) {
    if (!(value <= *worst)) *worst = value;
}

std::string place_text(const Problem& problem, int expert, const Place& place) {
    if (expert == kSharedExpert) {
        return fmt::format("case {}: rank {} token {} shared expert", problem.name, place.rank,
                           place.token);
    }
    return fmt::format("case {}: rank {} token {} slot {} (expert {} on rank {})", problem.name,
                       place.rank, place.token, place.slot, expert,
                       expert / problem.shape.experts_per_rank());
}

// The unit of tau for every element of a batch: the RMS of its row, or of its column.
class Units {
  public:
    Units(const Matrix& values, bool per_column) : per_column_(per_column) {
        rms_.assign(per_column ? values.cols : values.rows, 0.0);
        for (std::size_t i = 0; i < values.rows; ++i) {
            for (std::size_t col = 0; col < values.cols; ++col) {
                const double value = values.row(i)[col];
                rms_[per_column ? col : i] += value * value;
            }
        }
        const auto count = static_cast<double>(per_column ? values.rows : values.cols);
        for (double& sum : rms_) sum = std::sqrt(sum / count);
    }
    [[nodiscard]] double of(std::size_t row, std::size_t col) const {
        return rms_[per_column_ ? col : row];
    }

  private:
    bool per_column_;
    std::vector<double> rms_;
};

// Judges the elements of one row, one after another.
class RowJudge {
  public:
    RowJudge(const Problem& problem, const Tolerance& tolerance, int expert, const Place& place,
             RankJudgement* verdict)
        : problem_(problem),
          tolerance_(tolerance),
          expert_(expert),
          place_(place),
          verdict_(verdict) {}

    // seen against wanted; half_step is what a right rounding may be off.
    void element(const char* what, std::size_t column, double seen, double wanted, double half_step,
                 double unit) {
        const double error = std::abs(seen - wanted);
        const double bound = half_step + tolerance_.element * unit;
        raise_to(&verdict_->worst_stage_error, error / bound);
        const double excess = error > half_step ? (error - half_step) / unit : 0.0;
        raise_to(&verdict_->worst_excess, excess);
        squares_ += excess * excess;
        ++count_;
        if (!(error <= bound)) {  // NaN lands here
            reject(fmt::format("{} column {}: {:.9g}, expected {:.9g} +- {:.3g}", what, column,
                               seen, wanted, bound));
        }
    }
    // The RMS of the row's excess.
    void finish(const char* what) {
        const double rms = std::sqrt(squares_ / static_cast<double>(count_));
        raise_to(&verdict_->worst_row_rms, rms);
        if (!(rms <= tolerance_.row_rms)) {
            reject(
                fmt::format("{} row: RMS beyond half a step is {:.3g} of the row, allowed {:.3g}",
                            what, rms, tolerance_.row_rms));
        }
        squares_ = 0.0;
        count_ = 0;
    }
    void reject(const std::string& text) {
        if (!verdict_->ok) return;
        fail(verdict_, place_text(problem_, expert_, place_) + " " + text);
    }
    [[nodiscard]] const Tolerance& tolerance() const { return tolerance_; }

  private:
    const Problem& problem_;
    const Tolerance& tolerance_;
    int expert_;
    Place place_;
    RankJudgement* verdict_;
    double squares_ = 0.0;
    std::int64_t count_ = 0;
};

// A group's scale against its largest magnitude, which may be off by `slack`.
bool scale_is_right(const CodedRow& row, int col, double amax, double slack) {
    const double scale = coded_scale(row, col);
    if (row.form == ActivationScale::kFp32K128) {
        const double wanted = std::max(amax, kAmaxFloor);
        return std::abs(448.0 * scale - wanted) <= slack + kScaleRounding * wanted;
    }
    const double down = std::max(0.0, amax * (1.0 - kScaleRounding) - slack);
    const double up = amax * (1.0 + kScaleRounding) + slack;
    const auto lowest = numerics::ue8m0_scale_code(static_cast<float>(down));
    const auto highest = numerics::ue8m0_scale_code(static_cast<float>(up));
    return scale >= static_cast<double>(numerics::ue8m0_to_float(lowest)) &&
           scale <= static_cast<double>(numerics::ue8m0_to_float(highest));
}

constexpr const char* kActName = "second-GEMM input";
constexpr const char* kRowName = "second-GEMM output";

// (a) for one row. values: FP64, row `i` of `gated`.
void judge_act_row(const CodedRow& row, const Matrix& gated, std::size_t i, const Units& units,
                   RowJudge* judge) {
    const int group = scale_group(row.form);
    const double* values = gated.row(i);
    for (int begin = 0; begin < static_cast<int>(gated.cols); begin += group) {
        int largest = begin;
        for (int col = begin; col < begin + group; ++col) {
            if (!(std::abs(values[col]) <= std::abs(values[largest]))) largest = col;
        }
        const double scale = coded_scale(row, begin);
        const double amax = std::abs(values[largest]);
        const double slack = judge->tolerance().element * units.of(i, size_of(largest));
        if (!scale_is_right(row, begin, amax, slack)) {
            judge->reject(fmt::format("{} columns {}..{}: scale {:.9g}, expected {:.9g} / 448",
                                      kActName, begin, begin + group - 1, scale, amax));
        }
        for (int col = begin; col < begin + group; ++col) {
            const double half_step = e4m3_half_step(values[col] / scale) * scale;
            judge->element(kActName, size_of(col), coded_value(row, col), values[col], half_step,
                           units.of(i, size_of(col)));
        }
    }
    judge->finish(kActName);
}

// (b) for one row. values: FP64, row `i` of `wanted`.
void judge_output_row(const std::uint16_t* row, const Matrix& wanted, std::size_t i,
                      const Units& units, RowJudge* judge) {
    for (std::size_t col = 0; col < wanted.cols; ++col) {
        const double value = wanted.row(i)[col];
        judge->element(kRowName, col, static_cast<double>(numerics::bf16_to_float(row[col])), value,
                       bf16_half_step(value) + kFloatSpacing, units.of(i, col));
    }
    judge->finish(kRowName);
}

// The backend's second-GEMM input of a place.
CodedRow act_row(const Problem& problem, const std::vector<RankOutputs>& outputs, int expert,
                 const Place& place) {
    const Shape& shape = problem.shape;
    if (expert == kSharedExpert) {
        const RankOutputs& own = outputs[size_of(place.rank)];
        const std::size_t inter = size_of(shape.shared_inter);
        return {own.shared_act + size_of(place.token) * inter,
                own.shared_act_scale + size_of(place.token) * (inter / 128),
                shape.activation_scale};
    }
    const RankOutputs& owner = outputs[size_of(expert / shape.experts_per_rank())];
    const std::size_t idx = capture_idx(shape, owner.max_tokens, place);
    const std::size_t inter = size_of(shape.inter);
    return {owner.act + idx * inter, owner.act_scale + idx * (inter / 128), shape.activation_scale};
}

// The backend's combine row (or shared row) of a place.
const std::uint16_t* output_row(const Problem& problem, const std::vector<RankOutputs>& outputs,
                                const Place& place) {
    const RankOutputs& own = outputs[size_of(place.rank)];
    if (place.slot == kSharedSlot) {
        return own.shared_row + size_of(place.token) * size_of(problem.shape.hidden);
    }
    const std::size_t idx = slot_idx(problem.shape, place.token, place.slot);
    return reinterpret_cast<const std::uint16_t*>(own.combine + idx * own.combine_stride);
}

// (a) and (b) of one batch. verdicts: (num_ranks), of this batch alone.
template <class View>
void judge_batch(const Problem& problem, const std::vector<RankOutputs>& outputs,
                 const Tolerance& tolerance, const Batch& batch, const ExpertMatrices<View>& expert,
                 std::vector<RankJudgement>* verdicts) {
    const Shape& shape = problem.shape;
    Matrix x;
    std::vector<double> weight;
    load_batch(problem, batch, &x, &weight);
    Matrix gated;
    gated_batch(expert, shape.activation, x, weight, &gated);
    Matrix act(gated.rows, gated.cols);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        decode_row(act_row(problem, outputs, batch.expert, batch.rows[i]),
                   static_cast<int>(act.cols), act.row(i));
    }
    Matrix wanted;
    down_batch(expert, act, &wanted);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const auto routing = static_cast<double>(routing_weight(problem, batch.rows[i]));
        for (int h = 0; h < shape.hidden; ++h) {
            double* value = wanted.row(i) + h;
            *value = output_from_sum(*value, expert.down_bias, h, routing, shape.weight_placement);
        }
    }
    const Units act_units(gated, problem.per_column);
    const Units row_units(wanted, problem.per_column);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const Place& place = batch.rows[i];
        RankJudgement* verdict = &(*verdicts)[size_of(place.rank)];
        RowJudge judge(problem, tolerance, batch.expert, place, verdict);
        judge_act_row(act_row(problem, outputs, batch.expert, place), gated, i, act_units, &judge);
        judge_output_row(output_row(problem, outputs, place), wanted, i, row_units, &judge);
        verdict->num_slots += place.slot == kSharedSlot ? 0 : 1;
    }
}

void merge(const RankJudgement& part, RankJudgement* whole) {
    if (!part.ok) fail(whole, part.first_failure);
    raise_to(&whole->worst_stage_error, part.worst_stage_error);
    raise_to(&whole->worst_excess, part.worst_excess);
    raise_to(&whole->worst_row_rms, part.worst_row_rms);
    whole->num_slots += part.num_slots;
}

// (c)
void judge_sums(const Problem& problem, int rank, const RankOutputs& own, RankJudgement* verdict) {
    const Shape& shape = problem.shape;
    const RankInputs& inputs = (*problem.inputs)[size_of(rank)];
    for (int token = 0; token < inputs.num_tokens; ++token) {
        TokenRows rows;
        rows.rows = own.combine + slot_idx(shape, token, 0) * own.combine_stride;
        rows.row_stride = own.combine_stride;
        rows.experts = inputs.topk_idx.data() + slot_idx(shape, token, 0);
        rows.topk = shape.topk;
        rows.num_experts = shape.num_experts;
        if (shape.shared_inter > 0) {
            rows.shared = own.shared_row + size_of(token) * size_of(shape.hidden);
        }
        const std::uint16_t* y = own.y + size_of(token) * own.y_stride;
        for (int h = 0; h < shape.hidden; ++h) {
            const std::uint16_t wanted = combined_value(rows, h);
            const float value = numerics::bf16_to_float(wanted);
            if (y[h] == wanted && value == value) continue;
            fail(verdict,
                 fmt::format(
                     "case {}: rank {} token {} y column {}: bits 0x{:04x} = {:.9g}, the sum "
                     "of its combine rows is 0x{:04x} = {:.9g}",
                     problem.name, rank, token, h, y[h], numerics::bf16_to_float(y[h]), wanted,
                     value));
            return;
        }
    }
}

// What every column is divided by before it counts: 1, or in scale cases the column's own RMS.
std::vector<double> column_units(const Problem& problem, const std::vector<double>& wanted) {
    const std::size_t hidden = size_of(problem.shape.hidden);
    std::vector<double> units(hidden, 1.0);
    if (!problem.per_column || wanted.empty()) return units;
    std::vector<double> squares(hidden, 0.0);
    for (std::size_t i = 0; i < wanted.size(); ++i) squares[i % hidden] += wanted[i] * wanted[i];
    for (std::size_t h = 0; h < hidden; ++h) {
        const double rms = std::sqrt(squares[h] / static_cast<double>(wanted.size() / hidden));
        if (rms > 0.0) units[h] = rms;
    }
    return units;
}

struct Distance {
    double rel_l2 = 0;
    double cosine = 1;
    double mean_abs = 0;
    double max_abs = 0;
};

Distance measure(const Problem& problem, const std::vector<double>& seen,
                 const std::vector<double>& wanted) {
    Distance distance;
    if (wanted.empty()) return distance;
    const std::vector<double> units = column_units(problem, wanted);
    double errors = 0.0;
    double seen_norm = 0.0;
    double wanted_norm = 0.0;
    double product = 0.0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const double unit = units[i % units.size()];
        const double a = seen[i] / unit;
        const double b = wanted[i] / unit;
        errors += (a - b) * (a - b);
        seen_norm += a * a;
        wanted_norm += b * b;
        product += a * b;
        distance.mean_abs += std::abs(seen[i] - wanted[i]);
        raise_to(&distance.max_abs, std::abs(seen[i] - wanted[i]));
    }
    distance.mean_abs /= static_cast<double>(wanted.size());
    if (errors == 0.0) return distance;  // also both zero
    distance.rel_l2 = std::sqrt(errors / wanted_norm);
    distance.cosine = product / std::sqrt(seen_norm * wanted_norm);
    return distance;
}

// (d), and (e): no live token, then the bit-true layer is exactly 0 or the shared part.
void judge_whole(const Problem& problem, int rank, const RankOutputs& own,
                 const RankExpected& expected, RankJudgement* verdict) {
    const std::size_t hidden = size_of(problem.shape.hidden);
    const RankInputs& inputs = (*problem.inputs)[size_of(rank)];
    const std::size_t count = size_of(inputs.num_tokens) * hidden;
    GCMOE_CHECK(expected.y.size() == count, problem.name, rank, expected.y.size(), count);
    GCMOE_CHECK(expected.plain.size() == count, problem.name, rank, expected.plain.size(), count);
    std::vector<double> seen(count);
    std::vector<double> wanted(count);
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint16_t bits = own.y[i / hidden * own.y_stride + i % hidden];
        seen[i] = static_cast<double>(numerics::bf16_to_float(bits));
        wanted[i] = static_cast<double>(numerics::bf16_to_float(expected.y[i]));
    }
    const Distance distance = measure(problem, seen, wanted);
    verdict->rel_l2 = distance.rel_l2;
    verdict->cosine = distance.cosine;
    verdict->mean_abs = distance.mean_abs;
    verdict->max_abs = distance.max_abs;
    verdict->plain_rel_l2 = measure(problem, seen, expected.plain).rel_l2;
    if (!(distance.rel_l2 <= kMaxRelL2) || !(distance.cosine >= kMinCosine)) {
        fail(verdict,
             fmt::format("case {}: rank {} y against the bit-true layer: relative L2 {:.4g} "
                         "(at most {}), cosine {:.8f} (at least {})",
                         problem.name, rank, distance.rel_l2, kMaxRelL2, distance.cosine,
                         kMinCosine));
    }
}

}  // namespace

Status judge_layer(const Problem& problem, const std::vector<RankOutputs>& outputs,
                   const std::vector<RankExpected>& expected, const Tolerance& tolerance,
                   std::vector<RankJudgement>* out) {
    const std::size_t num_ranks = problem.inputs->size();
    GCMOE_CHECK(outputs.size() == num_ranks, outputs.size(), num_ranks);
    GCMOE_CHECK(expected.size() == num_ranks, expected.size(), num_ranks);
    out->assign(num_ranks, RankJudgement{});
    const std::vector<Batch> batches = make_batches(problem.shape, *problem.inputs);
    std::vector<std::vector<RankJudgement>> parts(batches.size(), *out);
    std::vector<Status> statuses(batches.size());
    ExpertReader reader(problem.weights);
    for_each_item(batches.size(), problem.num_threads, [&](std::size_t i) {
        statuses[i] = reader.with(batches[i].expert, [&](const auto& expert) {
            judge_batch(problem, outputs, tolerance, batches[i], expert, &parts[i]);
        });
    });
    for (const Status& status : statuses) GCMOE_RETURN_IF_ERROR(status);
    for (const std::vector<RankJudgement>& part : parts) {
        for (std::size_t rank = 0; rank < num_ranks; ++rank) merge(part[rank], &(*out)[rank]);
    }
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        RankJudgement* verdict = &(*out)[rank];
        judge_sums(problem, static_cast<int>(rank), outputs[rank], verdict);
        judge_whole(problem, static_cast<int>(rank), outputs[rank], expected[rank], verdict);
    }
    return {};
}

std::vector<RankExpected> take_expected(std::vector<RankStages> stages) {
    std::vector<RankExpected> expected;
    for (RankStages& stage : stages) {
        expected.push_back({std::move(stage.y), std::move(stage.plain)});
    }
    return expected;
}

}  // namespace gcmoe::reference
