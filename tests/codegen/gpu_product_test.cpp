// Products on a GPU's matrix units, without a GPU: the form they need, the choice, the PTX.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "codegen/contraction_gpu/emit_product.h"
#include "codegen/llvm/jit.h"
#include "ir/error.h"
#include "ir/parse.h"
#include "passes/epilogues.h"
#include "passes/pipeline.h"
#include "schedule/schedule.h"

using namespace ingot;
using namespace ingot::codegen;

namespace {

// A linear layer with a sigmoid behind it; its weight by output or by input.
Graph layer(const std::string& dtype, int m, int n, int k, bool transposed = true) {
    const auto matrix = [&](int rows, int columns) {
        return dtype + "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
    };
    std::string text = "graph(%0 \"x\": " + matrix(m, k) +
                       ", %1 \"w\": " + (transposed ? matrix(n, k) : matrix(k, n)) + ") {\n";
    if (transposed) text += "  %2: " + matrix(k, n) + " = permute(%1) {dims=(1, 0)}\n";
    text += "  %3: " + matrix(m, n) + " = matmul(%0, " + (transposed ? "%2" : "%1") + ")\n";
    text += "  %4: " + matrix(m, n) + " = sigmoid(%3)\n  return %4\n}";
    return parse_graph(text);
}

Plan plan_of(Graph graph) {
    ScheduleOptions options;
    options.gpu = true;
    options.generate_contraction = [](const Kernel& k) { return product_form(k).has_value(); };
    return schedule(run_passes(std::move(graph), PassContext{}), options);
}

ProductForm form_of(int m, int n, int k) {
    ProductForm form;
    form.rows = Expr(m);
    form.columns = n;
    form.depth = k;
    return form;
}

}  // namespace

TEST(GpuProduct, EveryTileIsAssembled) {
    const bool ptxas = std::system("ptxas --version > /dev/null 2>&1") == 0;
    const auto folder =
        std::filesystem::temp_directory_path() / ("ingot-product-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    for (const char* dtype : {"bf16", "f16"}) {
        const Plan plan = plan_of(layer(dtype, 1000, 1032, 520));
        ASSERT_EQ(plan.kernels.size(), 1U);
        const Jit jit(target_named("sm_90a"));
        for (const ProductTile& tile : kProductTiles) {
            IrModule module = jit.make_module("kernel");
            const GpuLaunch launch =
                emit_gpu_product(*module.module, plan.kernels[0], jit.target(), "kernel", tile);
            EXPECT_EQ(launch.threads, tile.threads());
            EXPECT_LE(tile.shared_bytes(), 227U << 10);  // what a block may have there
            EXPECT_LE(tile.blocks * (tile.shared_bytes() + 1024), 228U << 10);
            const std::string ptx = jit.assembly(std::move(module));
            const std::string kind =
                "n" + std::to_string(tile.columns) + "k16.f32." + dtype + "." + dtype;
            EXPECT_NE(ptx.find(kind), std::string::npos);
            // ptxas takes seconds to unroll the loop, and runs out of registers.
            EXPECT_NE(ptx.find(".pragma \"nounroll\""), std::string::npos);
            // It may start early, and waits before it asks for memory.
            EXPECT_LT(ptx.find("griddepcontrol.wait"), ptx.find("cp.async"));
            if (dtype != std::string("bf16")) break;  // differs in nothing else
            if (!ptxas) continue;
            std::ofstream(folder / "k.ptx") << ptx;
            const std::string command =
                "ptxas -arch=sm_90a -o /dev/null " + (folder / "k.ptx").string();
            EXPECT_EQ(std::system(command.c_str()), 0);
        }
    }
    std::filesystem::remove_all(folder);
}

// 1033 columns, whose rows begin at odd places.
TEST(GpuProduct, RowsAtOddPlacesAreWrittenEightAtATime) {
    const bool ptxas = std::system("ptxas --version > /dev/null 2>&1") == 0;
    const auto file = std::filesystem::temp_directory_path() /
                      ("ingot-odd-" + std::to_string(::getpid()) + ".ptx");
    const Plan plan =
        plan_of(parse_graph("graph(%0: bf16[1000, 520], %1: bf16[1033, 520]) {\n"
                            "  %2 = permute(%1) {dims=(1, 0)}\n"
                            "  %3 = matmul(%0, %2)\n"
                            "  %4 = reshape(%3) {sizes=(10, 100, 1033)}\n"
                            "  return %4\n}"));
    ASSERT_EQ(plan.kernels.size(), 1U);
    const auto form = product_form(plan.kernels[0]);
    ASSERT_TRUE(form && form->odd());
    const Jit jit(target_named("sm_90a"));
    for (const ProductTile& tile : kProductTiles) {
        IrModule module = jit.make_module("kernel");
        emit_gpu_product(*module.module, plan.kernels[0], jit.target(), "kernel", tile);
        const std::string ptx = jit.assembly(std::move(module));
        EXPECT_NE(ptx.find("st.global.v4"), std::string::npos);
        if (!ptxas) continue;
        std::ofstream(file) << ptx;
        EXPECT_EQ(std::system(("ptxas -arch=sm_90a -o /dev/null " + file.string()).c_str()), 0);
    }
    std::filesystem::remove(file);
}

