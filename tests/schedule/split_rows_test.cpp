// Long rows and columns in pieces, on a GPU: the shape of plans, and that they compute the same.
#include "schedule/split_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "schedule/graphs.h"
#include "schedule/plan_text.h"
#include "schedule/run_plan.h"
#include "schedule/schedule.h"

namespace ingot {
namespace {

using namespace testing;

std::int64_t no_symbols(Expr) { throw InternalError("a graph with symbols"); }

Plan on_gpu(const Graph& g) {
    ScheduleOptions options;
    options.gpu = true;
    options.cores = 132;
    return schedule(g, options);
}

// x less its mean, over its standard deviation.
ValueId standardised(Graph& g, ValueId x, const Ints& dims) {
    const Sizes sizes = g.type(x).sizes;
    double count = 1;
    for (const std::int64_t d : dims)
        count *= static_cast<double>(sizes[static_cast<std::size_t>(d)].constant());
    const ValueId sum = g.emit(Prim::Sum, {x}, {{"dims", dims}});
    const ValueId mean = g.emit(Prim::Div, {sum, full(g, sum, count)});
    ValueId var = g.emit(Prim::Var, {x}, {{"dims", dims}, {"correction", 0.0}});
    var = g.emit(Prim::Rsqrt, {g.emit(Prim::Add, {var, full(g, var, 1e-5)})});
    const ValueId away = g.emit(Prim::Sub, {x, repeat(g, mean, sizes, dims)});
    return g.emit(Prim::Mul, {away, repeat(g, var, sizes, dims)});
}

// How many of the plan's kernels read all of input 0.
std::size_t readers(const Plan& plan) {
    std::size_t count = 0;
    const std::int64_t all = plan.buffers[0].type.numel().constant();
    for (const Step& s : plan.steps) {
        const auto& step = std::get<KernelStep>(s);
        const Kernel& k = plan.kernels[static_cast<std::size_t>(step.kernel)];
        std::int64_t points = 0;
        for (const Phase& p : k.nests[0].phases) {
            std::int64_t n = 1;
            for (const Loop& l : k.nests[0].loops) n *= l.extent.constant();
            for (const Loop& l : p.loops) n *= l.extent.constant();
            points = std::max(points, n);
        }
        const bool reads =
            std::ranges::find(step.buffers, plan.input_buffers[0]) != step.buffers.end();
        count += reads && 2 * points > all;
    }
    return count;
}

std::int64_t blocks(const Plan& plan, std::size_t step) {
    const Kernel& k =
        plan.kernels[static_cast<std::size_t>(std::get<KernelStep>(plan.steps[step]).kernel)];
    std::int64_t n = 1;
    for (const Loop& l : k.nests[0].loops) n *= l.extent.constant();
    return n;
}

void expect_right(const Graph& g, double far = 3, const std::vector<double>& special = {}) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal(far, 1);
    std::vector<Tensor> inputs;
    for (const Input& in : g.inputs()) {
        Ints sizes;
        for (const Expr& e : g.type(in.value).sizes) sizes.push_back(e.constant());
        Tensor x(g.type(in.value).dtype, sizes);
        for (std::int64_t i = 0; i < x.numel(); ++i) {
            Num n;
            n.re = static_cast<std::size_t>(i) < special.size()
                       ? special[static_cast<std::size_t>(i)]
                       : normal(random);
            x.set(i, n);
        }
        inputs.push_back(std::move(x));
    }
    const Plan plan = on_gpu(g);
    const std::vector<Tensor> expected = evaluate(g, inputs, no_symbols);
    const std::vector<Tensor> found = PlanRunner(plan, no_symbols).run(inputs);
    for (std::size_t o = 0; o < expected.size(); ++o)
        for (std::int64_t i = 0; i < expected[o].numel(); ++i) {
            const double a = expected[o].get(i).re, b = found[o].get(i).re;
            if (std::isnan(a) && std::isnan(b)) continue;
            ASSERT_NEAR(a, b, 1e-4 * std::max(1.0, std::abs(a))) << i << "\n" << to_string(plan);
        }
}

TEST(SplitRows, AFewLongRowsAreReadOnceForTheirMomentsByManyBlocks) {
    Graph g;
    const ValueId x = input(g, {3, 4, 64, 256});
    output(g, standardised(g, x, {1, 2, 3}));
    const Plan plan = on_gpu(g);
    EXPECT_EQ(readers(plan), 2u) << to_string(plan);
    EXPECT_GE(blocks(plan, 0), 3 * 16) << to_string(plan);
    expect_right(g, 1000);
}

TEST(SplitRows, ShortRowsAndManyRowsStayOneKernel) {
    for (const Sizes& sizes : {Sizes{4096, 768}, Sizes{256, 16384}, Sizes{2, 1024}}) {
        Graph g;
        output(g, standardised(g, input(g, sizes), {1}));
        EXPECT_EQ(on_gpu(g).steps.size(), 1u);
    }
}

TEST(SplitRows, WidenedRowsThatABlockKeepsAreNotCutForWhatIsTakenOff) {
    Graph g;
    const ValueId x = input(g, {512, 50257}, DType::BF16);
    const ValueId wide = g.emit(Prim::Convert, {x}, {{"dtype", DType::F32}});
    const Sizes sizes = g.type(wide).sizes;
    const ValueId max = g.emit(Prim::Amax, {wide}, {{"dims", Ints{1}}});
    const ValueId away = g.emit(Prim::Sub, {wide, repeat(g, max, sizes, {1})});
    output(g, g.emit(Prim::Sum, {g.emit(Prim::Exp, {away})}, {{"dims", Ints{1}}}));
    const Plan plan = on_gpu(g);
    EXPECT_EQ(plan.steps.size(), 1u) << to_string(plan);
}

TEST(SplitRows, ColumnsOfImagesKeepTheirForms) {
    // A batch norm's sums over images: as columns of the value's own dims.
    Graph g;
    const Sizes sizes{32, 64, 56, 56};
    const ValueId x = g.add_input({DType::BF16, sizes, {}}, "x", Sizes{200704, 1, 3584, 64}, false);
    const ValueId wide = g.emit(Prim::Convert, {x}, {{"dtype", DType::F32}});
    output(g, g.emit(Prim::Var, {wide}, {{"dims", Ints{0, 2, 3}}, {"correction", 0.0}}));
    const Plan plan = on_gpu(g);
    // One pass over the images, relative to each channel's first element.
    EXPECT_EQ(readers(plan), 1u) << to_string(plan);
    EXPECT_EQ(plan.kernels[0].nests[0].phases.size(), 2u) << to_string(plan);
}

TEST(SplitRows, SizesWithoutDivisorsAreCutUnevenly) {
    Graph g;
    const ValueId x = input(g, {2, 65537});
    output(g, standardised(g, x, {1}));
    output(g, softmax(g, x, 1));
    output(g, g.emit(Prim::Amax, {x}, {{"dims", Ints{0, 1}}}));
    output(g, g.emit(Prim::Sum, {x}, {{"dims", Ints{0, 1}}}));
    const Plan plan = on_gpu(g);
    EXPECT_GE(blocks(plan, 0), 2 * 16) << to_string(plan);
    expect_right(g);
}

TEST(SplitRows, ALongSoftmaxReadsItsRowsTwice) {
    Graph g;
    output(g, softmax(g, input(g, {2, 65536}), 1));
    const Plan plan = on_gpu(g);
    EXPECT_EQ(readers(plan), 2u) << to_string(plan);
    expect_right(g);
    // Whole pieces of -inf, and what makes rows NaN.
    const double infinity = std::numeric_limits<double>::infinity();
    expect_right(g, 0, std::vector<double>(20000, -infinity));
    expect_right(g, 0, std::vector<double>(65536, -infinity));
    expect_right(g, 0, {1, infinity});
    expect_right(g, 0, {1, std::nan("")});
}

TEST(SplitRows, GroupsOfChannelsLastAreColumns) {
    Graph g;
    const Sizes sizes{2, 20, 128, 32};
    const ValueId x = g.add_input({DType::F32, sizes, {}}, "x", Sizes{81920, 1, 640, 20}, false);
    const ValueId groups = g.emit(Prim::Reshape, {x}, {{"sizes", Sizes{2, 2, 10, 4096}}});
    const ValueId y = standardised(g, groups, {2, 3});
    g.add_output(g.emit(Prim::Reshape, {y}, {{"sizes", sizes}}), Sizes{81920, 1, 640, 20});
    const Plan plan = on_gpu(g);
    EXPECT_EQ(readers(plan), 2u) << to_string(plan);
    // Channels are neighbouring points, not a row's elements.
    const Nest& first = plan.kernels[0].nests[0];
    EXPECT_TRUE(first.loops.back().extent.is(20)) << to_string(plan);
    expect_right(g);
}

TEST(SplitRows, ImagesWithChannelsLastGiveTheirStatisticsByColumns) {
    Graph g;
    const Sizes sizes{2, 32, 64, 64};
    const ValueId x = g.add_input({DType::F32, sizes, {}}, "x", Sizes{131072, 1, 2048, 32}, false);
    output(g, standardised(g, x, {2, 3}));
    const Plan plan = on_gpu(g);
    const Nest& first = plan.kernels[0].nests[0];
    EXPECT_TRUE(first.loops.back().extent.is(32)) << to_string(plan);
    EXPECT_LE(first.phases[0].loops.back().extent.constant(), 128) << to_string(plan);
    expect_right(g);
}

}  // namespace
}  // namespace ingot
