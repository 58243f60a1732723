// What code under the library throws ends as a status, never as an abort: a role's unit, the user's
// weight source.
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "cpu/executor_stepper.hpp"
#include "cpu/roles.hpp"
#include "cpu/stepper_memory.hpp"
#include "cpu/thread_memory.hpp"
#include "group/group_state.hpp"
#include "op/op_fixture.hpp"
#include "op/stall_fixture.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;
using test::options_for;
using test::packed_layer;
using test::small_shape;

constexpr int kRanks = 3;
constexpr std::uint32_t kThrower = 1;

// A role of which one rank's unit 0 finds no memory.
template <cpu::RoleFunction kRole>
bool throws_on_one_rank(const cpu::CpuLaunch& cpu, std::uint32_t unit) {
    if (cpu.memory.rank() == kThrower && unit == 0) throw std::bad_alloc();
    return kRole(cpu, unit);
}

template <class M>
cpu::Roles roles_that_throw(Role role) {
    cpu::Roles roles = cpu::roles_with<M>();
    if (role == Role::kDispatch) roles.dispatch = &throws_on_one_rank<&cpu::role1_dispatch<M>>;
    if (role == Role::kCompute) roles.compute = &throws_on_one_rank<&cpu::role2_compute<M>>;
    return roles;
}

class Thrown : public test::BothExecutors {
  protected:
    void expect_all_leave(Role role) {
        std::shared_ptr<Group> group;
        ASSERT_TRUE(Group::in_process(kRanks, Thrown::group(), &group).ok());
        if (on_threads()) {
            group->state().executor =
                std::make_shared<cpu::ThreadRoles>(roles_that_throw<cpu::ThreadMemory>(role));
        } else {
            group->state().executor = std::make_shared<cpu::Stepper>(
                Thrown::group(), roles_that_throw<cpu::StepperMemory>(role));
        }
        Shape shape = small_shape(kRanks);
        shape.num_experts = 12;
        const auto inputs = test::inputs_with(shape, 5, {4, 4, 4}, 4);
        std::vector<std::unique_ptr<Operator>> ops(kRanks);
        std::vector<test::Rows> y(kRanks, test::Rows(std::size_t{4} * 256));
        for (std::size_t r = 0; r < kRanks; ++r) {
            ASSERT_TRUE(Operator::create(shape, packed_layer(shape)[r], group, static_cast<int>(r),
                                         options_for(4), &ops[r])
                            .ok());
            test::stage_inputs(ops[r].get(), options_for(4).index_type, shape, inputs[r]);
        }
        for (std::size_t r = 0; r < kRanks; ++r) {
            LaunchArgs args;
            args.num_tokens = 4;
            args.y = y[r].data();
            ASSERT_TRUE(ops[r]->launch(args).ok());
        }
        for (std::size_t r = 0; r < kRanks; ++r) {
            expect_refused(ops[r]->synchronize(), Code::kStalled,
                           {"rank 1", "ran out of memory or threw"});
        }
        const StallReport report = ops[kThrower]->stall_report();
        EXPECT_EQ(report.cause, StallCause::kNoMemory);
        EXPECT_EQ(report.role, role);
        EXPECT_EQ(report.generation, 1U);
        EXPECT_EQ(ops[0]->stall_report().peer, 1);
    }
};

TEST_P(Thrown, NoMemoryInRole1EndsTheLaunchEverywhere) { expect_all_leave(Role::kDispatch); }
TEST_P(Thrown, NoMemoryInRole2EndsTheLaunchEverywhere) { expect_all_leave(Role::kCompute); }

// Zero would mean for ever.
TEST_P(Thrown, ALimitBelowANanosecondIsALimit) {
    test::StallLayer layer(group(), {1e-12, 1e-12});
    layer.launch({0, 1});
    for (const int rank : {0, 1}) {
        EXPECT_EQ(layer.op(rank).synchronize().code(), Code::kStalled);
    }
}

GCMOE_ON_BOTH_EXECUTORS(Thrown);

class ThrowingSource final : public WeightSource {
  public:
    explicit ThrowingSource(bool standard) : standard_(standard) {}
    Status expert(int /*expert_idx*/, ExpertBytes* /*out*/) override {
        if (standard_) throw std::runtime_error("the disk is gone");
        throw 7;
    }
    Status shared_expert(SharedExpertBytes* /*out*/) override { return {}; }

  private:
    bool standard_;
};

TEST(ThrownBySource, IsABadCheckpoint) {
    std::shared_ptr<const PackedWeights> packed;
    ThrowingSource standard(true);
    expect_refused(PackedWeights::pack(standard, small_shape(1), 0, {}, &packed, nullptr),
                   Code::kBadCheckpoint, {"rank 0", "the disk is gone"});
    ThrowingSource other(false);
    expect_refused(PackedWeights::pack(other, small_shape(1), 0, {}, &packed, nullptr),
                   Code::kBadCheckpoint, {"rank 0", "no std::exception"});
    EXPECT_EQ(packed, nullptr);
}

}  // namespace
}  // namespace gcmoe
