#include "reference/judge.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "reference/judge_report.hpp"
#include "reference/parallel.hpp"

namespace gcmoe::reference {
namespace {

// The unit of tau for every element of a batch (UnitRow).
class Units {
  public:
    // The RMS of every row.
    explicit Units(const Matrix& values) {
        for (std::size_t i = 0; i < values.rows; ++i) {
            double sum = 0.0;
            for (std::size_t col = 0; col < values.cols; ++col) {
                sum += values.row(i)[col] * values.row(i)[col];
            }
            rms_.push_back(std::sqrt(sum / static_cast<double>(values.cols)));
        }
    }
    // Every element's own. Shapes: elements (rows, cols).
    static Units of_elements(Matrix elements) {
        Units units;
        units.elements_ = std::move(elements);
        return units;
    }
    [[nodiscard]] UnitRow of(std::size_t row) const {
        if (rms_.empty()) return {elements_.row(row), 0.0};
        return {nullptr, rms_[row]};
    }

  private:
    Units() = default;
    std::vector<double> rms_;
    Matrix elements_;
};

// Units of one of the first GEMM's products, `sums` with their bias.
template <class View>
Units sum_units(const Problem& problem, const View& matrix, const float* bias, const Matrix& x,
                const Matrix& sums) {
    if (!problem.per_column) return Units(sums);
    Matrix terms;
    terms_batch(matrix, x, &terms);
    for (std::size_t i = 0; i < terms.values.size(); ++i) {
        double* unit = terms.values.data() + i;
        *unit = sum_unit(*unit, bias, static_cast<int>(i % terms.cols));
    }
    return Units::of_elements(std::move(terms));
}

// The first GEMM of a batch and what comes of it.
struct FirstGemm {
    Matrix gate;   // (rows, inter) with bias
    Matrix up;     // (rows, inter)
    Matrix gated;  // (rows, inter)
    Units gate_units;
    Units up_units;
    std::vector<double> weight;  // (rows)
};

template <class View>
FirstGemm multiply_first(const Problem& problem, const Batch& batch,
                         const ExpertMatrices<View>& expert) {
    Matrix x;
    std::vector<double> weight;
    load_batch(problem, batch, &x, &weight);
    Matrix gate;
    Matrix up;
    Matrix gated;
    sum_batch(expert.gate, expert.gate_bias, x, &gate);
    sum_batch(expert.up, expert.up_bias, x, &up);
    gate_batch(gate, up, problem.shape.activation, weight, &gated);
    Units gate_units = sum_units(problem, expert.gate, expert.gate_bias, x, gate);
    Units up_units = sum_units(problem, expert.up, expert.up_bias, x, up);
    return {std::move(gate),       std::move(up),       std::move(gated),
            std::move(gate_units), std::move(up_units), std::move(weight)};
}

// The second GEMM of the backend's own codes, with bias and weight.
struct SecondGemm {
    Matrix wanted;  // (rows, hidden)
    Units units;
};

template <class View>
SecondGemm multiply_second(const Problem& problem, const std::vector<RankOutputs>& outputs,
                           const Batch& batch, const ExpertMatrices<View>& expert) {
    const Shape& shape = problem.shape;
    Matrix act(batch.rows.size(), size_of(expert.down.cols));
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        decode_row(act_row(shape, outputs.data(), batch.expert, batch.rows[i]),
                   static_cast<int>(act.cols), act.row(i));
    }
    Matrix wanted;
    down_batch(expert, act, &wanted);
    Matrix terms;
    if (problem.per_column) terms_batch(expert.down, act, &terms);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const auto routing = static_cast<double>(routing_weight(problem, batch.rows[i]));
        for (int h = 0; h < shape.hidden; ++h) {
            double* value = wanted.row(i) + h;
            *value = output_from_sum(*value, expert.down_bias, h, routing, shape.weight_placement);
            if (!problem.per_column) continue;
            double* unit = terms.row(i) + h;
            *unit = output_unit(*unit, expert.down_bias, h, routing, shape.weight_placement);
        }
    }
    Units units = problem.per_column ? Units::of_elements(std::move(terms)) : Units(wanted);
    return {std::move(wanted), std::move(units)};
}

