// The passes are near-linear: ten times the nodes take about ten times as long, where a quadratic
// pass would take a hundred times. Times are noisy on shared machines, so the bound lies between
// and the best of several runs counts.
#include <gtest/gtest.h>
#include <time.h>

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

// This thread's processor time in microseconds: others on the machine do not count.
double processor_time() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

std::map<std::string_view, double> best_times(const Graph& g) {
    PassContext context;
    context.panel_width = [](const PackQuery&) { return 16; };
    std::map<std::string_view, double> best;
    for (int run = 0; run < 5; ++run) {
        std::map<std::string_view, double> total;
        Graph now = g;
        for (const Pass& pass : pipeline()) {
            double start = processor_time();
            now = pass.run(now, context);
            total[pass.name] += processor_time() - start;
        }
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
    for (auto& [name, time] : many)
        EXPECT_LT(time / std::max(few[name], 50.0), 60)
            << name << ": " << few[name] << " us, then " << time << " us";
}

}  // namespace
}  // namespace ingot
