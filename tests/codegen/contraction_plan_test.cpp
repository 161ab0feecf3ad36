// Contractions as the passes and the scheduler really write them, in machine code, against the
// reference evaluator.
#include <gtest/gtest.h>

#include <cmath>

#include "codegen/contraction/contraction.h"
#include "codegen/llvm/emit.h"
#include "codegen/llvm/jit.h"
#include "ir/reference.h"
#include "passes/pipeline.h"
#include "schedule/run_plan.h"
#include "schedule/schedule.h"

namespace ingot {
namespace {

std::int64_t no_symbols(Expr) { throw InternalError("a symbol in a graph without symbols"); }

Tensor random_tensor(const Type& type, std::uint32_t seed) {
    Ints sizes;
    for (const Expr& e : type.sizes) sizes.push_back(e.constant());
    Tensor t(type.dtype, sizes);
    for (std::int64_t i = 0; i < t.numel(); ++i) {
        seed = seed * 1664525u + 1013904223u;
        const double value = static_cast<double>(seed >> 8) / (1 << 23) - 1;
        t.set(i, round_num({value, 0, 0}, type.dtype));
    }
    return t;
}

class Built {
  public:
    Graph graph;
    ValueId input(Sizes sizes, bool frozen = false, DType dtype = DType::F32) {
        Type type{dtype, std::move(sizes), {}};
        const Sizes strides = contiguous_strides(type.sizes);
        return graph.add_input(type, "x" + std::to_string(count_++), strides, frozen);
    }
    ValueId conv(ValueId x, ValueId w, std::int64_t stride, std::int64_t padding,
                 std::int64_t groups = 1) {
        return graph.emit(Prim::Conv, {x, w},
                          {{"stride", Ints{stride, stride}},
                           {"padding", Sizes{padding, padding}},
                           {"dilation", Ints{1, 1}},
                           {"groups", groups},
                           {"transposed", false},
                           {"output_padding", Ints{0, 0}}});
    }
    ValueId per_channel(ValueId x, ValueId bias, std::int64_t dim) {
        return graph.emit(Prim::Broadcast, {bias},
                          {{"sizes", graph.type(x).sizes}, {"dims", Ints{dim}}});
    }
    ValueId add(ValueId x, ValueId y) { return graph.emit(Prim::Add, {x, y}); }
    void output(ValueId v) { graph.add_output(v, contiguous_strides(graph.type(v).sizes)); }

    /// Compares, and returns how many kernels were contractions made by the templates.
    int check(double tolerance = 2e-5) {
        std::vector<Tensor> inputs;
        for (const Input& in : graph.inputs())
            inputs.push_back(
                random_tensor(graph.type(in.value), static_cast<std::uint32_t>(inputs.size()) + 7));
        const std::vector<Tensor> want = evaluate(graph, inputs, no_symbols);

        const codegen::TargetInfo target = codegen::host();
        const VectorTarget vectors = codegen::vector_target(target);
        PassContext passes;
        passes.panel_width = [&](const PackQuery& q) {
            return panel_width(q.n, compute_type(q.dtype), vectors);
        };
        ScheduleOptions options;
        options.generate_contraction = [&](const Kernel& k) {
            return plan_contraction(k, vectors).has_value();
        };
        Graph copy = graph;
        const Plan plan = schedule(run_passes(std::move(copy), passes), options);
        const codegen::Jit jit(target, {.verify = true});
        codegen::IrModule ir = jit.make_module("plan");
        std::vector<KernelCode> codes;
        int generated = 0;
        for (const Kernel& k : plan.kernels) {
            const std::string prefix = "k" + std::to_string(codes.size());
            generated += k.contraction != nullptr;
            codes.push_back(k.contraction ? codegen::emit_contraction(*ir.module, k, target, prefix)
                                          : codegen::emit_kernel(*ir.module, k, target, prefix));
        }
        const auto loaded = jit.load(jit.compile(std::move(ir)));
        testing::PlanRunner runner(plan, no_symbols);
        runner.run_kernel = [&](std::int32_t id, std::span<void* const> buffers,
                                std::span<const std::int64_t> sizes) {
            std::int64_t error = 0;
            for (const Launch& l : codes[static_cast<std::size_t>(id)].launches) {
                auto* f = loaded->function<std::remove_pointer_t<KernelFn>>(l.symbol);
                const std::int64_t work = evaluate(l.work, no_symbols);
                const auto bytes =
                    static_cast<std::size_t>(evaluate(l.scratch_bytes, no_symbols) + 63) / 64 * 64;
                void* scratch = std::aligned_alloc(64, bytes + 64);
                std::memset(scratch, 0xff, bytes);
                f(buffers.data(), sizes.data(), 0, work / 2, scratch, &error);
                f(buffers.data(), sizes.data(), work / 2, work, scratch, &error);
                std::free(scratch);
            }
            return error == 0;
        };
        const std::vector<Tensor> got = runner.run(inputs);
        EXPECT_EQ(got.size(), want.size());
        for (std::size_t o = 0; o < want.size(); ++o)
            for (std::int64_t i = 0; i < want[o].numel(); ++i) {
                const double w = to_double(want[o].get(i), want[o].dtype);
                const double g = to_double(got[o].get(i), got[o].dtype);
                if (!(std::abs(g - w) <= tolerance * (1 + std::abs(w)))) {
                    ADD_FAILURE() << "output " << o << " element " << i << ": " << g
                                  << " instead of " << w;
                    return generated;
                }
            }
        return generated;
    }

