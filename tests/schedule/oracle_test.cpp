// Plans compute what the reference evaluator computes: written and random graphs, both orders of
// outer points.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ir/parse.h"
#include "ir/print.h"
#include "ir/random_graph.h"
#include "schedule/graphs.h"
#include "schedule/plan_text.h"
#include "schedule/run_plan.h"
#include "schedule/schedule.h"
#include "schedule/share_kernels.h"
#include "schedule/window_blocks.h"

namespace ingot {
namespace {

using namespace testing;

// Numbers of all magnitudes near 1; indices stay small.
Tensor random_tensor(DType t, const Ints& sizes, std::mt19937_64& random) {
    Tensor x(t, sizes);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
        auto k = static_cast<std::int64_t>(random() % 41) - 20;
        Num n;
        n.i = is_unsigned_int(t) || t == DType::Bool ? k & 1 : k % 3;
        n.re = static_cast<double>(k) / 8;
        n.im = static_cast<double>(random() % 9) / 4;
        x.set(i, n);
    }
    return x;
}

double tolerance(DType t) {
    return t == DType::F64 ? 1e-11 : t == DType::F32 || t == DType::C64 ? 2e-5 : 2e-2;
}

void expect_close(const Tensor& a, const Tensor& b, const std::string& about) {
    ASSERT_EQ(a.dtype, b.dtype) << about;
    ASSERT_EQ(a.sizes, b.sizes) << about;
    for (std::int64_t i = 0; i < a.numel(); ++i) {
        Num x = a.get(i), y = b.get(i);
        if (is_integral(a.dtype)) {
            ASSERT_EQ(x.i, y.i) << "element " << i << "\n" << about;
            continue;
        }
        for (auto [p, q] : {std::pair{x.re, y.re}, std::pair{x.im, y.im}}) {
            if (std::isnan(p) && std::isnan(q)) continue;
            if (p == q) continue;
            double scale = std::max({1.0, std::abs(p), std::abs(q)});
            ASSERT_LE(std::abs(p - q), tolerance(a.dtype) * scale)
                << "element " << i << ": " << p << " and " << q << "\n"
                << about;
        }
    }
}

// Blocks windows however few threads are left; returns how many nests have changed.
std::size_t block(Plan& plan) {
    std::size_t changed = 0;
    for (Kernel& k : plan.kernels) {
        const std::string before = to_string(k);
        for (Nest& n : k.nests) sched::block_windows(n, k.buffers, *plan.pool, 1);
        changed += to_string(k) != before;
    }
    return changed;
}

// Schedules and runs `g` on random inputs and compares with the reference; returns the plan.
Plan verify(const Graph& g, std::uint64_t seed = 1, std::int64_t symbol = 5,
            const ScheduleOptions& options = {}) {
    std::mt19937_64 random(seed);
    SymbolValues symbols = [&](Expr) { return symbol; };
    std::vector<Tensor> inputs;
    for (const Input& in : g.inputs()) {
        Ints sizes;
        for (Expr e : g.type(in.value).sizes) sizes.push_back(evaluate(e, symbols));
        inputs.push_back(random_tensor(g.type(in.value).dtype, sizes, random));
    }
    std::vector<Tensor> expected = evaluate(g, inputs, symbols);
    Plan plan = schedule(g, options);
    std::string about = to_string(g) + to_string(plan);
    for (PointOrder order : {PointOrder::Forwards, PointOrder::Backwards}) {
        std::vector<Tensor> got = PlanRunner(plan, symbols, order).run(inputs);
        EXPECT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size() && !::testing::Test::HasFailure(); ++i)
            expect_close(got[i], expected[i], about);
    }
    Plan shared = plan;
    share_kernels(shared, [](const Kernel&) { return std::string(); });
    std::vector<Tensor> got = PlanRunner(shared, symbols).run(inputs);
    for (std::size_t i = 0; i < got.size() && !::testing::Test::HasFailure(); ++i)
        expect_close(got[i], expected[i], "shared kernels: " + to_string(shared));
    Plan blocked = plan;
    if (block(blocked) == 0) return plan;
    for (PointOrder order : {PointOrder::Forwards, PointOrder::Backwards}) {
        got = PlanRunner(blocked, symbols, order).run(inputs);
        for (std::size_t i = 0; i < got.size() && !::testing::Test::HasFailure(); ++i)
            expect_close(got[i], expected[i], "in blocks: " + to_string(blocked));
    }
    return plan;
}

TEST(ScheduleOracle, RandomGraphs) {
    for (std::uint64_t seed = 0; seed < 400 && !HasFailure(); ++seed) {
        Graph g = RandomGraph(seed, seed % 2 == 0).make(8 + static_cast<int>(seed % 40));
        SCOPED_TRACE(seed);
        try {
            verify(g, seed);
        } catch (const Error& e) {
            ADD_FAILURE() << e.what() << "\n" << to_string(g);
        }
    }
}

TEST(ScheduleOracle, SoftmaxAlongEveryDim) {
    for (std::int64_t dim = 0; dim < 3; ++dim) {
        Graph g;
        output(g, softmax(g, input(g, {3, 17, 20}), dim));
        Plan p = verify(g);
        EXPECT_EQ(p.steps.size(), 1u) << to_string(p);
    }
}

