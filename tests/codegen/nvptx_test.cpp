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

// Empty when ptxas takes the text, else what it said.
std::string assemble(const std::string& ptx) {
    auto folder =
        std::filesystem::temp_directory_path() / ("ingot-ptx-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    auto source = (folder / "k.ptx").string(), log = (folder / "log").string();
    std::ofstream(source) << ptx;
    int status =
        std::system(("ptxas -arch=sm_90 -o /dev/null " + source + " > " + log + " 2>&1").c_str());
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
            }
        }
    }
    EXPECT_GT(kernels, 60);
}

}  // namespace
}  // namespace ingot::codegen
