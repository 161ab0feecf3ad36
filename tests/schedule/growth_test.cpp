// A stack of encoder layers: what a layer becomes, and that time grows in step with layers.
#include <gtest/gtest.h>

#include <ctime>

#include "schedule/graphs.h"
#include "schedule/plan_text.h"
#include "schedule/schedule.h"

namespace ingot {
namespace {

using namespace testing;

constexpr int kTokens = 128, kWidth = 64, kHeads = 4;

ValueId linear(Graph& g, ValueId x, int in, int out) {
    ValueId w = input(g, {out, in}, DType::F32, true), b = input(g, {out}, DType::F32, true);
    ValueId flat = g.emit(Prim::Reshape, {x}, {{"sizes", Sizes{kTokens, in}}});
    ValueId t = g.emit(Prim::Permute, {w}, {{"dims", Ints{1, 0}}});
    ValueId y = g.emit(Prim::Matmul, {flat, t});
    y = g.emit(Prim::Add, {y, repeat(g, b, {kTokens, out}, {0})});
    return g.emit(Prim::Reshape, {y}, {{"sizes", Sizes{1, kTokens, out}}});
}

ValueId heads(Graph& g, ValueId x) {
    ValueId r = g.emit(Prim::Reshape, {x}, {{"sizes", Sizes{1, kTokens, kHeads, kWidth / kHeads}}});
    return g.emit(Prim::Permute, {r}, {{"dims", Ints{0, 2, 1, 3}}});
}

ValueId gelu(Graph& g, ValueId x) {
    ValueId e = g.emit(Prim::Erf, {g.emit(Prim::Mul, {x, full(g, x, 0.7071067811865476)})});
    e = g.emit(Prim::Add, {e, full(g, x, 1.0)});
    return g.emit(Prim::Mul, {g.emit(Prim::Mul, {x, full(g, x, 0.5)}), e});
}

ValueId norm(Graph& g, ValueId x) {
    return layer_norm(g, x, input(g, {kWidth}, DType::F32, true),
                      input(g, {kWidth}, DType::F32, true));
}

ValueId layer(Graph& g, ValueId x) {
    ValueId q = heads(g, linear(g, x, kWidth, kWidth)), k = heads(g, linear(g, x, kWidth, kWidth)),
            v = heads(g, linear(g, x, kWidth, kWidth));
    ValueId a = g.emit(Prim::Attention, {q, k, v},
                       {{"scale", 0.25}, {"causal", false}, {"logsumexp", false}});
    a = g.emit(Prim::Permute, {a}, {{"dims", Ints{0, 2, 1, 3}}});
    a = g.emit(Prim::Reshape, {a}, {{"sizes", Sizes{1, kTokens, kWidth}}});
    x = norm(g, g.emit(Prim::Add, {linear(g, a, kWidth, kWidth), x}));
    ValueId h = gelu(g, linear(g, x, kWidth, 4 * kWidth));
    return norm(g, g.emit(Prim::Add, {linear(g, h, 4 * kWidth, kWidth), x}));
}

Graph encoder(int layers) {
    Graph g;
    ValueId x = input(g, {1, kTokens, kWidth});
    for (int i = 0; i < layers; ++i) x = layer(g, x);
    output(g, x);
    return g;
}

ScheduleOptions generating() {
    ScheduleOptions o;
    o.generate_contraction = [](const Kernel& k) { return k.contraction != nullptr; };
    return o;
}

TEST(ScheduleGrowth, EncoderLayerIsSixContractionsAttentionAndTwoNorms) {
    Plan p = schedule(encoder(1), generating());
    EXPECT_EQ(p.steps.size(), 6u + 1u + 2u) << to_string(p);
    EXPECT_EQ(p.frozen_steps.size(), 0u);
    // Twelve layers are no more kernels than three.
    EXPECT_EQ(schedule(encoder(12), generating()).kernels.size(),
              schedule(encoder(3), generating()).kernels.size());
}

// Processor time: other work on the machine does not count.
double milliseconds(const Graph& g) {
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
        std::clock_t start = std::clock();
        Plan p = schedule(g, generating());
        best = std::min(best, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return best;
}

TEST(ScheduleGrowth, TimeIsNearLinearInLayers) {
    double few = milliseconds(encoder(12)) / 12, many = milliseconds(encoder(96)) / 96;
    RecordProperty("milliseconds_per_layer", std::to_string(many));
    EXPECT_LT(many, 2 * few + 0.2) << few << " ms a layer of 12, " << many << " of 96";
}

}  // namespace
}  // namespace ingot