TEST(ScheduleOracle, FreeDimsGetLoopsOfTheirOwn) {
    Graph g;
    ValueId s = softmax(g, input(g, {8, 8}), 1);
    ValueId wide =
        g.emit(Prim::Broadcast, {s}, {{"sizes", Sizes{16, 8, 8, 8}}, {"dims", Ints{2, 3}}});
    output(g, g.emit(Prim::Minimum, {input(g, {16, 8, 8, 8}), wide}));
    verify(g);
}

TEST(ScheduleOracle, PaddedDimOfSizeOneBesideAReduction) {
    Graph g;
    ValueId s = g.emit(Prim::Sum, {input(g, {4, 20, 1, 3})}, {{"dims", Ints{0, 3}}});
    ValueId e = g.emit(Prim::Exp, {s});
    output(g, e);
    output(g, g.emit(Prim::Pad, {g.emit(Prim::Mul, {e, s})},
                     {{"low", Sizes{0, 0}}, {"high", Sizes{0, 2}}, {"value", Scalar(0.25)}}));
    verify(g);
}

TEST(ScheduleOracle, LayerNorm) {
    Graph g;
    ValueId x = input(g, {4, 6, 32}), b = input(g, {4, 6, 32});
    ValueId sum = g.emit(Prim::Add, {x, b});
    output(g, layer_norm(g, sum, input(g, {32}), input(g, {32})));
    output(g, sum);
    EXPECT_EQ(verify(g).steps.size(), 1u);
}

// On GPUs the sums of a gradient's columns belong to the kernel of its rows; whoever reads them
// waits for all runs.
TEST(ScheduleOracle, ColumnsAddUpWhileRowsPass) {
    Graph g;
    const Sizes sizes{64, 64, 128};
    ValueId x = input(g, sizes), away = input(g, sizes);
    ValueId product = g.emit(Prim::Mul, {x, away});
    ValueId row = g.emit(Prim::Sum, {product}, {{"dims", Ints{2}}});
    ValueId rest = g.emit(Prim::Sub, {away, repeat(g, row, sizes, {2})});
    output(g, rest);
    for (ValueId v : {product, away, rest})
        output(g, g.emit(Prim::Neg, {g.emit(Prim::Sum, {v}, {{"dims", Ints{0, 1}}})}));
    ScheduleOptions options;
    options.gpu = true;
    Plan p = verify(g, 1, 5, options);
    const std::string text = to_string(p.kernels[0]);
    EXPECT_NE(text.find(" run"), std::string::npos) << text;
    std::size_t sums = 0;
    for (std::size_t at = text.find(" sum\n"); at != std::string::npos;
         at = text.find(" sum\n", at + 1))
        ++sums;
    EXPECT_EQ(sums, 3u) << text;
    EXPECT_EQ(to_string(parse_kernel(text, *p.pool)), text);
}

// What a norm's gradient needs of a row of 16 bits in memory is of one pass over it: mean, variance
// and the sums that are relative to them do not wait for each other.
TEST(ScheduleOracle, SumsOfARowDoNotWaitForItsMean) {
    for (const bool narrow : {true, false}) {
        Graph g;
        const Sizes sizes{64, 128};
        ValueId x = input(g, sizes, narrow ? DType::BF16 : DType::F32);
        if (narrow) x = g.emit(Prim::Convert, {x}, {{"dtype", DType::F32}});
        const ValueId grad = input(g, sizes), weight = repeat(g, input(g, {128}), sizes, {0});
        const ValueId sum = g.emit(Prim::Sum, {x}, {{"dims", Ints{1}}});
        const ValueId mean = g.emit(Prim::Div, {sum, full(g, sum, 128)});
        const ValueId var = g.emit(Prim::Var, {x}, {{"dims", Ints{1}}, {"correction", 0.0}});
        const ValueId root = g.emit(Prim::Rsqrt, {g.emit(Prim::Add, {var, full(g, var, 1e-5)})});
        const ValueId scale = repeat(g, root, sizes, {1});
        const ValueId away = g.emit(Prim::Sub, {x, repeat(g, mean, sizes, {1})});
        const ValueId normal = g.emit(Prim::Mul, {away, scale});
        const ValueId weighted = g.emit(Prim::Mul, {grad, weight});
        const auto spread = [&](ValueId v) {
            const ValueId all = g.emit(Prim::Sum, {v}, {{"dims", Ints{1}}});
            return repeat(g, g.emit(Prim::Div, {all, full(g, all, 128)}), sizes, {1});
        };
        const ValueId along =
            g.emit(Prim::Mul, {normal, spread(g.emit(Prim::Mul, {weighted, normal}))});
        ValueId rest = g.emit(Prim::Sub, {g.emit(Prim::Sub, {weighted, spread(weighted)}), along});
        output(g, g.emit(Prim::Mul, {rest, scale}));
        ScheduleOptions options;
        options.gpu = true;
        const Plan p = verify(g, 1, 5, options);
        ASSERT_EQ(p.kernels.size(), 1u) << to_string(p);
        // A pass more for the variance and one for what is relative to it.
        EXPECT_EQ(p.kernels[0].nests[0].phases.size(), narrow ? 2u : 4u) << to_string(p);
    }
}

