// The passes are near-linear: ten times the nodes take about ten times the work, where a quadratic
// pass would take a hundred times. Work is counted, not timed: this test is linked with the passes
// and the IR built so that every basic block that runs calls the function below, and with the bytes
// that are asked for, as copies are made by the C library. The counts are the same at every run.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <new>

#include "passes/passes.h"

namespace {
std::uint64_t blocks_run = 0, bytes_asked_for = 0;
}  // namespace

extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() { ++blocks_run; }

// Not inlined: GCC takes the pair for mismatched otherwise.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
    bytes_asked_for += bytes;
    void* memory = std::malloc(bytes == 0 ? 1 : bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

namespace ingot {
namespace {

struct Work {
    std::uint64_t blocks = 0, bytes = 0;
};
Work work_so_far() { return {blocks_run, bytes_asked_for}; }

// Layers like a transformer's: projections with bias, a softmax, a residual, a norm.
Graph layers(int count) {
    Graph g;
    auto weight = [&](Sizes sizes) {
        Sizes strides = contiguous_strides(sizes);
        return g.add_input({DType::F32, std::move(sizes), {}}, "w", strides, true);
    };
    auto spread = [&](ValueId v, Sizes sizes, Ints dims) {
        return g.emit(Prim::Broadcast, {v}, {{"sizes", sizes}, {"dims", dims}});
    };
    const Sizes full{16, 32};
    ValueId x = g.add_input({DType::F32, full, {}}, "x", {32, 1});
    for (int i = 0; i < count; ++i) {
        ValueId last = x;
        for (int k = 0; k < 3; ++k) {
            ValueId w = g.emit(Prim::Permute, {weight({32, 32})}, {{"dims", Ints{1, 0}}});
            ValueId y = g.emit(Prim::Matmul, {x, w});
            y = g.emit(Prim::Add, {y, spread(weight({32}), full, {1})});
            y = g.emit(Prim::Mul, {y, spread(weight({32}), full, {1})});
            y = g.emit(Prim::Reshape, {y}, {{"sizes", Sizes{2, 8, 32}}});
            y = g.emit(Prim::Reshape, {y}, {{"sizes", full}});
            last = g.emit(Prim::Add, {last, y});
        }
        ValueId top = spread(g.emit(Prim::Amax, {last}, {{"dims", Ints{1}}}), full, {0});
        ValueId e = g.emit(Prim::Exp, {g.emit(Prim::Sub, {last, top})});
        ValueId sum = spread(g.emit(Prim::Sum, {e}, {{"dims", Ints{1}}}), full, {0});
        x = g.emit(Prim::Add, {x, g.emit(Prim::Div, {e, sum})});
    }
    g.add_output(x, {32, 1});
    return g;
}

std::map<std::string_view, Work> work_of_passes(const Graph& g) {
    PassContext context;
    context.panel_width = [](const PackQuery&) { return 16; };
    std::map<std::string_view, Work> total;
    Graph now = g;
    for (const Pass& pass : pipeline()) {
        const Work before = work_so_far();
        now = pass.run(now, context);
        const Work after = work_so_far();
        total[pass.name].blocks += after.blocks - before.blocks;
        total[pass.name].bytes += after.bytes - before.bytes;
    }
    return total;
}

TEST(Growth, PassesAreNearLinear) {
    Graph small = layers(30), large = layers(300);
    ASSERT_GT(large.nodes().size(), 9000u);
    auto few = work_of_passes(small), many = work_of_passes(large);
    for (auto& [name, work] : many) {
        // Every pass walks over all nodes: the counting works.
        EXPECT_GT(work.blocks, large.nodes().size()) << name;
        EXPECT_LT(work.blocks, 14 * few[name].blocks) << name;
        EXPECT_LT(work.bytes, 14 * few[name].bytes) << name;
    }
}

}  // namespace
}  // namespace ingot
