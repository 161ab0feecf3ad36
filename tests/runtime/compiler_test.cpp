// The compiler as a whole, where single stages' tests cannot look: many kernels on many threads.
#include <gtest/gtest.h>

#include <string>

#include "ir/parse.h"
#include "runtime/driver.h"

namespace ingot::runtime {
namespace {

/// `count` sums over the last dimension with sizes of their own, all over the symbol n, so that
/// each is a kernel whose code needs many expressions.
Graph many_sums(int count) {
    std::string inputs, body, results;
    for (int k = 0; k < count; ++k) {
        const std::string id = std::to_string(k), width = std::to_string(k + 3);
        inputs += (k == 0 ? "%x" : ", %x") + id + ": f32[n, " + width + ", n]";
        body +=
            "  %s" + id + " = sum(%x" + id + ") {dims=(2)}\n  %r" + id + " = exp(%s" + id + ")\n";
        results += (k == 0 ? "%r" : ", %r") + id;
    }
    return parse_graph("symbols n in [2, 4096]\ngraph(" + inputs + ") {\n" + body + "  return " +
                       results + "\n}\n");
}

TEST(Compiler, EmitsTheKernelsOfAPlanOnManyThreads) {
    CompilerOptions options;
    options.cache = false;
    const Graph graph = many_sums(16);
    for (int round = 0; round < 8; ++round) {
        const Compiler compiler(options);  // a new one has no code yet
        CompileOptions how;
        how.threads = 8;
        CompileReport report;
        ASSERT_NE(compiler.compile(graph, how, &report), nullptr);
        EXPECT_EQ(report.compiled, report.kernels);
        EXPECT_GE(report.kernels, 8);
    }
}

}  // namespace
}  // namespace ingot::runtime