// A mean over labels that count: how many do is known before the losses are, but both sums are of
// few points, and nobody asks for the first one before the second one.
TEST(ScheduleOracle, ASmallSumWaitsForAnother) {
    Graph g;
    const ValueId x = input(g, {512, 100}), weight = input(g, {512});
    const ValueId each = g.emit(Prim::Sum, {g.emit(Prim::Exp, {x})}, {{"dims", Ints{1}}});
    const ValueId all = g.emit(Prim::Sum, {g.emit(Prim::Neg, {weight})}, {{"dims", Ints{0}}});
    const ValueId loss =
        g.emit(Prim::Sum, {g.emit(Prim::Mul, {each, weight})}, {{"dims", Ints{0}}});
    output(g, g.emit(Prim::Div, {loss, all}));
    ScheduleOptions options;
    options.gpu = true;
    const Plan p = verify(g, 1, 5, options);
    EXPECT_EQ(p.steps.size(), 2u) << to_string(p);
}

// The gradient of a bias adds up while the gradient of the activation behind it is computed.
TEST(ScheduleOracle, ColumnsOfElementsForAProduct) {
    Graph g;
    const Sizes sizes{64, 64, 128};
    const ValueId x = input(g, sizes), grad = input(g, sizes), weight = input(g, {128, 16});
    const ValueId made = g.emit(Prim::Mul, {g.emit(Prim::Tanh, {x}), grad});
    const ValueId flat = g.emit(Prim::Reshape, {made}, {{"sizes", Sizes{4096, 128}}});
    output(g, g.emit(Prim::Matmul, {flat, weight}));
    output(g, g.emit(Prim::Sum, {flat}, {{"dims", Ints{0}}}));
    ScheduleOptions options;
    options.gpu = true;
    Plan p = verify(g, 1, 5, options);
    const bool together = std::ranges::any_of(p.kernels, [](const Kernel& k) {
        const std::string text = to_string(k);
        return text.find("tanh") != std::string::npos && text.find(" sum\n") != std::string::npos &&
               text.find(" run") != std::string::npos;
    });
    EXPECT_TRUE(together) << to_string(p);
}

// As well where other readers want values on the way.
TEST(ScheduleOracle, ColumnsOfElementsOfSeveralValues) {
    Graph g;
    const Sizes sizes{4096, 128};
    const ValueId x = input(g, sizes), grad = input(g, sizes), weight = input(g, {128, 16});
    const ValueId slope = g.emit(Prim::Tanh, {x});
    ValueId made = g.emit(Prim::Mul, {slope, grad});
    for (int i = 0; i < 4; ++i) made = g.emit(Prim::Exp, {g.emit(Prim::Mul, {made, slope})});
    output(g, g.emit(Prim::Matmul, {made, weight}));
    output(g, slope);
    output(g, g.emit(Prim::Sum, {made}, {{"dims", Ints{0}}}));
    ScheduleOptions options;
    options.gpu = true;
    Plan p = verify(g, 1, 5, options);
    const bool together = std::ranges::any_of(p.kernels, [](const Kernel& k) {
        const std::string text = to_string(k);
        return text.find("tanh") != std::string::npos && text.find(" sum\n") != std::string::npos;
    });
    EXPECT_TRUE(together) << to_string(p);
}

// On GPUs each element of an image gathers from the windows that it lies in.
TEST(ScheduleOracle, GradientsOfPoolingAreGathered) {
    struct Case {
        Ints kernel, stride, padding;
    };
    ScheduleOptions options;
    options.gpu = true;
    for (const Case& c : {Case{{3, 3}, {2, 2}, {1, 1}}, Case{{2, 2}, {2, 2}, {0, 0}},
                          Case{{3, 2}, {2, 1}, {0, 1}}, Case{{2, 3}, {3, 3}, {1, 0}}}) {
        Graph g;
        const Sizes sizes{2, 8, 9, 10};
        const NodeId pool = g.add(Prim::MaxPoolIndices, {input(g, sizes, DType::BF16)},
                                  {{"kernel", c.kernel},
                                   {"stride", c.stride},
                                   {"padding", c.padding},
                                   {"dilation", Ints{1, 1}},
                                   {"ceil", false}});
        const ValueId positions =
            g.emit(Prim::Convert, {g.node(pool).results[1]}, {{"dtype", DType::I16}});
        const Sizes pooled = g.type(positions).sizes;
        output(g, g.emit(Prim::MaxPoolGrad, {input(g, pooled, DType::BF16), positions},
                         {{"sizes", sizes},
                          {"kernel", c.kernel},
                          {"stride", c.stride},
                          {"padding", c.padding}}));
        const Plan p = verify(g, 1, 5, options);
        EXPECT_EQ(to_string(p).find("max_pool_grad"), std::string::npos) << to_string(p);
    }
}

