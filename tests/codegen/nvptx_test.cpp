// PTX of loop nests: every kernel of written and random graphs is emitted, and assembled by ptxas
// where it is installed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "codegen/llvm/emit_nvptx.h"
#include "codegen/llvm/jit.h"
#include "fuzz/random_graph.h"
#include "ir/parse.h"
#include "passes/pipeline.h"
#include "schedule/plan_text.h"
#include "schedule/schedule.h"

namespace ingot::codegen {
namespace {

bool have_ptxas() { return std::system("ptxas --version > /dev/null 2>&1") == 0; }

// Empty when ptxas takes the text for that GPU, else what it said.
std::string assemble(const std::string& ptx, const std::string& gpu = "sm_90") {
    auto folder =
        std::filesystem::temp_directory_path() / ("ingot-ptx-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    auto source = (folder / "k.ptx").string(), log = (folder / "log").string();
    std::ofstream(source) << ptx;
    int status = std::system(
        ("ptxas -arch=" + gpu + " -o /dev/null " + source + " > " + log + " 2>&1").c_str());
    std::ifstream said(log);
    std::string text(std::istreambuf_iterator<char>(said), {});
    std::filesystem::remove_all(folder);
    return status == 0 ? "" : text + ptx;
}

struct Ptx {
    std::string text;
    std::vector<GpuLaunch> launches;
};

Ptx ptx_of(const Kernel& kernel, const char* target = "sm_90") {
    const Jit jit(target_named(target));
    IrModule module = jit.make_module("kernel");
    Ptx out;
    out.launches = emit_nvptx(*module.module, kernel, jit.target(), "kernel");
    out.text = jit.assembly(std::move(module));
    return out;
}

// GPUs before the one that most tests are for; generated products need that one.
constexpr const char* kOlder[] = {"sm_75", "sm_80", "sm_86", "sm_89"};

// Empty when the kernel assembles for all of those.
std::string assemble_for_older(const Kernel& kernel) {
    std::string said;
    for (const char* gpu : kOlder) said += assemble(ptx_of(kernel, gpu).text, gpu);
    return said;
}

std::size_t count(const std::string& text, std::string_view what) {
    std::size_t n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
        ++n;
    return n;
}

Plan plan_of(Graph graph) { return schedule(run_passes(std::move(graph), PassContext{})); }

constexpr const char* kSoftmax = R"(graph(%0 "x": f32[512, 1000]) {
  %1: f32[512] = amax(%0) {dims=(1)}
  %2: f32[512, 1000] = broadcast(%1) {sizes=(512, 1000), dims=(0)}
  %3: f32[512, 1000] = sub(%0, %2)
  %4: f32[512, 1000] = exp(%3)
  %5: f32[512] = sum(%4) {dims=(1)}
  %6: f32[512, 1000] = broadcast(%5) {sizes=(512, 1000), dims=(0)}
  %7: f32[512, 1000] = div(%4, %6)
  return %7
}
)";

TEST(Nvptx, ANestTakesTheFormItIsGiven) {
    const Plan plan = plan_of(parse_graph(kSoftmax));
    const auto ptx_in = [&](const NestForm& form) {
        const Jit jit(target_named("sm_90"));
        IrModule module = jit.make_module("kernel");
        Ptx out;
        out.launches = emit_nvptx(*module.module, plan.kernels[0], jit.target(), "kernel", form);
        out.text = jit.assembly(std::move(module));
        return out;
    };
    // 250 pieces of four elements: two of a thread, or as many as a warp needs.
    EXPECT_EQ(ptx_in({0, 2, 0}).launches[0].threads, 128U);
    const Ptx warps = ptx_in({64, 8, 0});
    EXPECT_EQ(warps.launches[0].threads, 64U);
    EXPECT_EQ(warps.launches[0].points_per_block, 2U);
    // 1000 pieces of one element.
    EXPECT_EQ(ptx_in({0, 1, 1}).launches[0].threads, 1024U);
    EXPECT_EQ(ptx_in({}).text, ptx_of(plan.kernels[0]).text);
    if (!have_ptxas()) return;
    for (const unsigned threads : {0U, 32U, 256U, 1024U})
        for (const unsigned each : {0U, 1U, 4U})
            for (const unsigned lanes : {0U, 1U, 2U})
                EXPECT_EQ(assemble(ptx_in({threads, each, lanes}).text), "");
}

TEST(Nvptx, AKernelThatMayStartEarlyWaitsBeforeItTouchesMemory) {
    const Plan plan = plan_of(parse_graph(kSoftmax));
    const Ptx ptx = ptx_of(plan.kernels[0]);
    EXPECT_TRUE(ptx.launches[0].overlaps);
    const std::size_t wait = ptx.text.find("griddepcontrol.wait"),
                      load = ptx.text.find("ld.global"), store = ptx.text.find("st.global");
    ASSERT_NE(load, std::string::npos);
    ASSERT_NE(store, std::string::npos);
    EXPECT_LT(wait, std::min(load, store));
    // Older GPUs know no such thing.
    const Ptx older = ptx_of(plan.kernels[0], "sm_80");
    EXPECT_FALSE(older.launches[0].overlaps);
    EXPECT_EQ(older.text.find("griddepcontrol"), std::string::npos);
}

TEST(Nvptx, NumbersOfEightBitsAreConvertedTwoAtATime) {
    for (const char* format : {"f8e4m3", "f8e5m2"}) {
        const std::string name(format);
        const Plan plan =
            plan_of(parse_graph("graph(%0 \"x\": " + name + "[4096], %1 \"y\": f32[4096]) {\n" +
                                "  %2: f32[4096] = convert(%0) {dtype=f32}\n" +
                                "  %3: f32[4096] = add(%2, %1)\n  %4: " + name +
                                "[4096] = convert(%3) {dtype=" + name + "}\n  return %4\n}\n"));
        ASSERT_EQ(plan.kernels.size(), 1u);
        const std::string text = ptx_of(plan.kernels[0]).text, pair = name.substr(2) + "x2";
        const std::size_t narrowed = count(text, "cvt.rn.satfinite." + pair + ".f32");
        EXPECT_GT(narrowed, 0U) << text;
        EXPECT_EQ(count(text, "cvt.rn.f16x2." + pair), narrowed) << text;
        // Older GPUs have no such instruction.
        EXPECT_EQ(count(ptx_of(plan.kernels[0], "sm_80").text, pair), 0U);
        if (have_ptxas()) {
            EXPECT_EQ(assemble(text), "");
        }
    }
}

TEST(Nvptx, SoftmaxIsOneKernelWithABlockPerRow) {
    Plan plan = plan_of(parse_graph(kSoftmax));
    ASSERT_EQ(plan.kernels.size(), 1u);
    Ptx ptx = ptx_of(plan.kernels[0]);
    ASSERT_EQ(ptx.launches.size(), 1u);
    EXPECT_TRUE(ptx.launches[0].block_per_point());
    EXPECT_TRUE(ptx.launches[0].points.is(512));
    EXPECT_NE(ptx.text.find("shfl.sync.bfly"), std::string::npos);
    EXPECT_NE(ptx.text.find("bar.sync"), std::string::npos);
    if (!have_ptxas()) GTEST_SKIP() << "ptxas is not installed";
    EXPECT_EQ(assemble(ptx.text), "");
}

constexpr const char* kLoss = R"(graph(%0 "x": bf16[512, 32000]) {
  %1: f32[512, 32000] = convert(%0) {dtype=f32}
  %2: f32[512] = amax(%1) {dims=(1)}
  %3: f32[512, 32000] = broadcast(%2) {sizes=(512, 32000), dims=(0)}
  %4: f32[512, 32000] = sub(%1, %3)
  %5: f32[512, 32000] = exp(%4)
  %6: f32[512] = sum(%5) {dims=(1)}
  %7: f32[512] = log(%6)
  %8: f32[512] = add(%7, %2)
  return %8
}
)";

