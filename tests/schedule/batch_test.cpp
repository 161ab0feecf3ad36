// Which launches become one: see schedule/batch.h.
#include "schedule/batch.h"

#include <gtest/gtest.h>

namespace ingot::sched {
namespace {

constexpr std::int64_t kMega = 1 << 20;

std::int32_t add_buffer(Plan& plan, BufferPlace place, std::int64_t bytes) {
    Buffer b;
    b.type = {DType::U8, {Expr(bytes)}, {}};
    b.strides = {Expr(1)};
    b.place = place;
    b.bytes = Expr(bytes);
    plan.buffers.push_back(std::move(b));
    return static_cast<std::int32_t>(plan.buffers.size()) - 1;
}

Kernel unary(const char* name) {
    Kernel k;
    k.name = name;
    k.buffers = {{DType::U8, Expr(1), BufferScope::Argument, true, false},
                 {DType::U8, Expr(1), BufferScope::Argument, false, true}};
    return k;
}

/// Of `count` weights each is cast into `bytes` of the arena right before its reader.
Plan casts(int count, std::int64_t bytes) {
    Plan plan;
    plan.pool = std::make_shared<ExprPool>();
    plan.kernels = {unary("cast"), unary("read")};
    plan.kernels[0].nests.emplace_back();
    plan.kernels[1].nests.resize(2);  // is not launched together with others
    for (int i = 0; i < count; ++i) {
        const std::int32_t weight = add_buffer(plan, BufferPlace::Input, bytes);
        const std::int32_t cast = add_buffer(plan, BufferPlace::Arena, bytes);
        const std::int32_t result = add_buffer(plan, BufferPlace::Output, bytes);
        plan.steps.emplace_back(KernelStep{0, {weight, cast}, {}});
        plan.steps.emplace_back(KernelStep{1, {cast, result}, {}});
    }
    return plan;
}

std::vector<int> instances_of_casts(const Plan& plan) {
    std::vector<int> found;
    for (const Step& s : plan.steps) {
        const Kernel& k = plan.kernels[std::get<KernelStep>(s).kernel];
        if (k.name == "cast") found.push_back(k.instances);
    }
    return found;
}

TEST(Batch, SmallValuesAreMadeEarlyInOneLaunch) {
    Plan plan = casts(12, kMega);
    batch_launches(plan);
    EXPECT_EQ(instances_of_casts(plan), std::vector<int>{12});
}

TEST(Batch, OneLaunchMakesOnlySoMuchThatWaits) {
    Plan plan = casts(12, 8 * kMega);
    batch_launches(plan);
    EXPECT_EQ(instances_of_casts(plan), (std::vector<int>{4, 4, 4}));
    plan = casts(3, 9 * kMega);
    batch_launches(plan);
    EXPECT_EQ(instances_of_casts(plan), (std::vector<int>{1, 1, 1}));
}

}  // namespace
}  // namespace ingot::sched