TEST(ScheduleOracle, DepthwiseGradientsOnGpus) {
    struct Case {
        Ints kernel, stride;
        Sizes padding, image, result;
    };
    ScheduleOptions options;
    options.gpu = true;
    const auto plan_of = [&](const Case& c) {
        Graph g;
        const Sizes image{2, 8, c.image[0], c.image[1]};
        output(g, g.emit(Prim::ConvGradInput,
                         {input(g, {2, 8, c.result[0], c.result[1]}, DType::BF16),
                          input(g, {8, 1, c.kernel[0], c.kernel[1]}, DType::BF16)},
                         {{"sizes", image},
                          {"stride", c.stride},
                          {"padding", c.padding},
                          {"dilation", Ints{1, 1}},
                          {"groups", std::int64_t{8}},
                          {"transposed", false},
                          {"output_padding", Ints{0, 0}}}));
        return to_string(verify(g, 1, 5, options));
    };
    // Steps of two, with windows that leave a border out and rows at the end that none reaches.
    for (const Case& c : {Case{{3, 3}, {2, 2}, {1, 1}, {8, 8}, {4, 4}},
                          Case{{3, 3}, {2, 2}, {0, 1}, {10, 7}, {4, 4}},
                          Case{{4, 2}, {2, 2}, {1, 0}, {8, 6}, {4, 3}},
                          Case{{2, 2}, {3, 2}, {0, 0}, {9, 5}, {3, 2}}})
        EXPECT_EQ(plan_of(c).find("conv_grad"), std::string::npos) << plan_of(c);
    // An element lies in more than four windows, and channels are apart: the library's.
    for (const Case& c : {Case{{5, 5}, {2, 2}, {2, 2}, {8, 8}, {4, 4}},
                          Case{{3, 3}, {1, 1}, {1, 1}, {8, 8}, {8, 8}}})
        EXPECT_NE(plan_of(c).find("conv_grad_input"), std::string::npos) << plan_of(c);
}

