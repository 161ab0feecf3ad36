// The table of passes and the loop that runs it; see pipeline.h.
#include "passes/pipeline.h"

#include <chrono>

#include "ir/print.h"
#include "ir/verify.h"
#include "passes/passes.h"

namespace ingot {

namespace {
// Cleaning comes first, so that the rewrites behind it see few forms, and again after them; packing
// behind them, because nothing looks through it; what is computed twice last, because cleaning
// would make it one again.
constexpr Pass kPipeline[] = {
    {"simplify", simplify},
    {"fold_constants", fold_constants},
    {"eliminate_common", eliminate_common},
    {"eliminate_dead", eliminate_dead},
    {"join_parts", join_parts},
    {"fold_frozen", fold_frozen},
    {"fuse_convolution", fuse_convolution},
    {"few_channels", few_channels},
    {"merge_matmuls", merge_matmuls},
    {"simplify", simplify},
    {"eliminate_common", eliminate_common},
    {"fuse_linear", fuse_linear},
    {"align_columns", align_columns},
    {"pack_contractions", pack_contractions},
    {"simplify", simplify},
    {"eliminate_common", eliminate_common},
    {"eliminate_dead", eliminate_dead},
    {"widen_products", widen_products},
    {"recompute", recompute},
};
}  // namespace

std::span<const Pass> pipeline() { return kPipeline; }

Graph run_passes(Graph graph, const PassContext& context, const PipelineOptions& options,
                 std::span<const Pass> passes) {
    std::string before = options.dump ? to_string(graph) : "";
    for (const Pass& pass : passes) {
        auto start = std::chrono::steady_clock::now();
        Graph after = pass.run(graph, context);
        std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
        if (options.reports)
            options.reports->push_back(
                {pass.name, spent.count(), graph.nodes().size(), after.nodes().size()});
        graph = std::move(after);
        if (options.dump) {
            std::string text = to_string(graph);
            if (text != before) options.dump(pass.name, text);
            before = std::move(text);
        }
        if (options.verify) try {
                verify(graph);
            } catch (const InternalError& e) {
                throw InternalError("after the pass " + std::string(pass.name) + ": " + e.what());
            }
    }
    return graph;
}

}  // namespace ingot
