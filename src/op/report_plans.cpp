#include "base/status_of.hpp"
#include "gcmoe/plan_report.hpp"
#include "op/operator_state.hpp"

namespace gcmoe {

Status report_plans(const Shape& shape, const OperatorOptions& options,
                    std::vector<PlanReport>* out) {
    return status_of([&]() -> Status {
        op::Blueprint blueprint;
        GCMOE_RETURN_IF_ERROR(op::make_blueprint(shape, options, &blueprint));
        out->clear();
        for (std::size_t i = 0; i < blueprint.plans.size(); ++i) {
            out->push_back(blueprint.sources[i].report(blueprint.plans[i]));
        }
        return {};
    });
}

}  // namespace gcmoe