// (a) and (b) of one batch. verdicts: (num_ranks), of this batch alone.
template <class View>
void judge_batch(const Problem& problem, const std::vector<RankOutputs>& outputs,
                 const Tolerance& tolerance, const Batch& batch, const ExpertMatrices<View>& expert,
                 std::vector<RankJudgement>* verdicts) {
    const Shape& shape = problem.shape;
    const FirstGemm first = multiply_first(problem, batch, expert);
    const SecondGemm second = multiply_second(problem, outputs, batch, expert);
    const auto inter = static_cast<int>(first.gated.cols);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const Place& place = batch.rows[i];
        RowVerdict verdict;
        const CodedRow act = act_row(shape, outputs.data(), batch.expert, place);
        const GatedRow gated{first.gate.row(i),      first.up.row(i),      first.gated.row(i),
                             first.gate_units.of(i), first.up_units.of(i), first.weight[i],
                             shape.activation};
        for (int begin = 0; begin < inter; begin += scale_group(act.form)) {
            judge_act_group(act, begin, gated, tolerance, &verdict.act);
        }
        verdict.act.finish(tolerance, inter);
        const std::uint16_t* row = output_row(shape, outputs.data(), place);
        const UnitRow units = second.units.of(i);
        for (int col = 0; col < shape.hidden; ++col) {
            judge_output(row[col], col, second.wanted.row(i)[col], units, tolerance,
                         &verdict.output);
        }
        verdict.output.finish(tolerance, shape.hidden);
        add_row(problem, batch.expert, place, verdict, &(*verdicts)[size_of(place.rank)]);
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
void measure_whole(const Problem& problem, int rank, const RankOutputs& own,
                   const RankExpected& expected, const Tolerance& tolerance,
                   RankJudgement* verdict) {
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
    add_whole(problem, measure(problem, seen, wanted), measure(problem, seen, expected.plain),
              tolerance, verdict);
}

// Squares of what the first GEMM's sums may make of y, as (a) allows it element by element, in the
// RMS over all signs. squares: (num_ranks) of (num_tokens, hidden).
template <class View>
void add_allowed(const Problem& problem, const Tolerance& tolerance, const Batch& batch,
                 const ExpertMatrices<View>& expert, std::vector<std::vector<double>>* squares) {
    const Shape& shape = problem.shape;
    const FirstGemm first = multiply_first(problem, batch, expert);
    Matrix slacks(first.gated.rows, first.gated.cols);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const GatedRow gated{first.gate.row(i),      first.up.row(i),      first.gated.row(i),
                             first.gate_units.of(i), first.up_units.of(i), first.weight[i],
                             shape.activation};
        for (std::size_t col = 0; col < slacks.cols; ++col) {
            slacks.row(i)[col] = act_slack(gated, static_cast<int>(col), tolerance.element);
        }
    }
    Matrix terms;
    terms_batch(expert.down, slacks, &terms);
    const std::size_t hidden = size_of(shape.hidden);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const Place& place = batch.rows[i];
        const auto routing = static_cast<double>(routing_weight(problem, place));
        double* sums = (*squares)[size_of(place.rank)].data() + size_of(place.token) * hidden;
        for (std::size_t h = 0; h < hidden; ++h) {
            const double size = output_unit(terms.row(i)[h], nullptr, static_cast<int>(h), routing,
                                            shape.weight_placement);
            sums[h] += size * size;
        }
    }
}

// The same as a relative L2 of y, per rank. Over a row's columns the signs of the weights are as
// good as random, and a value is off by no more than its slack: the RMS is met but for chance.
constexpr double kChance = 1.25;
Status allowed_distances(const Problem& problem, const std::vector<RankExpected>& expected,
                         const Tolerance& tolerance, std::vector<double>* out) {
    std::vector<std::vector<double>> squares;
    for (const RankExpected& rank : expected) squares.emplace_back(rank.y.size(), 0.0);
    ExpertReader reader(problem.weights);
    for (const Batch& batch : make_batches(problem.shape, *problem.inputs)) {
        GCMOE_RETURN_IF_ERROR(reader.with(batch.expert, [&](const auto& matrices) {
            add_allowed(problem, tolerance, batch, matrices, &squares);
        }));
    }
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
        std::vector<double> wanted;
        for (const std::uint16_t bits : expected[rank].y) {
            wanted.push_back(static_cast<double>(numerics::bf16_to_float(bits)));
        }
        const std::vector<double> units = column_units(problem, wanted);
        DistanceSums sums;
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            sums.add(wanted[i] + kChance * std::sqrt(squares[rank][i]), wanted[i],
                     units[i % units.size()]);
        }
        out->push_back(std::sqrt(sums.errors / sums.wanted_norm));
    }
    return {};
}

// Ranks that miss the usual bounds are looked at again: a second pass that others do not pay for.
Status judge_distances(const Problem& problem, const std::vector<RankExpected>& expected,
                       const Tolerance& tolerance, std::vector<RankJudgement>* out) {
    std::vector<double> allowed(out->size(), kMaxRelL2);
    const bool all_right = std::all_of(out->begin(), out->end(), [](const RankJudgement& verdict) {
        return whole_is_right(verdict, kMaxRelL2);
    });
    if (!all_right) {
        allowed.clear();
        GCMOE_RETURN_IF_ERROR(allowed_distances(problem, expected, tolerance, &allowed));
    }
    for (std::size_t rank = 0; rank < out->size(); ++rank) {
        judge_distance(problem, static_cast<int>(rank), allowed[rank], &(*out)[rank]);
    }
    return {};
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
        measure_whole(problem, static_cast<int>(rank), outputs[rank], expected[rank], tolerance,
                      verdict);
    }
    return judge_distances(problem, expected, tolerance, out);
}

std::vector<RankExpected> take_expected(std::vector<RankStages> stages) {
    std::vector<RankExpected> expected;
    for (RankStages& stage : stages) {
        expected.push_back({std::move(stage.y), std::move(stage.plain)});
    }
    return expected;
}

}  // namespace gcmoe::reference
