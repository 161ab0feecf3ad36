// The shape of plans: what is fused, what is stored, which loops are made.
#include "schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/graphs.h"
#include "schedule/plan_text.h"

namespace ingot {
namespace {

using namespace testing;

TEST(Schedule, PointwiseChainIsOneKernelWithOneLoop) {
    Graph g;
    ValueId x = input(g, {1024, 1024});
    ValueId s = g.emit(Prim::Sin, {x});
    output(g, g.emit(Prim::Add, {g.emit(Prim::Mul, {s, s}), x}));
    Plan p = schedule(g);
    ASSERT_EQ(p.steps.size(), 1u) << to_string(p);
    const Nest& n = p.kernels[0].nests.at(0);
    ASSERT_EQ(n.loops.size(), 1u) << to_string(p);
    EXPECT_TRUE(n.loops[0].extent.is(1 << 20));
    EXPECT_EQ(n.loops[0].kind, LoopKind::Vector);
    EXPECT_EQ(p.kernels[0].buffers.size(), 2u);
}

TEST(Schedule, SoftmaxIsOneNestOfThreePhasesWithAScratchRow) {
    Graph g;
    output(g, softmax(g, input(g, {8, 12, 128, 128}), 3));
    Plan p = schedule(g);
    ASSERT_EQ(p.steps.size(), 1u) << to_string(p);
    const Nest& n = p.kernels[0].nests.at(0);
    EXPECT_EQ(n.phases.size(), 3u) << to_string(p);
    EXPECT_EQ(n.loops.size(), 1u) << to_string(p);
    ASSERT_EQ(p.kernels[0].buffers.size(), 3u) << to_string(p);
    EXPECT_EQ(p.kernels[0].buffers[2].scope, BufferScope::Scratch);
    EXPECT_EQ(n.phases[1].loops.at(0).kind, LoopKind::Vector);
}

TEST(Schedule, LayerNormWithResidualIsOneKernelThatStoresBoth) {
    Graph g;
    ValueId a = input(g, {4, 128, 768}), b = input(g, {4, 128, 768});
    ValueId w = input(g, {768}), bias = input(g, {768});
    ValueId x = g.emit(Prim::Add, {a, b});
    output(g, x);
    output(g, layer_norm(g, x, w, bias));
    Plan p = schedule(g);
    ASSERT_EQ(p.steps.size(), 1u) << to_string(p);
    EXPECT_EQ(p.kernels[0].nests[0].phases.size(), 3u) << to_string(p);
    EXPECT_TRUE(p.kernels[0].nests[0].loops.at(0).extent.is(512)) << to_string(p);
}

TEST(Schedule, AKernelOfChannelsInnermostIsCopiedAlongItsChannels) {
    // Rows and columns are one loop though the channels lie between them, and vectors go along the
    // channels, not along the three or nine taps.
    Graph g;
    ValueId x = input(g, {8, 3, 3, 64});
    output(g, g.emit(Prim::Permute, {x}, {{"dims", Ints{0, 3, 1, 2}}}));
    Plan p = schedule(g);
    ASSERT_EQ(p.kernels.size(), 1u) << to_string(p);
    const auto& loops = p.kernels[0].nests.at(0).loops;
    ASSERT_EQ(loops.size(), 4u) << to_string(p);
    EXPECT_TRUE(loops[2].extent.is(9)) << to_string(p);
    EXPECT_TRUE(loops[3].extent.is(32)) << to_string(p);
    EXPECT_EQ(loops[3].kind, LoopKind::Vector);
}

TEST(Schedule, EqualLayersAreCompiledOnce) {
    Graph g;
    ValueId x = input(g, {128, 256});
    for (int i = 0; i < 12; ++i) {
        ValueId w = input(g, {256, 256}, DType::F32, true);
        x = softmax(g, g.emit(Prim::Matmul, {x, w}), 1);
    }
    output(g, x);
    Plan p = schedule(g);
    EXPECT_EQ(p.steps.size(), 24u);
    EXPECT_EQ(p.kernels.size(), 1u) << to_string(p);
}

TEST(Schedule, FrozenComputationsAreFrozenSteps) {
    Graph g;
    ValueId x = input(g, {16, 32});
    ValueId w = input(g, {32, 8}, DType::F32, true);
    output(g, g.emit(Prim::Matmul, {x, g.emit(Prim::Exp, {w})}));
    Plan p = schedule(g);
    EXPECT_EQ(p.frozen_steps.size(), 1u) << to_string(p);
    EXPECT_EQ(p.steps.size(), 1u) << to_string(p);
}

TEST(Schedule, ViewsOfOperandsAreNoSteps) {
    Graph g;
    ValueId x = input(g, {2, 128, 768});
    ValueId r = g.emit(Prim::Reshape, {x}, {{"sizes", Sizes{2, 128, 12, 64}}});
    ValueId q = g.emit(Prim::Permute, {r}, {{"dims", Ints{0, 2, 1, 3}}});
    q = g.emit(Prim::Reshape, {q}, {{"sizes", Sizes{24, 128, 64}}});
    q = g.emit(
        Prim::Slice, {q},
        {{"starts", Sizes{0, 0, 0}}, {"ends", Sizes{12, 128, 64}}, {"steps", Ints{1, 1, 1}}});
    ValueId k = g.emit(Prim::Permute, {q}, {{"dims", Ints{0, 2, 1}}});
    output(g, g.emit(Prim::Matmul, {q, k}));
    Plan p = schedule(g);
    EXPECT_EQ(p.steps.size(), 1u) << to_string(p);
}

TEST(Schedule, ConcatenationIsWrittenByItsParts) {
    Graph g;
    ValueId a = input(g, {64, 100}), b = input(g, {64, 28});
    ValueId c = g.emit(Prim::Concat, {g.emit(Prim::Exp, {a}), b}, {{"dim", std::int64_t{1}}});
    output(g, c);
    Plan p = schedule(g);
    for (const Kernel& k : p.kernels)
        for (const Phase& ph : k.nests.at(0).phases)
            for (const Inst& i : ph.insts) EXPECT_NE(i.prim, Prim::Select) << to_string(p);
}

TEST(Schedule, InputsGivenBackAreCopied) {
    Graph g;
    ValueId x = input(g, {16});
    output(g, x);
    output(g, x);
    g.add_output(g.emit(Prim::Neg, {x}), {1}, 0);
    Plan p = schedule(g);
    EXPECT_NE(p.output_buffers[0], p.output_buffers[1]);
    EXPECT_NE(p.output_buffers[0], p.input_buffers[0]);
    EXPECT_EQ(p.output_buffers[2], p.input_buffers[0]) << to_string(p);
}

TEST(Schedule, AGradientDiesWithItsUpdate) {
    Graph g;
    ValueId x = input(g, {64, 64}), p = input(g, {64, 64}), q = input(g, {64, 64});
    ValueId first = g.emit(Prim::Matmul, {x, p}), second = g.emit(Prim::Matmul, {x, q});
    const Sizes strides = contiguous_strides(g.type(x).sizes);
    g.add_output(g.emit(Prim::Sub, {p, first}), strides, 1);
    g.add_output(g.emit(Prim::Sub, {q, second}), strides, 2);
    Plan plan = schedule(g);
    // Each update follows its product, in place: one product is alive at a time.
    ASSERT_EQ(plan.steps.size(), 4u) << to_string(plan);
    EXPECT_TRUE(std::holds_alternative<KernelStep>(plan.steps[1])) << to_string(plan);
    EXPECT_TRUE(plan.arena_bytes.is(64 * 64 * 4)) << to_string(plan);
}

TEST(Schedule, AWriteWaitsForThoseWhoReadTheOldContents) {
    Graph g;
    ValueId x = input(g, {64, 64}), p = input(g, {64, 64});
    ValueId gradient = g.emit(Prim::Matmul, {x, x});
    ValueId updated = g.emit(Prim::Sub, {p, gradient});
    output(g, g.emit(Prim::Matmul, {x, p}));
    g.add_output(updated, contiguous_strides(g.type(x).sizes), 1);
    Plan plan = schedule(g);
    ASSERT_EQ(plan.steps.size(), 3u) << to_string(plan);
    EXPECT_TRUE(std::holds_alternative<KernelStep>(plan.steps[2])) << to_string(plan);
    EXPECT_TRUE(plan.arena_bytes.is(64 * 64 * 4)) << to_string(plan);
}

TEST(Schedule, AnInputThatIsReadThroughAViewIsWrittenInPlace) {
    Graph g;
    ValueId x = input(g, {64, 64}), p = input(g, {64, 64});
    ValueId turned = g.emit(Prim::Permute, {p}, {{"dims", Ints{1, 0}}});
    output(g, g.emit(Prim::Matmul, {x, turned}));
    ValueId updated = g.emit(Prim::Sub, {p, g.emit(Prim::Matmul, {x, x})});
    g.add_output(updated, contiguous_strides(g.type(x).sizes), 1);
    Plan plan = schedule(g);
    ASSERT_EQ(plan.steps.size(), 3u) << to_string(plan);
    EXPECT_TRUE(plan.arena_bytes.is(64 * 64 * 4)) << to_string(plan);
}

TEST(Schedule, NewContentsThatAreReadTurnedGetACopy) {
    Graph g;
    ValueId p = input(g, {64, 64});
    ValueId turned = g.emit(Prim::Permute, {p}, {{"dims", Ints{1, 0}}});
    g.add_output(g.emit(Prim::Add, {p, turned}), contiguous_strides(g.type(p).sizes), 0);
    Plan plan = schedule(g);
    ASSERT_EQ(plan.steps.size(), 2u) << to_string(plan);
}

TEST(Schedule, NewContentsComeBehindCallsThatMayFail) {
    Graph g;
    ValueId x = input(g, {64, 64}), p = input(g, {64, 64}), y = input(g, {8}), q = input(g, {8});
    const auto call = [&](ValueId v) {
        const NodeId id = g.add_with_types(
            Prim::ExternCall, {v},
            {{"callee", std::string("may_fail")}, {"index", std::int64_t{0}}, {"pure", true}},
            {g.type(v)});
        return g.node(id).results[0];
    };
    const Sizes strides = contiguous_strides(g.type(x).sizes);
    ValueId updated = g.emit(Prim::Sub, {p, x}), needed = g.emit(Prim::Sub, {q, y});
    output(g, call(x));
    output(g, call(needed));
    g.add_output(updated, strides, 1);
    g.add_output(needed, {1}, 3);
    Plan plan = schedule(g);
    std::size_t last_call = 0, write = 0;
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
        if (std::holds_alternative<ExternStep>(plan.steps[s])) last_call = s;
        const auto* kernel = std::get_if<KernelStep>(&plan.steps[s]);
        if (kernel != nullptr &&
            std::ranges::find(kernel->buffers, plan.input_buffers[1]) != kernel->buffers.end())
            write = s;
    }
    EXPECT_GT(write, last_call) << to_string(plan);
}

TEST(Schedule, WritesComeBehindAssertions) {
    Graph g;
    ValueId x = input(g, {64, 64}), p = input(g, {64, 64}), y = input(g, {8}), z = input(g, {8});
    // The gradient dies with its update, but for the check at the program's end.
    ValueId updated = g.emit(Prim::Sub, {p, g.emit(Prim::Matmul, {x, x})});
    ValueId condition = g.emit(Prim::All, {g.emit(Prim::Lt, {y, z})}, {{"dims", Ints{0}}});
    g.emit(Prim::Assert, {condition}, {{"message", std::string("never")}});
    g.add_output(updated, contiguous_strides(g.type(x).sizes), 1);
    Plan plan = schedule(g);
    const auto* last = std::get_if<KernelStep>(&plan.steps.back());
    ASSERT_TRUE(last != nullptr) << to_string(plan);
    EXPECT_NE(std::ranges::find(last->buffers, plan.input_buffers[1]), last->buffers.end())
        << to_string(plan);
}

TEST(Schedule, CallsThatNeverFailHoldNoWritesBack) {
    Graph g;
    ValueId x = input(g, {64, 64}), p = input(g, {64, 64});
    ValueId updated = g.emit(Prim::Sub, {p, g.emit(Prim::Matmul, {x, x})});
    const NodeId call =
        g.add_with_types(Prim::ExternCall, {x},
                         {{"callee", std::string("aten::max_pool2d_with_indices_backward")},
                          {"index", std::int64_t{0}},
                          {"pure", true}},
                         {g.type(x)});
    output(g, g.node(call).results[0]);
    g.add_output(updated, contiguous_strides(g.type(x).sizes), 1);
    Plan plan = schedule(g);
    // The gradient dies with its update before the call is made.
    ASSERT_EQ(plan.steps.size(), 3u) << to_string(plan);
    EXPECT_TRUE(std::holds_alternative<KernelStep>(plan.steps[1])) << to_string(plan);
}

TEST(Schedule, AWriteBehindACallDrawsNothingForward) {
    Graph g;
    ValueId x = input(g, {64, 64}), p = input(g, {64, 64}), q = input(g, {64, 64});
    ValueId count = input(g, {8});
    // The program begins with the count, whose new contents come behind the call at its end.
    ValueId counted = g.emit(Prim::Neg, {count});
    ValueId first = g.emit(Prim::Matmul, {x, p});
    output(g, g.emit(Prim::Exp, {g.emit(Prim::Matmul, {first, first})}));
    ValueId second = g.emit(Prim::Matmul, {first, q});
    const NodeId call = g.add_with_types(
        Prim::ExternCall, {second},
        {{"callee", std::string("may_fail")}, {"index", std::int64_t{0}}, {"pure", true}},
        {g.type(second)});
    output(g, g.node(call).results[0]);
    g.add_output(counted, {1}, 3);
    Plan plan = schedule(g);
    std::size_t outer = 0, onward = 0;  // first times first, and what leads to the call
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
        const auto* step = std::get_if<ExternStep>(&plan.steps[s]);
        if (step == nullptr || step->prim != Prim::Matmul) continue;
        if (step->inputs[0] == step->inputs[1]) outer = s;
        if (step->inputs[1] == plan.input_buffers[2]) onward = s;
    }
    EXPECT_LT(outer, onward) << to_string(plan);
}

