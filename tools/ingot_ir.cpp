// A graph's way through the core, printed at any stage.
//   ingot-ir [--emit graph|passes|plan|cpp|triton|ptx] [--no-passes] [--gpu] [--panel N] [file.ir]
// Standard input without a file; --panel packs frozen right sides of contractions in panels of N
// columns; --gpu schedules for a GPU of 132 processors, as ptx does.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "codegen/llvm/emit_nvptx.h"
#include "codegen/llvm/jit.h"
#include "codegen/text/cpp.h"
#include "codegen/text/triton.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "passes/pipeline.h"
#include "schedule/plan_text.h"
#include "schedule/schedule.h"

using namespace ingot;

namespace {

std::string read(const char* path) {
    if (!path) return {std::istreambuf_iterator<char>(std::cin), {}};
    std::ifstream file(path);
    if (!file) throw UserError(std::string("cannot read ") + path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string ptx(const Kernel& kernel, const std::string& symbol) {
    const codegen::Jit jit(codegen::target_named("sm_90"));
    codegen::IrModule module = jit.make_module(symbol);
    std::string head;
    for (const GpuLaunch& l : codegen::emit_nvptx(*module.module, kernel, jit.target(), symbol))
        head += "// " + l.symbol + ": " + to_string(l.blocks()) + " blocks of " +
                std::to_string(l.threads) + " threads\n";
    return head + jit.assembly(std::move(module));
}

std::string run(const std::string& text, const std::string& stage, bool passes, int panel,
                bool gpu) {
    Graph graph = parse_graph(text);
    verify(graph);
    if (stage == "graph") return to_string(graph);
    PassContext context;
    context.panel_width = [panel](const PackQuery&) { return panel; };
    if (passes) graph = run_passes(std::move(graph), context);
    if (stage == "passes") return to_string(graph);
    ScheduleOptions options;
    options.gpu = gpu;
    if (gpu) options.cores = 132;
    Plan plan = schedule(graph, options);
    if (stage == "plan") return to_string(plan);
    std::string out;
    for (std::size_t i = 0; i < plan.kernels.size(); ++i) {
        std::string symbol = "kernel" + std::to_string(i);
        if (stage == "cpp")
            out += to_cpp_body(plan.kernels[i], symbol) + "\n";
        else if (stage == "triton")
            out += to_triton(plan.kernels[i], symbol).source + "\n";
        else if (stage == "ptx")
            out += ptx(plan.kernels[i], symbol) + "\n";
        else
            throw UserError("--emit takes graph, passes, plan, cpp, triton or ptx");
    }
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    std::string stage = "plan";
    bool passes = true;
    bool gpu = false;
    int panel = 0;
    const char* path = nullptr;
    for (int i = 1; i < argc; ++i) {
        if (!std::strcmp(argv[i], "--emit") && i + 1 < argc)
            stage = argv[++i];
        else if (!std::strcmp(argv[i], "--no-passes"))
            passes = false;
        else if (!std::strcmp(argv[i], "--gpu"))
            gpu = true;
        else if (!std::strcmp(argv[i], "--panel") && i + 1 < argc)
            panel = std::atoi(argv[++i]);
        else
            path = argv[i];
    }
    try {
        std::fputs(run(read(path), stage, passes, panel, gpu || stage == "ptx").c_str(), stdout);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "ingot-ir: %s\n", e.what());
        return 1;
    }
    return 0;
}