// Three rows of a multiprocessor. What is greatest is found in pairs, and no exponential is put
// together of two powers.
TEST(Nvptx, RowsOfManyClassesStayInRegistersAsTheyLieInMemory) {
    const Plan plan = plan_of(parse_graph(kLoss));
    ASSERT_EQ(plan.kernels.size(), 1u);
    const Ptx ptx = ptx_of(plan.kernels[0]);
    EXPECT_EQ(ptx.launches[0].threads, 256U);
    EXPECT_NE(ptx.text.find(".minnctapersm 3"), std::string::npos);
    EXPECT_EQ(count(ptx.text, "ld.global.v4"), 16U);
    EXPECT_EQ(count(ptx.text, "ex2.approx.ftz.f32"), 128U);
    EXPECT_EQ(count(ptx.text, "max.NaN.bf16x2"), 15U * 4);
    EXPECT_EQ(count(ptx.text, "min.f32"), 0U);
    EXPECT_NE(ptx_of(plan.kernels[0], "sm_75").text.find("ex2.approx.ftz.f32"), std::string::npos);
    if (!have_ptxas()) GTEST_SKIP() << "ptxas is not installed";
    EXPECT_EQ(assemble(ptx.text), "");
}

// Rows that fill a thread's registers leave none for weights that are asked for early: with those
// in between, ptxas puts a part of the row into memory.
TEST(Nvptx, RowsAndWeightsFitIntoRegisters) {
    const Plan plan = plan_of(parse_graph(R"(graph(%0 "x": bf16[512, 4096], %1 "y": bf16[512, 4096],
    %2 "w": bf16[4096], %3 "b": bf16[4096]) {
  %4: f32[512, 4096] = convert(%0) {dtype=f32}
  %5: f32[512, 4096] = convert(%1) {dtype=f32}
  %6: f32[512, 4096] = add(%4, %5)
  %7: f32[512] = sum(%6) {dims=(1)}
  %8: f32[512, 4096] = broadcast(%7) {sizes=(512, 4096), dims=(0)}
  %9: f32[512, 4096] = sub(%6, %8)
  %10: f32[512, 4096] = mul(%9, %9)
  %11: f32[512] = sum(%10) {dims=(1)}
  %12: f32[512, 4096] = broadcast(%11) {sizes=(512, 4096), dims=(0)}
  %13: f32[512, 4096] = mul(%9, %12)
  %14: bf16[512, 4096] = broadcast(%2) {sizes=(512, 4096), dims=(1)}
  %15: f32[512, 4096] = convert(%14) {dtype=f32}
  %16: bf16[512, 4096] = broadcast(%3) {sizes=(512, 4096), dims=(1)}
  %17: f32[512, 4096] = convert(%16) {dtype=f32}
  %18: f32[512, 4096] = mul(%13, %15)
  %19: f32[512, 4096] = add(%18, %17)
  %20: bf16[512, 4096] = convert(%19) {dtype=bf16}
  return %20
}
)"));
    ASSERT_EQ(plan.kernels.size(), 1u);
    const std::string text = ptx_of(plan.kernels[0]).text;
    // Eight of the row, and weights behind the last wait.
    const std::size_t stores = text.find("st.global"), wait = text.rfind("bar.sync", stores);
    EXPECT_EQ(count(text.substr(wait, stores - wait), "ld.global.v4"), 8U) << text;
    EXPECT_EQ(count(text, "ld.global.v4"), 16U);
}