TEST(GpuProduct, OnlyWhatItsCopiesCanRead) {
    EXPECT_EQ(plan_of(layer("bf16", 64, 64, 64)).kernels.size(), 1U);
    const auto refused = [](Graph graph) {
        for (const Kernel& k : plan_of(std::move(graph)).kernels)
            if (k.contraction) return false;
        return true;
    };
    EXPECT_TRUE(refused(layer("bf16", 64, 64, 60)));         // rows at odd places
    EXPECT_TRUE(refused(layer("bf16", 64, 60, 64)));         // the epilogue takes eight columns
    EXPECT_TRUE(refused(layer("f32", 64, 64, 64)));          // no such instructions
    EXPECT_TRUE(refused(layer("bf16", 64, 64, 64, false)));  // rows across the sum
}

TEST(GpuProduct, OlderAndNewerGpusHaveNone) {
    const Plan plan = plan_of(layer("bf16", 64, 64, 64));
    for (const char* name : {"sm_80", "sm_90"}) {
        const Jit jit(target_named(name));
        IrModule module = jit.make_module("kernel");
        EXPECT_THROW(emit_gpu_product(*module.module, plan.kernels[0], jit.target(), "kernel"),
                     NotSupported);
    }
}

TEST(GpuProduct, TheModelsChoices) {
    EXPECT_TRUE(product_wins(form_of(1024, 3072, 768)));  // BERT, 8 sentences of 128
    EXPECT_TRUE(product_wins(form_of(128, 3072, 768)));
    EXPECT_FALSE(product_wins(form_of(1576, 3072, 768)));  // ViT, 8 images
    EXPECT_FALSE(product_wins(form_of(512, 5632, 2048)));
    EXPECT_TRUE(product_wins(form_of(4096, 50257, 768)));  // GPT-2's logits, 8 texts of 512
}

TEST(GpuProduct, AnEpilogueIsCostlyUnlessItsInputIsHandedOut) {
    Graph graph = layer("bf16", 64, 64, 64);
    const auto product = [](const Graph& g) {
        for (NodeId id = 0; id < g.nodes().size(); ++id)
            if (g.node(id).prim == Prim::Matmul) return id;
        return kNone;
    };
    EXPECT_TRUE(Epilogues(graph).costly(product(graph)));
    graph.add_output(graph.node(product(graph)).results[0], {Expr(64), Expr(1)});
    EXPECT_FALSE(Epilogues(graph).costly(product(graph)));
}

// Rows at odd places are written by products that stand alone: others are padded.
TEST(GpuProduct, OddColumnsArePaddedUnlessTheyAreHandedOut) {
    const auto pads = [](const std::string& rest) {
        PassContext context;
        context.vendor_epilogues = true;
        context.generated_odd_product = [](const PackQuery& q) { return q.n.is(1033); };
        const Graph after =
            run_passes(parse_graph("graph(%0: bf16[64, 520], %1: bf16[1033, 520] frozen) {\n"
                                   "  %2 = permute(%1) {dims=(1, 0)}\n  %3 = matmul(%0, %2)\n" +
                                   rest + "\n}"),
                       context);
        return std::ranges::any_of(after.nodes(),
                                   [](const Node& n) { return n.prim == Prim::Slice; });
    };
    EXPECT_FALSE(pads("  return %3"));
    EXPECT_FALSE(pads("  %4 = reshape(%3) {sizes=(8, 8, 1033)}\n  return %4"));
    EXPECT_TRUE(pads("  %4 = convert(%3) {dtype=f32}\n  return %4"));
    EXPECT_TRUE(pads("  %4 = neg(%3)\n  return %3, %4"));
}

// The weight by input, as GPT-2 stores it, in 32 bits; autocast makes a copy in 16.
TEST(GpuProduct, TheCopyOfAFrozenWeightIsLaidAsProductsWantIt) {
    const auto graph = [](const std::string& frozen, const std::string& more) {
        return parse_graph("graph(%0: bf16[64, 128], %1: f32[128, 192]" + frozen +
                           ") {\n  %2 = convert(%1) {dtype=bf16}\n  %3 = matmul(%0, %2)\n"
                           "  %4 = sigmoid(%3)\n  return %4" +
                           more + "\n}");
    };
    const auto generates = [](Graph g) {
        ScheduleOptions options;
        options.gpu = true;
        options.generate_with_epilogue_only = true;
        options.generate_contraction = [](const Kernel& k) { return product_form(k).has_value(); };
        const Plan plan = schedule(std::move(g), options);
        return std::ranges::any_of(plan.kernels,
                                   [](const Kernel& k) { return k.contraction != nullptr; });
    };
    EXPECT_TRUE(generates(graph(" frozen", "")));
    EXPECT_FALSE(generates(graph("", "")));             // would be turned at every call
    EXPECT_FALSE(generates(graph(" frozen", ", %2")));  // lies as the caller expects it
}
