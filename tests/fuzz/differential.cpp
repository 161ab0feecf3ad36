#include "fuzz/differential.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ir/print.h"
#include "ir/reference.h"
#include "ir/verify.h"
#include "passes/pipeline.h"
#include "schedule/run_plan.h"
#include "schedule/schedule.h"

namespace ingot::fuzz {

namespace {

std::int64_t no_symbols(Expr e) {
    throw InternalError("symbol " + to_string(e) + " in a graph without symbols");
}

PassContext pass_context() {
    PassContext c;
    c.panel_width = [](const PackQuery&) { return 16; };
    return c;
}

// The largest finite magnitude, at least 1.
double scale_of(const Tensor& x) {
    double scale = 1;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
        double v = std::abs(to_double(x.get(i), x.dtype));
        if (std::isfinite(v)) scale = std::max(scale, v);
    }
    return scale;
}

std::optional<std::string> compare(const Tensor& got, const Tensor& want, double tolerance) {
    if (got.dtype != want.dtype || got.sizes != want.sizes) return "another type or shape";
    const double allowed = tolerance * scale_of(want);
    for (std::int64_t i = 0; i < want.numel(); ++i) {
        Num a = got.get(i), b = want.get(i);
        if (is_integral(want.dtype)) {
            if (a.i != b.i)
                return "element " + std::to_string(i) + ": " + std::to_string(a.i) +
                       " instead of " + std::to_string(b.i);
            continue;
        }
        if (std::isnan(a.re) && std::isnan(b.re)) continue;
        if (a.re == b.re || std::abs(a.re - b.re) <= allowed) continue;
        char text[160];
        std::snprintf(text, sizeof text, "element %lld: %.9g instead of %.9g (allowed: %.3g)",
                      static_cast<long long>(i), a.re, b.re, allowed);
        return text;
    }
    return std::nullopt;
}

}  // namespace

std::vector<Tensor> through_passes(const Graph& graph, const std::vector<Tensor>& inputs) {
    Graph copy = graph;
    PipelineOptions options;
    options.verify = true;
    return evaluate(run_passes(std::move(copy), pass_context(), options), inputs, no_symbols);
}

std::vector<Tensor> through_plan(const Graph& graph, const std::vector<Tensor>& inputs) {
    Graph copy = graph;
    Plan plan = schedule(run_passes(std::move(copy), pass_context()), ScheduleOptions{});
    return testing::PlanRunner(plan, no_symbols).run(inputs);
}

std::optional<std::string> differs(std::uint64_t seed, const Limits& limits,
                                   const Executor& execute) {
    RandomGraph random = make_random_graph(seed, limits);
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < random.inputs.size(); ++i) {
        const Type& t = random.graph.type(random.graph.inputs()[i].value);
        Tensor x;
        x.dtype = t.dtype;
        for (const Expr& e : t.sizes) x.sizes.push_back(e.constant());
        x.data = random.inputs[i];
        inputs.push_back(std::move(x));
    }
    std::string about = "seed " + std::to_string(seed) + ": ";
    try {
        std::vector<Tensor> want = evaluate(random.graph, inputs, no_symbols);
        std::vector<Tensor> got = execute(random.graph, inputs);
        if (got.size() != want.size())
            return about + "another number of outputs\n" + to_string(random.graph);
        for (std::size_t i = 0; i < want.size(); ++i)
            if (auto difference = compare(got[i], want[i], random.tolerance[i]))
                return about + "output " + std::to_string(i) + ", " + *difference + "\n" +
                       to_string(random.graph);
    } catch (const std::exception& e) {
        return about + e.what() + "\n" + to_string(random.graph);
    }
    return std::nullopt;
}

}  // namespace ingot::fuzz