// Channels innermost: nothing of a depthwise convolution is the library's, in either direction, and
// blocks of points and of taps compute what their points and taps did.
TEST(ScheduleOracle, DepthwiseConvolutionsInBlocks) {
    struct Case {
        std::int64_t kernel, stride, dilation, padding, height, width;
        DType type = DType::BF16;
    };
    const auto channels_last = [](const Sizes& sizes) {
        return Sizes{sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
    };
    const auto images = [&](Graph& g, const Sizes& sizes, DType type) {
        return g.add_input({type, sizes, {}}, "in" + std::to_string(g.inputs().size()),
                           channels_last(sizes));
    };
    ScheduleOptions options;
    options.gpu = true;
    std::size_t blocked = 0;
    for (const Case& c : {Case{3, 1, 1, 1, 8, 8}, Case{3, 2, 1, 1, 8, 12}, Case{3, 1, 2, 2, 6, 7},
                          Case{5, 1, 1, 2, 7, 7}, Case{5, 2, 1, 2, 8, 8}, Case{3, 1, 1, 0, 5, 9},
                          Case{7, 1, 1, 3, 6, 4}, Case{3, 2, 1, 1, 9, 7}, Case{3, 1, 1, 1, 4, 1},
                          Case{3, 1, 1, 1, 8, 8, DType::F16}, Case{3, 2, 1, 1, 8, 8, DType::F32}})
        for (const Prim prim : {Prim::Conv, Prim::ConvGradInput, Prim::ConvGradWeight}) {
            constexpr std::int64_t kChannels = 5;
            const auto after = [&](std::int64_t n) {
                return (n + 2 * c.padding - c.dilation * (c.kernel - 1) - 1) / c.stride + 1;
            };
            const Sizes image{2, kChannels, c.height, c.width};
            const Sizes result{2, kChannels, after(c.height), after(c.width)};
            const Sizes weight{kChannels, 1, c.kernel, c.kernel};
            Graph g;
            const ValueId first = images(g, prim == Prim::Conv ? image : result, c.type);
            const ValueId second =
                prim == Prim::ConvGradWeight ? images(g, image, c.type) : input(g, weight, c.type);
            Attrs attrs{{"stride", Ints{c.stride, c.stride}},
                        {"padding", Sizes{c.padding, c.padding}},
                        {"dilation", Ints{c.dilation, c.dilation}},
                        {"groups", kChannels},
                        {"transposed", false},
                        {"output_padding", Ints{0, 0}}};
            if (prim != Prim::Conv) {
                Attrs sized{{"sizes", prim == Prim::ConvGradInput ? image : weight}};
                for (const Attr& a : attrs.list()) sized.set(a.key, a.value);
                attrs = sized;
            }
            const ValueId made = g.emit(prim, {first, second}, attrs);
            if (prim == Prim::ConvGradWeight)
                output(g, made);
            else
                g.add_output(made, channels_last(g.type(made).sizes));
            SCOPED_TRACE(to_string(g));
            Plan plan = verify(g, 1, 5, options);
            const bool wide = c.type == DType::F32 && prim != Prim::Conv;
            const bool many = prim == Prim::ConvGradInput && c.stride == 2 && c.kernel > 3;
            const bool generated = std::ranges::all_of(
                plan.steps, [](const Step& s) { return std::holds_alternative<KernelStep>(s); });
            EXPECT_TRUE(generated || wide || many) << to_string(plan);
            blocked += block(plan);
        }
    EXPECT_GE(blocked, 20u);
}

TEST(ScheduleOracle, ShortPaddedSoftmax) {
    Graph g;
    ValueId x =
        g.emit(Prim::Pad, {input(g, {4, 64, 5, 2})},
               {{"low", Sizes{3, 0, 0, 0}}, {"high", Sizes{3, 0, 0, 0}}, {"value", Scalar(0.25)}});
    ValueId s = softmax(g, x, 3);
    const Sizes sizes = g.type(s).sizes;
    ValueId sum = g.emit(Prim::Sum, {s}, {{"dims", Ints{3}}});
    ValueId away = g.emit(Prim::Sub, {s, repeat(g, sum, sizes, {3})});
    ValueId squares = g.emit(Prim::Sum, {g.emit(Prim::Mul, {away, away})}, {{"dims", Ints{3}}});
    output(g, g.emit(Prim::Mul, {away, repeat(g, squares, sizes, {3})}));
    verify(g);
}

TEST(ScheduleOracle, SoftmaxInBfloat) {
    Graph g;
    output(g, softmax(g, input(g, {8, 40}, DType::BF16), 1));
    verify(g);
}

TEST(ScheduleOracle, GroupNorm) {
    Graph g;
    ValueId x = input(g, {2, 12, 5, 4});
    ValueId r = g.emit(Prim::Reshape, {x}, {{"sizes", Sizes{2, 3, 80}}});
    ValueId mean = g.emit(Prim::Sum, {r}, {{"dims", Ints{2}}});
    mean = g.emit(Prim::Div, {mean, full(g, mean, 80)});
    ValueId var = g.emit(Prim::Var, {r}, {{"dims", Ints{2}}, {"correction", 0.0}});
    ValueId y = g.emit(Prim::Sub, {r, repeat(g, mean, {2, 3, 80}, {2})});
    ValueId s = g.emit(Prim::Rsqrt, {g.emit(Prim::Add, {var, full(g, var, 1e-5)})});
    y = g.emit(Prim::Mul, {y, repeat(g, s, {2, 3, 80}, {2})});
    y = g.emit(Prim::Reshape, {y}, {{"sizes", Sizes{2, 12, 5, 4}}});
    output(g, g.emit(Prim::Mul, {y, repeat(g, input(g, {12}), {2, 12, 5, 4}, {0, 2, 3})}));
    Plan p = verify(g);
    EXPECT_EQ(p.steps.size(), 1u) << to_string(p);
}

TEST(ScheduleOracle, MaxPoolWithIndices) {
    Graph g;
    NodeId n = g.add(Prim::MaxPoolIndices, {input(g, {2, 3, 9, 8})},
                     {{"kernel", Ints{3, 2}},
                      {"stride", Ints{2, 2}},
                      {"padding", Ints{1, 0}},
                      {"dilation", Ints{1, 1}},
                      {"ceil", true}});
    output(g, g.node(n).results[0]);
    output(g, g.node(n).results[1]);
    verify(g);
}

TEST(ScheduleOracle, EmbeddingAndGather) {
    Graph g;
    ValueId table = input(g, {5, 8}, DType::F32, true), ids = input(g, {4, 6}, DType::I64);
    output(g, g.emit(Prim::Take, {table, ids}, {{"dims", Ints{0}}}));
    ValueId cube = input(g, {3, 4, 7}), i = input(g, {2, 3}, DType::I64);
    output(g, g.emit(Prim::Take, {cube, i, i}, {{"dims", Ints{0, 2}}}));
    output(g, g.emit(Prim::Take, {cube, i}, {{"dims", Ints{1}}}));
    ValueId which = g.emit(Prim::Abs, {input(g, {3, 4, 2}, DType::I64)});
    output(g, g.emit(Prim::Gather, {g.emit(Prim::Exp, {cube}), which}, {{"dim", std::int64_t{2}}}));
    verify(g);
}

// `take` counts negative indices from the end, `gather` refuses them, in plans as by definition.
TEST(ScheduleOracle, GatherRefusesNegativeIndices) {
    for (const Prim prim : {Prim::Take, Prim::Gather}) {
        Graph g;
        ValueId x = input(g, {5}), i = input(g, {3}, DType::I64);
        output(g, prim == Prim::Take ? g.emit(prim, {x, i}, {{"dims", Ints{0}}})
                                     : g.emit(prim, {x, i}, {{"dim", std::int64_t{0}}}));
        const SymbolValues none = [](Expr) { return std::int64_t{0}; };
        const Plan plan = schedule(g);
        for (std::int64_t last : {4, -1, -6}) {
            Tensor values(DType::F32, {5}), which(DType::I64, {3});
            which.set(2, {0, 0, last});
            const std::vector<Tensor> inputs{values, which};
            if (last == 4 || (last == -1 && prim == Prim::Take)) {
                EXPECT_NO_THROW(evaluate(g, inputs, none));
                EXPECT_NO_THROW(PlanRunner(plan, none).run(inputs));
            } else {
                EXPECT_THROW(evaluate(g, inputs, none), Error);
                EXPECT_THROW(PlanRunner(plan, none).run(inputs), Error);
            }
        }
    }
}

TEST(ScheduleOracle, LargeReductionInTwoStages) {
    Graph g;
    ValueId x = input(g, {300, 200}), flat = input(g, {40000});
    output(g, g.emit(Prim::Sum, {g.emit(Prim::Mul, {x, x})}, {{"dims", Ints{0, 1}}}));
    output(g, g.emit(Prim::Amax, {flat}, {{"dims", Ints{0}}}));
    Plan p = verify(g);
    EXPECT_EQ(p.steps.size(), 4u) << to_string(p);
}

ScheduleOptions generating() {
    ScheduleOptions o;
    o.generate_contraction = [](const Kernel& k) { return k.contraction != nullptr; };
    return o;
}

TEST(ScheduleOracle, MatmulWithEpilogue) {
    Graph g;
    ValueId x = input(g, {2, 6, 8}), w = input(g, {16, 8}, DType::F32, true);
    ValueId flat = g.emit(Prim::Reshape, {x}, {{"sizes", Sizes{12, 8}}});
    ValueId t = g.emit(Prim::Permute, {w}, {{"dims", Ints{1, 0}}});
    ValueId y =
        g.emit(Prim::Reshape, {g.emit(Prim::Matmul, {flat, t})}, {{"sizes", Sizes{2, 6, 16}}});
    y = g.emit(Prim::Add, {y, repeat(g, input(g, {16}), {2, 6, 16}, {0, 1})});
    ValueId h = g.emit(Prim::Add, {g.emit(Prim::Tanh, {y}), input(g, {2, 6, 16})});
    output(g, h);
    ValueId heads = g.emit(Prim::Reshape, {y}, {{"sizes", Sizes{2, 6, 4, 4}}});
    heads = g.emit(Prim::Permute, {heads}, {{"dims", Ints{0, 2, 1, 3}}});
    output(g, heads);
    output(g, g.emit(Prim::Matmul,
                     {heads, g.emit(Prim::Permute, {heads}, {{"dims", Ints{0, 1, 3, 2}}})}));
    Plan p = verify(g, 1, 5, generating());
    ASSERT_EQ(p.steps.size(), 2u) << to_string(p);
    EXPECT_EQ(p.kernels[0].contraction->m.size(), 1u) << to_string(p);
}

ValueId conv(Graph& g, ValueId x, ValueId w, std::int64_t stride, std::int64_t padding,
             std::int64_t groups = 1) {
    return g.emit(Prim::Conv, {x, w},
                  {{"stride", Ints{stride, stride}},
                   {"padding", Sizes{padding, padding}},
                   {"dilation", Ints{1, 1}},
                   {"groups", groups},
                   {"transposed", false},
                   {"output_padding", Ints{0, 0}}});
}

ValueId biased(Graph& g, ValueId y) {
    const Sizes sizes = g.type(y).sizes;
    return g.emit(Prim::Add, {y, repeat(g, input(g, {sizes[1]}), sizes, {0, 2, 3})});
}

TEST(ScheduleOracle, ConvolutionOfAnInputPadsItOnce) {
    Graph g;
    ValueId x = input(g, {2, 3, 9, 8}), w = input(g, {4, 3, 3, 2}, DType::F32, true);
    ValueId y = g.emit(Prim::Conv, {x, w},
                       {{"stride", Ints{2, 1}},
                        {"padding", Sizes{1, 0}},
                        {"dilation", Ints{1, 2}},
                        {"groups", std::int64_t{1}},
                        {"transposed", false},
                        {"output_padding", Ints{0, 0}}});
    output(g, g.emit(Prim::Relu, {biased(g, y)}));
    Plan p = verify(g, 1, 5, generating());
    EXPECT_EQ(p.steps.size(), 2u) << to_string(p);
}

TEST(ScheduleOracle, ImagesStayChannelsLastThroughTheNetwork) {
    Graph g;
    ValueId x = conv(g, input(g, {2, 3, 12, 12}), input(g, {8, 3, 3, 3}), 1, 1);
    x = g.emit(Prim::Relu, {biased(g, x)});
    NodeId pool = g.add(Prim::MaxPoolIndices, {x},
                        {{"kernel", Ints{3, 3}},
                         {"stride", Ints{2, 2}},
                         {"padding", Ints{1, 1}},
                         {"dilation", Ints{1, 1}},
                         {"ceil", false}});
    x = g.node(pool).results[0];
    ValueId y = g.emit(Prim::Relu, {biased(g, conv(g, x, input(g, {8, 8, 1, 1}), 1, 0))});
    y = g.emit(Prim::Relu, {biased(g, conv(g, y, input(g, {8, 1, 3, 3}), 1, 1, 8))});
    y = biased(g, conv(g, y, input(g, {8, 8, 3, 3}), 1, 1));
    y = g.emit(Prim::Relu, {g.emit(Prim::Add, {y, x})});
    output(g, g.emit(Prim::Sum, {y}, {{"dims", Ints{2, 3}}}));
    Plan p = verify(g, 1, 5, generating());
    // Padded copy, conv, pool, conv, weight copy, depthwise, conv, sum.
    EXPECT_EQ(p.steps.size(), 8u) << to_string(p);
    for (const Buffer& b : p.buffers) {
        if (b.place != BufferPlace::Arena || b.type.rank() != 4) continue;
        EXPECT_TRUE(b.strides[1].is(1)) << to_string(p);
    }
}

TEST(ScheduleOracle, HeadsOfWindowsNeedNoCopies) {
    // Batches of (window, head): operands and result are read and written where they are.
    Graph g;
    ValueId x = input(g, {4 * 6, 3 * 8});
    auto split = [&](ValueId v) {
        ValueId r = g.emit(Prim::Reshape, {v}, {{"sizes", Sizes{4, 6, 3, 8}}});
        r = g.emit(Prim::Permute, {r}, {{"dims", Ints{0, 2, 1, 3}}});
        return g.emit(Prim::Reshape, {r}, {{"sizes", Sizes{12, 6, 8}}});
    };
    ValueId q = split(g.emit(Prim::Matmul, {x, input(g, {24, 24})}));
    ValueId k = g.emit(Prim::Permute, {split(x)}, {{"dims", Ints{0, 2, 1}}});
    ValueId a = softmax(g, g.emit(Prim::Matmul, {q, k}), 2);
    ValueId y = g.emit(Prim::Matmul, {a, split(x)});
    y = g.emit(Prim::Reshape, {y}, {{"sizes", Sizes{4, 3, 6, 8}}});
    y = g.emit(Prim::Permute, {y}, {{"dims", Ints{0, 2, 1, 3}}});
    y = g.emit(Prim::Reshape, {y}, {{"sizes", Sizes{24, 24}}});
    output(g, g.emit(Prim::Matmul, {y, input(g, {24, 5})}));
    Plan p = verify(g, 1, 5, generating());
    EXPECT_EQ(p.steps.size(), 5u) << to_string(p);
}

TEST(ScheduleOracle, PackedMatmul) {
    Graph g;
    ValueId x = input(g, {5, 8}), flat = input(g, {8, 3, 4}, DType::F32, true);
    ValueId w = g.emit(Prim::Permute, {flat}, {{"dims", Ints{1, 0, 2}}});
    NodeId n = g.add_with_types(Prim::PackedMatmul, {x, w},
                                {{"n", Expr(10)}, {"layout", std::string("panel4")}},
                                {{DType::F32, {5, 10}, {}}});
    output(g, g.emit(Prim::Exp, {g.node(n).results[0]}));
    Plan p = verify(g, 1, 5, generating());
    EXPECT_EQ(p.steps.size(), 1u) << to_string(p);
}

TEST(ScheduleOracle, ConstantsAreMemoryWhereTheyMustBe) {
    Graph g;
    auto bytes = std::make_shared<const std::vector<std::uint8_t>>(
        std::vector<std::uint8_t>{0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 128, 64});
    ValueId c = g.emit(Prim::Constant, {},
                       {{"dtype", DType::F32}, {"sizes", Sizes{2, 2}}, {"data", bytes}});
    output(g, c);
    output(g, g.emit(Prim::Matmul, {c, input(g, {2, 3}, DType::F32, true)}));
    output(g, g.emit(Prim::Neg, {c}));
    verify(g);
}

TEST(ScheduleOracle, OptimizerStepWritesItsInputs) {
    Graph g;
    ValueId p = input(g, {40, 3}), m = input(g, {40, 3}), grad = input(g, {40, 3});
    ValueId next = g.emit(Prim::Add, {g.emit(Prim::Mul, {m, full(g, m, 0.9)}), grad});
    ValueId step = g.emit(Prim::Sub, {p, g.emit(Prim::Mul, {next, full(g, m, 0.1)})});
    g.add_output(step, contiguous_strides(g.type(step).sizes), 0);
    g.add_output(next, contiguous_strides(g.type(step).sizes), 1);
    Plan plan = verify(g);
    EXPECT_EQ(plan.steps.size(), 1u) << to_string(plan);
}

TEST(ScheduleOracle, ResultsTakeOverDyingOperands) {
    Graph g;
    ValueId w = input(g, {8, 8}), x = input(g, {64, 8});
    for (int i = 0; i < 4; ++i) x = softmax(g, g.emit(Prim::Matmul, {x, w}), 1);
    output(g, g.emit(Prim::Matmul, {x, w}));
    Plan plan = verify(g);
    EXPECT_TRUE(plan.arena_bytes.is(2 * 64 * 8 * 4)) << to_string(plan);
}

TEST(ScheduleOracle, InPlaceSwapOfInputs) {
    Graph g;
    ValueId a = input(g, {7}), b = input(g, {7});
    ValueId sum = g.emit(Prim::Add, {a, b});
    g.add_output(g.emit(Prim::Exp, {b}), {1}, 0);
    g.add_output(a, {1}, 1);
    output(g, sum);
    verify(g);
}

TEST(ScheduleOracle, Updates) {
    Graph g;
    ValueId a = input(g, {6, 8}), b = input(g, {2, 3}), d = input(g, {5}), s = input(g, {2, 4});
    output(g, g.emit(Prim::Update, {a, b}, {{"starts", Sizes{1, 2}}, {"steps", Ints{2, 1}}}));
    output(g, g.emit(Prim::UpdateDiagonal, {a, d},
                     {{"dim1", std::int64_t{0}},
                      {"dim2", std::int64_t{1}},
                      {"offset", std::int64_t{3}}}));
    output(g,
           g.emit(Prim::UpdateStrided, {a, s}, {{"strides", Sizes{20, 2}}, {"offset", Expr(1)}}));
    output(g, g.emit(Prim::AsStrided, {g.emit(Prim::Exp, {a})},
                     {{"sizes", Sizes{3, 4}}, {"strides", Sizes{1, 9}}, {"offset", Expr(2)}}));
    verify(g);
}

TEST(ScheduleOracle, ConcatOfComputedParts) {
    Graph g;
    ValueId a = input(g, {3, 4}), b = input(g, {3, 2});
    ValueId c = g.emit(Prim::Concat, {g.emit(Prim::Exp, {a}), b, a}, {{"dim", std::int64_t{1}}});
    output(g, c);
    output(g, g.emit(Prim::Sum, {g.emit(Prim::Neg, {c})}, {{"dims", Ints{1}}}));
    output(g, g.emit(Prim::Matmul, {c, input(g, {10, 4})}));
    verify(g);
}

// Sums of one shape whose results nobody waits for, between products that wait for each other, and
// updates of parameters of two shapes.
Graph sums_and_updates() {
    Graph g;
    std::vector<ValueId> parameters;
    for (int i = 0; i < 3; ++i)
        for (const Sizes& sizes : {Sizes{40, 40}, Sizes{40}}) parameters.push_back(input(g, sizes));
    ValueId x = input(g, {40, 40});
    std::vector<ValueId> gradients;
    for (int i = 0; i < 3; ++i) {
        x = g.emit(Prim::Matmul, {x, parameters[static_cast<std::size_t>(2 * i)]});
        gradients.push_back(x);
        gradients.push_back(g.emit(Prim::Sum, {g.emit(Prim::Tanh, {x})}, {{"dims", Ints{0}}}));
    }
    output(g, x);
    for (std::size_t i = 0; i < parameters.size(); ++i)
        g.add_output(g.emit(Prim::Sub, {parameters[i], gradients[i]}),
                     contiguous_strides(g.type(parameters[i]).sizes), static_cast<std::int32_t>(i));
    return g;
}

TEST(ScheduleOracle, LaunchesOfOneKernelAreOne) {
    ScheduleOptions options;
    options.gpu = true;
    const Plan apart = verify(sums_and_updates(), 1, 5, options);
    options.batch = true;
    const Plan batched = verify(sums_and_updates(), 1, 5, options);
    const auto kernels = [](const Plan& plan) {
        return std::ranges::count_if(
            plan.steps, [](const Step& s) { return std::holds_alternative<KernelStep>(s); });
    };
    EXPECT_LT(kernels(batched), kernels(apart)) << to_string(batched);
    EXPECT_TRUE(std::ranges::any_of(batched.kernels, [](const Kernel& k) {
        return k.instances == 3 && to_string(k).find("instances 3") != std::string::npos;
    })) << to_string(batched);
}

// The product wants the slice of all heads in memory, of whose rows the channels that the
// convolution reads are no strided view any more, as they were of the input.
TEST(ScheduleOracle, AViewOfWhatHasGotMemoryForAnother) {
    verify(parse_graph(R"(graph(
    %0 "qkv": f32[2, 785, 3, 8, 8],
    %1 "grad": f32[2, 64, 28, 28],
    %2 "scores": f32[16, 8, 8]) {
  %3: f32[3, 2, 8, 785, 8] = permute(%0) {dims=(2, 0, 3, 1, 4)}
  %4: f32[1, 2, 8, 785, 8] = slice(%3) {starts=(2, 0, 0, 0, 0), ends=(3, 2, 8, 785, 8), steps=(1, 1, 1, 1, 1)}
  %5: f32[2, 8, 785, 8] = reshape(%4) {sizes=(2, 8, 785, 8)}
  %6: f32[2, 8, 784, 8] = slice(%5) {starts=(0, 0, 1, 0), ends=(2, 8, 785, 8), steps=(1, 1, 1, 1)}
  %7: f32[2, 8, 8, 784] = permute(%6) {dims=(0, 1, 3, 2)}
  %8: f32[2, 64, 28, 28] = reshape(%7) {sizes=(2, 64, 28, 28)}
  %9: f32[64, 1, 3, 3] = conv_grad_weight(%1, %8) {stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=64, transposed=false, output_padding=(0, 0), sizes=(64, 1, 3, 3)}
  %10: f32[16, 785, 8] = reshape(%4) {sizes=(16, 785, 8)}
  %11: f32[16, 8, 785] = permute(%10) {dims=(0, 2, 1)}
  %12: f32[16, 8, 785] = matmul(%2, %11)
  return %9, %12
})"));
}

}  // namespace
}  // namespace ingot
