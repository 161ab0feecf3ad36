// The passes are near-linear: ten times the nodes may take a little more than ten times as long.
// Times are noisy on shared machines, so the bound is generous (an order of magnitude under what a
// quadratic pass would need) and the best of several runs counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "passes/passes.h"

namespace ingot {
namespace {

// Layers like a transformer's: projections with bias, a softmax, a residual, a norm.
Graph layers(int count) {
    Graph g;
    auto weight = [&](Sizes sizes) {
        Sizes strides = contiguous_strides(sizes);
        return g.add_input({DType::F32, std::move(sizes), {}}, "w", strides, true);
    };
    auto spread = [&](ValueId v, Sizes sizes, Ints dims) {
        return g.emit(Prim::Broadcast, {v}, {{"sizes", sizes}, {"dims", dims}});
    };
    const Sizes full{16, 32};
    ValueId x = g.add_input({DType::F32, full, {}}, "x", {32, 1});
    for (int i = 0; i < count; ++i) {
        ValueId last = x;
        for (int k = 0; k < 3; ++k) {
            ValueId w = g.emit(Prim::Permute, {weight({32, 32})}, {{"dims", Ints{1, 0}}});
            ValueId y = g.emit(Prim::Matmul, {x, w});
            y = g.emit(Prim::Add, {y, spread(weight({32}), full, {1})});
            y = g.emit(Prim::Mul, {y, spread(weight({32}), full, {1})});
            y = g.emit(Prim::Reshape, {y}, {{"sizes", Sizes{2, 8, 32}}});
            y = g.emit(Prim::Reshape, {y}, {{"sizes", full}});
            last = g.emit(Prim::Add, {last, y});
        }
        ValueId top = spread(g.emit(Prim::Amax, {last}, {{"dims", Ints{1}}}), full, {0});
        ValueId e = g.emit(Prim::Exp, {g.emit(Prim::Sub, {last, top})});
        ValueId sum = spread(g.emit(Prim::Sum, {e}, {{"dims", Ints{1}}}), full, {0});
        x = g.emit(Prim::Add, {x, g.emit(Prim::Div, {e, sum})});
    }
    g.add_output(x, {32, 1});
    return g;
}

std::map<std::string_view, double> best_times(const Graph& g) {
    PassContext context;
    context.panel_width = [](const PackQuery&) { return 16; };
    std::map<std::string_view, double> best;
    for (int run = 0; run < 3; ++run) {
        std::vector<PassReport> reports;
        PipelineOptions options;
        options.reports = &reports;
        run_passes(g, context, options);
        std::map<std::string_view, double> total;
        for (const PassReport& r : reports) total[r.name] += r.microseconds;
        for (auto& [name, time] : total) {
            auto [it, fresh] = best.emplace(name, time);
            if (!fresh) it->second = std::min(it->second, time);
        }
    }
    return best;
}

TEST(Growth, PassesAreNearLinear) {
    Graph small = layers(30), large = layers(300);
    ASSERT_GT(large.nodes().size(), 9000u);
    auto few = best_times(small), many = best_times(large);
    for (auto& [name, time] : many) {
        double ratio = time / std::max(few[name], 20.0);
        RecordProperty(std::string(name), std::to_string(ratio));
        EXPECT_LT(ratio, 40) << name << ": " << few[name] << " us, then " << time << " us";
    }
}

}  // namespace
}  // namespace ingot
