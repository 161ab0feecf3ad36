#include "fuzz/differential.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "codegen/contraction/contraction.h"
#include "codegen/llvm/emit.h"
#include "codegen/llvm/jit.h"
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

/// A plan's kernels in machine code, run on one thread with the work cut into pieces.
class PlanCode {
  public:
    explicit PlanCode(const Plan& plan) : plan_(plan), jit_(codegen::host(), {.verify = true}) {
        codegen::IrModule ir = jit_.make_module("plan");
        for (const Kernel& k : plan.kernels) {
            const std::string prefix = "k" + std::to_string(codes_.size());
            codes_.push_back(code_of(*ir.module, k, prefix));
        }
        loaded_ = jit_.load(jit_.compile(std::move(ir)));
    }

    bool run(std::int32_t kernel, std::span<void* const> buffers,
             std::span<const std::int64_t> sizes) const {
        const Kernel& k = plan_.kernels[static_cast<std::size_t>(kernel)];
        auto number = [&](Expr e) {
            return ingot::evaluate(e, [&](Expr s) -> std::int64_t {
                for (std::size_t i = 0; i < k.sizes.size(); ++i)
                    if (k.sizes[i] == s) return sizes[i];
                return no_symbols(s);
            });
        };
        // What the templates refuse is interpreted.
        if (codes_[static_cast<std::size_t>(kernel)].launches.empty())
            return ingot::evaluate(k, buffers, sizes);
        std::int64_t error = 0;
        for (const Launch& launch : codes_[static_cast<std::size_t>(kernel)].launches) {
            auto* f = loaded_->function<std::remove_pointer_t<KernelFn>>(launch.symbol);
            const std::int64_t work = number(launch.work), pieces = std::min<std::int64_t>(work, 3);
            std::vector<std::uint8_t> scratch(
                static_cast<std::size_t>(number(launch.scratch_bytes)) + 64, 0xee);
            auto at = (reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) & ~std::uintptr_t{63};
            for (std::int64_t p = 0; p < pieces; ++p)
                f(buffers.data(), sizes.data(), work * p / pieces, work * (p + 1) / pieces,
                  reinterpret_cast<void*>(at), &error);
        }
        return error == 0;
    }

  private:
    KernelCode code_of(llvm::Module& module, const Kernel& k, const std::string& prefix) const {
        if (!k.contraction) return codegen::emit_kernel(module, k, jit_.target(), prefix);
        try {
            return codegen::emit_contraction(module, k, jit_.target(), prefix);
        } catch (const NotSupported&) {
            return {};
        }
    }

    const Plan& plan_;
    codegen::Jit jit_;
    std::vector<KernelCode> codes_;
    std::shared_ptr<codegen::LoadedCode> loaded_;
};

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

namespace {

using Memory = std::vector<Tensor>;

Memory snapshot(const Kernel& k, std::span<void* const> buffers) {
    Memory m;
    for (const KernelBuffer& b : k.buffers) {
        if (b.scope == BufferScope::Scratch) continue;
        Tensor t(b.dtype, {evaluate(b.elements, no_symbols)});
        std::memcpy(t.data.data(), buffers[m.size()], t.data.size());
        m.push_back(std::move(t));
    }
    return m;
}
void restore(const Memory& m, std::span<void* const> buffers) {
    for (std::size_t i = 0; i < m.size(); ++i)
        std::memcpy(buffers[i], m[i].data.data(), m[i].data.size());
}
double kernel_tolerance(DType t) {
    if (is_integral(t)) return 0;
    return is_reduced_float(t) ? 0.02 : 1e-5;
}

std::vector<Tensor> run_code(const Graph& graph, const std::vector<Tensor>& inputs, bool each) {
    Graph copy = graph;
    ScheduleOptions options;
    options.generate_contraction = [](const Kernel&) { return true; };
    Plan plan = schedule(run_passes(std::move(copy), pass_context()), options);
    const PlanCode code(plan);
    testing::PlanRunner runner(plan, no_symbols);
    runner.run_kernel = [&](std::int32_t kernel, std::span<void* const> buffers,
                            std::span<const std::int64_t> sizes) {
        if (!each) return code.run(kernel, buffers, sizes);
        const Kernel& k = plan.kernels[static_cast<std::size_t>(kernel)];
        const Memory before = snapshot(k, buffers);
        evaluate(k, buffers, sizes);
        const Memory want = snapshot(k, buffers);
        restore(before, buffers);
        const bool fine = code.run(kernel, buffers, sizes);
        const Memory got = snapshot(k, buffers);
        for (std::size_t i = 0; i < want.size(); ++i)
            if (auto difference = compare(got[i], want[i], kernel_tolerance(want[i].dtype)))
                throw Error("buffer " + std::to_string(i) + ", " + *difference + " in\n" +
                            to_string(k));
        return fine;
    };
    return runner.run(inputs);
}

}  // namespace

std::vector<Tensor> through_code(const Graph& graph, const std::vector<Tensor>& inputs) {
    return run_code(graph, inputs, false);
}
std::vector<Tensor> through_kernels(const Graph& graph, const std::vector<Tensor>& inputs) {
    return run_code(graph, inputs, true);
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