TEST(Schedule, AnUpdateIsMadeInPlaceWhereTheGradientIsChannelsLast) {
    Graph g;
    const Sizes image{2, 32, 40, 40}, weight{32, 32, 3, 3};
    const Sizes last{32 * 40 * 40, 1, 32 * 40, 32};
    ValueId grad = g.add_input({DType::F32, image}, "grad", last);
    ValueId x = g.add_input({DType::F32, image}, "x", last);
    ValueId w = input(g, weight), m = input(g, weight);
    ValueId gradient = g.emit(Prim::ConvGradWeight, {grad, x},
                              {{"stride", Ints{1, 1}},
                               {"padding", Sizes{1, 1}},
                               {"dilation", Ints{1, 1}},
                               {"groups", std::int64_t{1}},
                               {"transposed", false},
                               {"output_padding", Ints{0, 0}},
                               {"sizes", weight}});
    ValueId momentum = g.emit(Prim::Add, {m, gradient});
    g.add_output(momentum, contiguous_strides(weight), 3);
    g.add_output(g.emit(Prim::Sub, {w, momentum}), contiguous_strides(weight), 2);
    Plan plan = schedule(g);
    ASSERT_EQ(plan.steps.size(), 2u) << to_string(plan);
    EXPECT_TRUE(plan.arena_bytes.is(0)) << to_string(plan);
}

TEST(Schedule, ACallGivesTwoInputsNewContents) {
    Graph g;
    ValueId p = input(g, {64, 64}), q = input(g, {8});
    const NodeId call = g.add_with_types(
        Prim::ExternCall, {p, q},
        {{"callee", std::string("update")}, {"index", std::int64_t{0}}, {"pure", true}},
        {g.type(p), g.type(q)});
    const std::vector<ValueId> after = g.node(call).results;
    g.add_output(after[0], contiguous_strides(g.type(p).sizes), 0);
    g.add_output(after[1], contiguous_strides(g.type(q).sizes), 1);
    Plan plan = schedule(g);
    ASSERT_EQ(plan.steps.size(), 3u) << to_string(plan);
    EXPECT_TRUE(std::holds_alternative<ExternStep>(plan.steps[0])) << to_string(plan);
}

}  // namespace
}  // namespace ingot