// Sixteen warps of a block have 32 columns together, and each a sixteenth of the rows.
TEST(Nvptx, WarpsShareFewColumns) {
    const Plan plan = plan_of(parse_graph(R"(graph(%0 "x": f32[256, 4096]) {
  %1: f32[4096] = sum(%0) {dims=(0)}
  %2: f32[4096] = neg(%1)
  return %2
}
)"));
    ASSERT_EQ(plan.kernels.size(), 1u);
    const Ptx ptx = ptx_of(plan.kernels[0]);
    EXPECT_EQ(ptx.launches[0].threads, 512U);
    EXPECT_EQ(ptx.launches[0].points_per_block, 32U);
    EXPECT_NE(ptx.text.find("bar.sync"), std::string::npos);
    if (!have_ptxas()) GTEST_SKIP() << "ptxas is not installed";
    EXPECT_EQ(assemble(ptx.text), "");
}

TEST(Nvptx, AMaximumIsOneInstruction) {
    const Plan plan = plan_of(parse_graph(R"(graph(%0 "x": f32[512, 1024], %1 "y": f32[512, 1024]) {
  %2: f32[512, 1024] = maximum(%0, %1)
  return %2
}
)"));
    const Ptx ptx = ptx_of(plan.kernels[0]), older = ptx_of(plan.kernels[0], "sm_75");
    EXPECT_NE(ptx.text.find("max.NaN.f32"), std::string::npos);
    EXPECT_EQ(ptx.text.find("selp"), std::string::npos);
    EXPECT_EQ(older.text.find("max.NaN"), std::string::npos);
}