  private:
    int count_ = 0;
};

TEST(ContractionPlan, LinearWithGeluAndResidual) {
    for (const bool frozen : {false, true}) {
        Built f;
        const ValueId x = f.input({2, 9, 48}), w = f.input({80, 48}, frozen),
                      bias = f.input({80}, frozen), rest = f.input({18, 80});
        const ValueId flat = f.graph.emit(Prim::Reshape, {x}, {{"sizes", Sizes{18, 48}}});
        const ValueId turned = f.graph.emit(Prim::Permute, {w}, {{"dims", Ints{1, 0}}});
        ValueId y = f.graph.emit(Prim::Matmul, {flat, turned});
        y = f.add(y, f.per_channel(y, bias, 1));
        y = f.graph.emit(Prim::Mul, {y, f.graph.emit(Prim::Erf, {y})});
        f.output(f.add(y, rest));
        EXPECT_EQ(f.check(), 1);
    }
}

TEST(ContractionPlan, BatchedMatmulOfHeads) {
    // Scores and values of attention over heads that lie inside rows.
    Built f;
    const ValueId q = f.input({1, 20, 4, 16}), k = f.input({1, 20, 4, 16}),
                  v = f.input({1, 20, 4, 16});
    auto heads = [&](ValueId x, Ints dims) {
        return f.graph.emit(Prim::Permute, {x}, {{"dims", std::move(dims)}});
    };
    const ValueId scores =
        f.graph.emit(Prim::Matmul, {heads(q, {0, 2, 1, 3}), heads(k, {0, 2, 3, 1})});
    const ValueId mixed = f.graph.emit(Prim::Matmul, {scores, heads(v, {0, 2, 1, 3})});
    f.output(heads(mixed, {0, 2, 1, 3}));
    EXPECT_EQ(f.check(1e-4), 2);
}

TEST(ContractionPlan, OneRowOneColumnOneTerm) {
    for (const auto& [m, n, k] : {std::array{1, 40, 24}, {40, 1, 24}, {7, 33, 1}, {1, 1, 1}}) {
        Built f;
        const ValueId x = f.input({m, k}), w = f.input({k, n}, true);
        f.output(f.graph.emit(Prim::Matmul, {x, w}));
        f.check();
    }
}

TEST(ContractionPlan, ResidualBlockOfConvolutions) {
    for (const bool frozen : {false, true}) {
        Built f;
        const ValueId x = f.input({2, 3, 18, 20}), w1 = f.input({24, 3, 7, 7}, frozen),
                      w2 = f.input({24, 24, 3, 3}, frozen), w3 = f.input({40, 24, 1, 1}, frozen),
                      w4 = f.input({40, 24, 1, 1}, frozen), bias = f.input({40}, frozen);
        const ValueId a = f.graph.emit(Prim::Relu, {f.conv(x, w1, 2, 3)});
        const ValueId b = f.graph.emit(Prim::Relu, {f.conv(a, w2, 2, 1)});
        const ValueId c = f.conv(b, w3, 1, 0);
        const ValueId d = f.conv(a, w4, 2, 0);
        const ValueId y = f.add(f.add(c, f.per_channel(c, bias, 1)), d);
        f.output(f.graph.emit(Prim::Relu, {y}));
        EXPECT_EQ(f.check(1e-4), 4);
    }
}

TEST(ContractionPlan, GroupedConvolution) {
    for (const std::int64_t groups : {2, 4}) {
        Built f;
        const ValueId x = f.input({1, 32, 9, 9}), w = f.input({48, 32 / groups, 3, 3}, true),
                      bias = f.input({48}, true);
        const ValueId y = f.conv(x, w, 1, 1, groups);
        f.output(f.graph.emit(Prim::Relu, {f.add(y, f.per_channel(y, bias, 1))}));
        EXPECT_EQ(f.check(1e-4), 1);
    }
}

TEST(ContractionPlan, GradientsOfConvolutions) {
    struct Case {
        std::int64_t channels, out, size, kernel, stride, padding, dilation, groups;
        int generated;  // how many of the templates' contractions make each gradient
    };
    for (const Case& c : {Case{17, 24, 9, 3, 1, 1, 1, 1, 1}, Case{16, 33, 8, 1, 1, 0, 1, 1, 1},
                          Case{16, 12, 11, 3, 1, 2, 2, 1, 1}, Case{20, 9, 10, 5, 1, 0, 1, 1, 1},
                          Case{48, 48, 9, 3, 1, 1, 1, 48, 0}}) {
        for (const bool of_weight : {false, true}) {
            Built f;
            const Attrs attrs{{"stride", Ints{c.stride, c.stride}},
                              {"padding", Sizes{c.padding, c.padding}},
                              {"dilation", Ints{c.dilation, c.dilation}},
                              {"groups", c.groups},
                              {"transposed", false},
                              {"output_padding", Ints{0, 0}}};
            const std::int64_t reach = c.dilation * (c.kernel - 1) + 1,
                               size = (c.size + 2 * c.padding - reach) / c.stride + 1;
            const Sizes image{2, c.channels, c.size, c.size},
                weight{c.out, c.channels / c.groups, c.kernel, c.kernel};
            ValueId grad = f.input({2, c.out, size, size});
            const ValueId other = f.input(of_weight ? image : weight);
            Attrs with_sizes = attrs;
            with_sizes.set("sizes", of_weight ? weight : image);
            grad = f.graph.emit(Prim::Relu, {grad});  // not an input: channels last
            f.output(f.graph.emit(of_weight ? Prim::ConvGradWeight : Prim::ConvGradInput,
                                  {grad, other}, with_sizes));
            // The library is good at turned kernels.
            const bool vendor = !of_weight && c.kernel > 1;
            EXPECT_EQ(f.check(1e-4), vendor ? 0 : c.generated)
                << c.channels << " channels, kernel " << c.kernel << ", weight " << of_weight;
        }
    }
}

TEST(ContractionPlan, GradientsOfWeightsWithSteps) {
    for (const std::int64_t groups : {1, 32}) {
        Built f;
        const ValueId grad = f.input({3, 32, 5, 5}), x = f.input({3, 32, 10, 10});
        f.output(f.graph.emit(Prim::ConvGradWeight, {grad, x},
                              {{"sizes", Sizes{32, 32 / groups, 3, 3}},
                               {"stride", Ints{2, 2}},
                               {"padding", Sizes{1, 1}},
                               {"dilation", Ints{1, 1}},
                               {"groups", groups},
                               {"transposed", false},
                               {"output_padding", Ints{0, 0}}}));
        EXPECT_EQ(f.check(1e-4), groups == 1 ? 1 : 0);
    }
}

TEST(ContractionPlan, BFloat16Linear) {
    for (const bool frozen : {false, true}) {
        Built f;
        const ValueId x = f.input({18, 48}, false, DType::BF16),
                      w = f.input({80, 48}, frozen, DType::BF16),
                      bias = f.input({80}, frozen, DType::BF16);
        const ValueId turned = f.graph.emit(Prim::Permute, {w}, {{"dims", Ints{1, 0}}});
        ValueId y = f.graph.emit(Prim::Matmul, {x, turned});
        y = f.add(y, f.per_channel(y, bias, 1));
        f.output(f.graph.emit(Prim::Relu, {y}));
        EXPECT_EQ(f.check(0.02), 1);
    }
}

}  // namespace
}  // namespace ingot
