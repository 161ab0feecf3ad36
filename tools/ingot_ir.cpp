// A graph's way through the core, printed at any stage.
//   ingot-ir [--emit graph|passes|plan|cpp|triton] [--no-passes] [--panel N] [file.ir]
// Standard input without a file; --panel packs frozen right sides of contractions in panels of N
// columns.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

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

std::string run(const std::string& text, const std::string& stage, bool passes, int panel) {
    Graph graph = parse_graph(text);
    verify(graph);
    if (stage == "graph") return to_string(graph);
    PassContext context;
    context.panel_width = [panel](const PackQuery&) { return panel; };
    if (passes) graph = run_passes(std::move(graph), context);
    if (stage == "passes") return to_string(graph);
    Plan plan = schedule(graph);
    if (stage == "plan") return to_string(plan);
    std::string out;
    for (std::size_t i = 0; i < plan.kernels.size(); ++i) {
        std::string symbol = "kernel" + std::to_string(i);
        if (stage == "cpp")
            out += to_cpp_body(plan.kernels[i], symbol) + "\n";
        else if (stage == "triton")
            out += to_triton(plan.kernels[i], symbol).source + "\n";
        else
            throw UserError("--emit takes graph, passes, plan, cpp or triton");
    }
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    std::string stage = "plan";
    bool passes = true;
    int panel = 0;
    const char* path = nullptr;
    for (int i = 1; i < argc; ++i) {
        if (!std::strcmp(argv[i], "--emit") && i + 1 < argc)
            stage = argv[++i];
        else if (!std::strcmp(argv[i], "--no-passes"))
            passes = false;
        else if (!std::strcmp(argv[i], "--panel") && i + 1 < argc)
            panel = std::atoi(argv[++i]);
        else
            path = argv[i];
    }
    try {
        std::fputs(run(read(path), stage, passes, panel).c_str(), stdout);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "ingot-ir: %s\n", e.what());
        return 1;
    }
    return 0;
}