// Two numbers of 16 bits are widened out of their word, an instruction each.
TEST(Nvptx, PairsAreWidenedOutOfTheirWords) {
    const Plan plan = plan_of(parse_graph(R"(graph(%0 "x": bf16[512, 1024]) {
  %1: f32[512, 1024] = convert(%0) {dtype=f32}
  %2: f32[512, 1024] = mul(%1, %1)
  %3: bf16[512, 1024] = convert(%2) {dtype=bf16}
  return %3
}
)"));
    const Ptx ptx = ptx_of(plan.kernels[0]);
    EXPECT_EQ(ptx.text.find("cvt.u32.u16"), std::string::npos) << ptx.text;
    EXPECT_NE(ptx.text.find("cvt.rn.bf16x2.f32"), std::string::npos);
    if (!have_ptxas()) GTEST_SKIP() << "ptxas is not installed";
    EXPECT_EQ(assemble(ptx.text), "");
}

TEST(Nvptx, ALaunchMayServeSeveralSetsOfBuffers) {
    Plan plan = plan_of(parse_graph(kSoftmax));
    Kernel kernel = plan.kernels[0];
    kernel.instances = 12;
    const Ptx ptx = ptx_of(kernel);
    // Their addresses are one parameter, in which a block finds its own.
    EXPECT_NE(ptx.text.find("param_0[192]"), std::string::npos) << ptx.text.substr(0, 800);
    EXPECT_NE(ptx.text.find("%ctaid.y"), std::string::npos);
    EXPECT_NE(ptx.text.find("ld.global"), std::string::npos);
    EXPECT_EQ(ptx.text.find("ld.local"), std::string::npos);
    if (!have_ptxas()) GTEST_SKIP() << "ptxas is not installed";
    EXPECT_EQ(assemble(ptx.text), "");
}

constexpr const char* kCopies = R"(graph(%0 "x": bf16[512, 4104], %1 "y": bf16[512, 4097],
    %2 "z": bf16[2, 256, 4099]) {
  %3: bf16[512, 4097] = slice(%0) {starts=(0, 0), ends=(512, 4097), steps=(1, 1)}
  %4: bf16[512, 4104] = pad(%1) {low=(0, 0), high=(0, 7), value=0.0}
  %5: bf16[512, 4099] = reshape(%2) {sizes=(512, 4099)}
  %6: bf16[512, 4104] = pad(%5) {low=(0, 0), high=(0, 5), value=0.0}
  return %3, %4, %6
}
)";

TEST(Nvptx, RowsAtOddPlacesAreCopiedSixteenBytesAtATime) {
    ScheduleOptions options;
    options.gpu = true;
    const Plan plan = schedule(run_passes(parse_graph(kCopies), PassContext{}), options);
    ASSERT_EQ(plan.kernels.size(), 3u) << to_string(plan);
    for (const Kernel& k : plan.kernels) {
        const Ptx ptx = ptx_of(k);
        EXPECT_NE(ptx.text.find("ld.global.v4.u32"), std::string::npos) << ptx.text;
        EXPECT_NE(ptx.text.find("st.global.v4.u32"), std::string::npos);
        if (have_ptxas()) {
            EXPECT_EQ(assemble(ptx.text), "");
        }
    }
}

