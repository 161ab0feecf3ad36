// Kernels that differ in numbers alone are one; which numbers those may be.
#include "schedule/share_kernels.h"

#include <gtest/gtest.h>

#include "schedule/graphs.h"
#include "schedule/plan_text.h"
#include "schedule/run_plan.h"
#include "schedule/schedule.h"

namespace ingot {
namespace {

using namespace testing;

std::string no_choice(const Kernel&) { return {}; }

/// One more than a part of an input's rows.
void slice_of_rows(Graph& g, std::int64_t width, std::int64_t start, std::int64_t length) {
    ValueId x = input(g, {8, width});
    ValueId part = g.emit(
        Prim::Slice, {x},
        {{"starts", Sizes{0, start}}, {"ends", Sizes{8, start + length}}, {"steps", Ints{1, 1}}});
    output(g, g.emit(Prim::Add, {part, full(g, part, 1)}));
}

/// A product with a frozen input that is turned over and squared first.
void turned_weight(Graph& g, std::int64_t rows, std::int64_t columns) {
    ValueId w = input(g, {rows, columns}, DType::F32, true);
    ValueId t = g.emit(Prim::Permute, {w}, {{"dims", Ints{1, 0}}});
    ValueId x = input(g, {3, columns});
    output(g, g.emit(Prim::Matmul, {x, g.emit(Prim::Mul, {t, t})}));
}

std::vector<Tensor> numbered_inputs(const Graph& g) {
    std::vector<Tensor> inputs;
    for (const Input& in : g.inputs()) {
        Ints sizes;
        for (Expr e : g.type(in.value).sizes) sizes.push_back(e.constant());
        Tensor& x = inputs.emplace_back(DType::F32, sizes);
        for (std::int64_t i = 0; i < x.numel(); ++i) {
            Num n;
            n.re = static_cast<double>(i % 1009);
            x.set(i, n);
        }
    }
    return inputs;
}

void expect_same(const Graph& g, const Plan& plan) {
    const SymbolValues none = [](Expr) { return std::int64_t{0}; };
    const std::vector<Tensor> inputs = numbered_inputs(g);
    const std::vector<Tensor> expected = evaluate(g, inputs, none);
    const std::vector<Tensor> got = PlanRunner(plan, none).run(inputs);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(got[i].data, expected[i].data) << to_string(plan);
}

TEST(ShareKernels, PlacesAndStridesBecomeSizes) {
    Graph g;
    slice_of_rows(g, 40, 3, 32);
    slice_of_rows(g, 48, 5, 32);
    slice_of_rows(g, 56, 0, 32);
    Plan p = schedule(g);
    ASSERT_EQ(p.kernels.size(), 3u);
    share_kernels(p, no_choice);
    ASSERT_EQ(p.kernels.size(), 1u) << to_string(p);
    EXPECT_FALSE(p.kernels[0].sizes.empty());
    for (const Loop& l : p.kernels[0].nests[0].loops) EXPECT_TRUE(l.extent.is_constant());
    expect_same(g, p);
}

TEST(ShareKernels, LoopsThatRunAtEveryCallKeepTheirExtents) {
    Graph g;
    slice_of_rows(g, 64, 3, 32);
    slice_of_rows(g, 64, 3, 33);
    Plan p = schedule(g);
    share_kernels(p, no_choice);
    EXPECT_EQ(p.kernels.size(), 2u) << to_string(p);
    expect_same(g, p);
}

TEST(ShareKernels, FrozenStepsShareWhateverTheirExtents) {
    Graph g;
    turned_weight(g, 64, 96);
    turned_weight(g, 96, 160);
    turned_weight(g, 160, 224);
    Plan p = schedule(g);
    ASSERT_EQ(p.kernels.size(), 3u);
    ASSERT_EQ(p.frozen_steps.size(), 3u);
    share_kernels(p, no_choice);
    EXPECT_EQ(p.kernels.size(), 1u) << to_string(p);
    expect_same(g, p);
}

TEST(ShareKernels, WhatIsGeneratedOtherwiseStaysApart) {
    Graph g;
    slice_of_rows(g, 40, 3, 32);
    slice_of_rows(g, 48, 5, 32);
    Plan p = schedule(g);
    share_kernels(p, [](const Kernel& k) { return k.sizes.empty() ? "numbers" : "sizes"; });
    EXPECT_EQ(p.kernels.size(), 2u) << to_string(p);
    for (const Kernel& k : p.kernels) EXPECT_TRUE(k.sizes.empty());
    expect_same(g, p);
}

TEST(ShareKernels, SumsKeepTheirLengths) {
    Graph g;
    for (std::int64_t n : {96, 160}) {
        ValueId x = input(g, {16, n});
        output(g, g.emit(Prim::Sum, {x}, {{"dims", Ints{1}}}));
    }
    Plan p = schedule(g);
    share_kernels(p, no_choice);
    EXPECT_EQ(p.kernels.size(), 2u) << to_string(p);
    expect_same(g, p);
}

}  // namespace
}  // namespace ingot
