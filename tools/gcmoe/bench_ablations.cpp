#include "bench_ablations.hpp"

#include <fmt/format.h>

#include <utility>

namespace gcmoe::cli {
namespace {

// Appends variants of one base.
class VariantList {
  public:
    VariantList(const std::string& ablation, BenchVariant base, std::vector<BenchVariant>* out)
        : base_(std::move(base)), out_(out) {
        base_.ablation = ablation;
    }

    // change(BenchVariant*) makes the difference.
    template <class Change>
    void add(const std::string& name, const Change& change) {
        BenchVariant variant = base_;
        variant.name = name;
        change(&variant);
        out_->push_back(std::move(variant));
    }

  private:
    BenchVariant base_;  // a copy: it may be one of *out
    std::vector<BenchVariant>* out_;
};

using Variant = BenchVariant*;

void add_partition(VariantList list) {
    for (const int units : {4, 8, 12, 16, 20, 24, 32}) {
        list.add(fmt::format("dispatch-{}", units), [units](Variant v) {
            v->plan.partition = {units, 0};
        });
    }
}

void add_placement(VariantList list) {
    for (const SmPlacement placement : {SmPlacement::kInOrder, SmPlacement::kByGpc}) {
        list.add(fmt::format("placement-{}", placement_name(placement)),
                 [placement](Variant v) { v->plan.placement = placement; });
    }
}

void add_overlap(VariantList list) {
    list.add("no-overlap", [](Variant v) { v->plan.overlap = false; });
    list.add("serial", [](Variant v) {
        v->launch_mode = LaunchMode::kSerial;
        v->plan.combine = CombineUnits::kAuto;
        v->plan.placement = SmPlacement::kBalanced;
        v->plan.shared_experts = SharedExperts::kAuto;
    });
}

void add_combine(VariantList list) {
    list.add("combine-compute", [](Variant v) { v->plan.combine = CombineUnits::kCompute; });
    list.add("combine-follow", [](Variant v) { v->plan.combine = CombineUnits::kFollow; });
    list.add("combine-dispatch", [](Variant v) { v->plan.combine = CombineUnits::kDispatch; });
    list.add("combine-all", [](Variant v) { v->plan.combine = CombineUnits::kAll; });
}

void add_shared(VariantList list) {
    list.add("shared-fused", [](Variant v) {
        v->shared = SharedForm::kFused;
        v->plan.shared_experts = SharedExperts::kInOrder;
    });
    list.add("shared-role4", [](Variant v) {
        v->shared = SharedForm::kFused;
        v->plan.shared_experts = SharedExperts::kRole4;
        v->plan.combine = CombineUnits::kCompute;
    });
    list.add("shared-apart", [](Variant v) { v->shared = SharedForm::kApart; });
}

void add_launch(VariantList list) {
    list.add("eager", [](Variant v) { v->launch_mode = LaunchMode::kEager; });
}

void add_closing(VariantList list) {
    for (const Closing closing :
         {Closing::kGraph, Closing::kNode, Closing::kBarrier, Closing::kCleaning, Closing::kBoth}) {
        list.add(fmt::format("closing-{}", closing_name(closing)), [closing](Variant v) {
            v->closing = closing;
            v->launch_mode = LaunchMode::kGraph;
        });
    }
}

void add_decode(VariantList list) {
    for (const DecodeForm decode : {DecodeForm::kChunkFactors, DecodeForm::kK32}) {
        list.add(fmt::format("decode-{}", decode_name(decode)),
                 [decode](Variant v) { v->decode = decode; });
    }
}

void add_trace(VariantList list) {
    list.add("traced", [](Variant v) { v->trace_events = kTraceEvents; });
}

struct Ablation {
    const char* name;
    void (*add)(VariantList list);
};
constexpr Ablation kAblations[] = {
    {"partition", add_partition}, {"placement", add_placement}, {"overlap", add_overlap},
    {"combine", add_combine},     {"shared", add_shared},       {"launch", add_launch},
    {"closing", add_closing},     {"decode", add_decode},       {"trace", add_trace},
};

}  // namespace

const std::vector<std::string>& ablation_names() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> list;
        for (const Ablation& ablation : kAblations) list.emplace_back(ablation.name);
        return list;
    }();
    return names;
}

void add_ablation(const std::string& name, const BenchVariant& base,
                  std::vector<BenchVariant>* out) {
    for (const Ablation& ablation : kAblations) {
        if (name == ablation.name) ablation.add(VariantList(name, base, out));
    }
}

}  // namespace gcmoe::cli