constexpr const char* kBorder = R"(graph(%0 "x": bf16[8, 64, 64, 96], %1 "r": bf16[512, 768]) {
  %2: bf16[8, 66, 66, 96] = pad(%0) {low=(0, 1, 1, 0), high=(0, 1, 1, 0), value=0.0}
  %3: bf16[513, 768] = pad(%1) {low=(1, 0), high=(0, 0), value=0.0}
  %4: f32[513, 768] = convert(%3) {dtype=f32}
  %5: f32[513] = sum(%4) {dims=(1)}
  %6: f32[513, 768] = broadcast(%5) {sizes=(513, 768), dims=(0)}
  %7: f32[513, 768] = div(%4, %6)
  return %2, %7
}
)";

// A condition that is one for all neighbours leaves accesses wide, and branches nowhere.
TEST(Nvptx, BordersOfImagesAreReadSixteenBytesAtATime) {
    ScheduleOptions options;
    options.gpu = true;
    const Plan plan = schedule(run_passes(parse_graph(kBorder), PassContext{}), options);
    ASSERT_EQ(plan.kernels.size(), 2u) << to_string(plan);
    for (const Kernel& k : plan.kernels) {
        const Ptx ptx = ptx_of(k);
        EXPECT_TRUE(ptx.text.find("ld.global.v4") != std::string::npos ||
                    ptx.text.find("ld.global.nc.v4") != std::string::npos ||
                    ptx.text.find("ld.global.v2") != std::string::npos)
            << ptx.text;
        EXPECT_EQ(ptx.text.find("ld.local"), std::string::npos) << ptx.text;
        EXPECT_EQ(ptx.text.find("ld.global.u16"), std::string::npos) << ptx.text;
        EXPECT_EQ(ptx.text.find("ld.global.b16"), std::string::npos) << ptx.text;
        if (have_ptxas()) {
            EXPECT_EQ(assemble(ptx.text), "");
        }
    }
}

TEST(Nvptx, OlderGpusTakeTheirOwnText) {
    if (!have_ptxas()) GTEST_SKIP() << "ptxas is not installed";
    ScheduleOptions options;
    options.gpu = true;
    for (const char* graph : {kSoftmax, kLoss, kCopies, kBorder}) {
        const Plan plan = schedule(run_passes(parse_graph(graph), PassContext{}), options);
        for (Kernel k : plan.kernels) {
            EXPECT_EQ(assemble_for_older(k), "");
            k.instances = 12;
            EXPECT_EQ(assemble_for_older(k), "");
        }
    }
    // Conversions of every narrow type, and what has instructions of its own on some GPUs only.
    for (const std::string type : {"bf16", "f16", "f8e4m3", "f8e5m2"}) {
        const auto unary = [](const char* result, const char* prim, const char* operand) {
            return std::string("  ") + result + ": f32[512, 1024] = " + prim + "(" + operand +
                   ")\n";
        };
        const std::string graph =
            "graph(%0 \"x\": " + type + "[512, 1024]) {\n" +
            "  %1: f32[512, 1024] = convert(%0) {dtype=f32}\n" + unary("%2", "tanh", "%1") +
            unary("%3", "exp", "%2") + unary("%4", "erf", "%3") + unary("%5", "rsqrt", "%4") +
            "  %6: f32[512, 1024] = maximum(%5, %1)\n" + "  %7: " + type +
            "[512, 1024] = convert(%6) {dtype=" + type + "}\n  return %7\n}\n";
        for (const Kernel& k :
             schedule(run_passes(parse_graph(graph), PassContext{}), options).kernels)
            EXPECT_EQ(assemble_for_older(k), "") << type;
    }
}

TEST(Nvptx, LibraryFunctionsAreRefused) {
    Plan plan = plan_of(
        parse_graph("graph(%0 \"x\": f64[64]) {\n  %1: f64[64] = lgamma(%0)\n  return %1\n}\n"));
    EXPECT_THROW(ptx_of(plan.kernels[0]), NotSupported);
}

