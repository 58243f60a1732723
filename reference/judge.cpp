#include "reference/judge.hpp"

#include <cmath>

#include "base/check.hpp"
#include "reference/judge_report.hpp"
#include "reference/parallel.hpp"

namespace gcmoe::reference {
namespace {

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

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
    [[nodiscard]] UnitRow of(std::size_t row) const {
        if (per_column_) return {rms_.data(), 0.0};
        return {nullptr, rms_[row]};
    }

  private:
    bool per_column_;
    std::vector<double> rms_;
};

// (a) and (b) of row `i` of a batch. Shapes: outputs (num_ranks), gated (rows, inter), wanted
// (rows, hidden).
struct JudgedBatch {
    const Problem& problem;
    const std::vector<RankOutputs>& outputs;
    const Matrix& gated;
    const Matrix& wanted;
    Units act_units;
    Units row_units;
};

RowVerdict judge_row(const JudgedBatch& batch, int expert, const Place& place, std::size_t i,
                     const Tolerance& tolerance) {
    const Shape& shape = batch.problem.shape;
    RowVerdict verdict;
    const CodedRow act = act_row(shape, batch.outputs.data(), expert, place);
    const auto inter = static_cast<int>(batch.gated.cols);
    const UnitRow act_units = batch.act_units.of(i);
    for (int begin = 0; begin < inter; begin += scale_group(act.form)) {
        judge_act_group(act, begin, batch.gated.row(i), act_units, tolerance, &verdict.act);
    }
    verdict.act.finish(tolerance, inter);
    const std::uint16_t* row = output_row(shape, batch.outputs.data(), place);
    const UnitRow row_units = batch.row_units.of(i);
    for (int col = 0; col < shape.hidden; ++col) {
        judge_output(row[col], col, batch.wanted.row(i)[col], row_units, tolerance,
                     &verdict.output);
    }
    verdict.output.finish(tolerance, shape.hidden);
    return verdict;
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
        decode_row(act_row(shape, outputs.data(), batch.expert, batch.rows[i]),
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
    const JudgedBatch judged{problem,
                             outputs,
                             gated,
                             wanted,
                             Units(gated, problem.per_column),
                             Units(wanted, problem.per_column)};
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const Place& place = batch.rows[i];
        add_row(problem, batch.expert, place, judge_row(judged, batch.expert, place, i, tolerance),
                &(*verdicts)[size_of(place.rank)]);
    }
}

// (c)
void judge_sums(const Problem& problem, int rank, const RankOutputs& own, RankJudgement* verdict) {
    const Shape& shape = problem.shape;
    const RankInputs& inputs = (*problem.inputs)[size_of(rank)];
    for (int token = 0; token < inputs.num_tokens; ++token) {
        const TokenRows rows =
            token_rows(shape, own, token, inputs.topk_idx.data() + slot_idx(shape, token, 0));
        const std::uint16_t* y = own.y + size_of(token) * own.y_stride;
        for (int h = 0; h < shape.hidden; ++h) {
            const std::uint16_t wanted = combined_value(rows, h);
            if (sum_is_right(y[h], wanted)) continue;
            add_wrong_sum(problem, rank, {token, h, y[h], wanted}, verdict);
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

DistanceSums measure(const Problem& problem, const std::vector<double>& seen,
                     const std::vector<double>& wanted) {
    DistanceSums sums;
    const std::vector<double> units = column_units(problem, wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        sums.add(seen[i], wanted[i], units[i % units.size()]);
    }
    return sums;
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
    add_whole(problem, rank, measure(problem, seen, wanted), measure(problem, seen, expected.plain),
              verdict);
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
