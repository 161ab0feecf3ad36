// The choice between generated contractions and the vendor's knows whose processor it is.
#include <gtest/gtest.h>

#include "codegen/contraction/contraction.h"
#include "schedule/schedule.h"

namespace ingot {
namespace {

VectorTarget target_of(codegen::Maker maker) {
    codegen::TargetInfo target = codegen::target_named("x86-64-v4");
    target.maker = maker;
    target.l2_bytes = 2 << 20;
    return codegen::vector_target(target);
}

// Whether x (m, k) times y (k, n) is generated for a processor of `maker`.
bool generates(codegen::Maker maker, std::int64_t m, std::int64_t n, std::int64_t k) {
    Graph g;
    const auto input = [&](std::int64_t rows, std::int64_t columns) {
        return g.add_input({DType::F32, Sizes{rows, columns}, {}}, columns == k ? "x" : "y",
                           Sizes{columns, 1}, false);
    };
    const ValueId product = g.emit(Prim::Matmul, {input(m, k), input(k, n)});
    g.add_output(product, Sizes{n, 1});
    ScheduleOptions options;
    options.generate_contraction = choose_by_cost(target_of(maker));
    const Plan plan = schedule(g, options);
    return std::holds_alternative<KernelStep>(plan.steps.at(0));
}

TEST(ContractionRates, LeavesProductsToTheVendorOnItsOwnProcessors) {
    EXPECT_TRUE(generates(codegen::Maker::Amd, 512, 768, 3072));
    EXPECT_TRUE(generates(codegen::Maker::Other, 512, 768, 3072));
    EXPECT_FALSE(generates(codegen::Maker::Intel, 512, 768, 3072));
    // A call costs more than so small a product.
    EXPECT_TRUE(generates(codegen::Maker::Intel, 12, 32, 64));
}

}  // namespace
}  // namespace ingot