TEST(Nvptx, RandomKernelsAssemble) {
    std::string all;
    int kernels = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        fuzz::Limits limits;
        limits.contractions = false;
        Plan plan = plan_of(fuzz::make_random_graph(seed, limits).graph);
        for (const Kernel& k : plan.kernels) {
            if (k.contraction) continue;
            Ptx ptx;
            try {
                ptx = ptx_of(k);
            } catch (const NotSupported&) {
                continue;
            }
            ++kernels;
            if (have_ptxas() && kernels % 8 == 0) {
                ASSERT_EQ(assemble(ptx.text), "") << "seed " << seed << ", kernel " << k.name;
                ASSERT_EQ(assemble_for_older(k), "") << "seed " << seed << ", kernel " << k.name;
            }
        }
    }
    EXPECT_GT(kernels, 60);
}

std::string softmax_text(const std::string& sizes, const std::string& kept, int dim,
                         const std::string& dims) {
    const std::string all = "f32[" + sizes + "]", some = "f32[" + kept + "]";
    const auto spread = [&](int to, int from) {
        return "  %" + std::to_string(to) + ": " + all + " = broadcast(%" + std::to_string(from) +
               ") {sizes=(" + sizes + "), dims=(" + dims + ")}\n";
    };
    const std::string over = ") {dims=(" + std::to_string(dim) + ")}\n";
    return "graph(%0 \"x\": bf16[" + sizes + "]) {\n  %1: " + all +
           " = convert(%0) {dtype=f32}\n  %2: " + some + " = amax(%1" + over + spread(3, 2) +
           "  %4: " + all + " = sub(%1, %3)\n  %5: " + all + " = exp(%4)\n  %6: " + some +
           " = sum(%5" + over + spread(7, 6) + "  %8: " + all + " = div(%5, %7)\n  %9: bf16[" +
           sizes + "] = convert(%8) {dtype=bf16}\n  return %9\n}\n";
}

Plan gpu_plan(const std::string& text) {
    ScheduleOptions options;
    options.gpu = true;
    options.cores = 132;
    return schedule(run_passes(parse_graph(text), PassContext{}), options);
}

// The only kernel's code, which ptxas takes.
Ptx only_kernel(const std::string& text) {
    const Plan plan = gpu_plan(text);
    EXPECT_EQ(plan.kernels.size(), 1u) << to_string(plan);
    Ptx ptx = ptx_of(plan.kernels[0]);
    if (have_ptxas()) {
        EXPECT_EQ(assemble(ptx.text), "");
        EXPECT_EQ(assemble_for_older(plan.kernels[0]), "");
    }
    return ptx;
}

TEST(Nvptx, SeveralShortRowsShareAWarp) {
    // Eight pieces of 16 bytes a row: four lanes with two each, 32 rows in a block of 128 threads.
    const Ptx even = only_kernel(softmax_text("2097152, 64", "2097152", 1, "0"));
    EXPECT_EQ(even.launches[0].threads, 128u);
    EXPECT_EQ(even.launches[0].points_per_block, 32);
    EXPECT_EQ(count(even.text, "ld.global.v4.u32"), 2u) << even.text;
    EXPECT_EQ(count(even.text, "shfl.sync"), 2u * 2) << even.text;
    EXPECT_EQ(count(even.text, "ld.local"), 0u) << even.text;
    // What is left of the last warp's rows stores nothing.
    const Ptx odd = only_kernel(softmax_text("1000001, 42", "1000001", 1, "0"));
    EXPECT_GT(odd.launches[0].points_per_block, 4);
    EXPECT_EQ(count(odd.text, "ld.local"), 0u) << odd.text;
}

TEST(Nvptx, ColumnsStayInRegistersFromPhaseToPhase) {
    const Ptx ptx = only_kernel(softmax_text("32, 64, 65536", "32, 65536", 1, "0, 2"));
    // 64 rows of four neighbouring columns, shared by four warps: each is loaded once.
    EXPECT_EQ(ptx.launches[0].threads, 128u);
    EXPECT_EQ(count(ptx.text, "ld.global.v2.u32"), 16u) << ptx.text;
    EXPECT_EQ(count(ptx.text, "ld.global"), 16u) << ptx.text;
    // A number of columns that fills no block.
    only_kernel(softmax_text("32, 64, 1003", "32, 1003", 1, "0, 2"));
}

TEST(Nvptx, LongRowsDoNotSpill) {
    if (!have_ptxas()) GTEST_SKIP();
    const Ptx ptx = only_kernel(softmax_text("8192, 16384", "8192", 1, "0"));
    const auto folder = std::filesystem::temp_directory_path();
    const auto source = folder / ("ingot-long-" + std::to_string(::getpid()) + ".ptx");
    const auto log = source.string() + ".log";
    std::ofstream(source) << ptx.text;
    ASSERT_EQ(
        std::system(("ptxas -v -arch=sm_90 -o /dev/null " + source.string() + " > " + log + " 2>&1")
                        .c_str()),
        0);
    std::ifstream said(log);
    const std::string report(std::istreambuf_iterator<char>(said), {});
    EXPECT_NE(report.find(" 0 bytes spill stores"), std::string::npos) << report;
    std::filesystem::remove(source);
    std::filesystem::remove(log);
}

TEST(Nvptx, OrdersInMemoryMeetInSharedMemory) {
    const Ptx even = only_kernel(R"(graph(%0 "x": f32[4096, 2048]) {
  %1: f32[2048, 4096] = permute(%0) {dims=(1, 0)}
  %2: f32[2048, 4096] = relu(%1)
  return %2
})");
    EXPECT_EQ(count(even.text, "st.shared"), 4u) << even.text;
    EXPECT_EQ(count(even.text, "ld.shared"), 4u) << even.text;
    EXPECT_EQ(to_string(even.launches[0].points), "8192");
    // Odd sizes, an operand in each order, 16 bits.
    const Ptx odd = only_kernel(
        R"(graph(%0 "x": bf16[16, 317, 2049], %1 "y": bf16[16, 2049, 317]) {
  %2: bf16[16, 2049, 317] = permute(%0) {dims=(0, 2, 1)}
  %3: bf16[16, 2049, 317] = add(%1, %2)
  return %3
})");
    EXPECT_GT(count(odd.text, "st.shared"), 0u) << odd.text;
    EXPECT_EQ(to_string(odd.launches[0].points), "2640");  // 16 images of 33 times 5 tiles
    // Two neighbours at once.
    const Ptx pairs = only_kernel(R"(graph(%0 "x": bf16[4096, 2048]) {
  %1: bf16[2048, 4096] = permute(%0) {dims=(1, 0)}
  %2: bf16[2048, 4096] = relu(%1)
  return %2
})");
    EXPECT_EQ(count(pairs.text, "ld.global.u32"), 8u) << pairs.text;
    EXPECT_EQ(count(pairs.text, "st.global.b32"), 8u) << pairs.text;
}

TEST(Nvptx, DenseMemoryOfOddSizesIsReadSixteenBytesAtATime) {
    const Ptx whole = only_kernel(R"(graph(%0 "x": bf16[3951, 7593]) {
  %1: bf16[3951, 7593] = relu(%0)
  return %1
})");
    EXPECT_EQ(count(whole.text, "ld.global.v4.u32"), 1u) << whole.text;
    EXPECT_EQ(count(whole.text, "st.global.v4.b32"), 1u) << whole.text;
    // Beside what is repeated along rows or columns of an odd length.
    const Ptx beside = only_kernel(
        R"(graph(%0 "x": bf16[1284803, 23], %1 "b": bf16[23], %2 "s": bf16[1284803]) {
  %3: bf16[1284803, 23] = broadcast(%1) {sizes=(1284803, 23), dims=(1)}
  %4: bf16[1284803, 23] = broadcast(%2) {sizes=(1284803, 23), dims=(0)}
  %5: bf16[1284803, 23] = add(%0, %3)
  %6: bf16[1284803, 23] = mul(%5, %4)
  return %6
})");
    EXPECT_EQ(count(beside.text, "ld.global.v4.u32"), 1u) << beside.text;
    EXPECT_EQ(count(beside.text, "st.global.v4.b32"), 1u) << beside.text;
}

}  // namespace
}  // namespace ingot::codegen
