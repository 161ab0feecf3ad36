// Which exponentials are only terms of a sum with a one among them.
#include "codegen/llvm/summed_exponentials.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/parse.h"
#include "passes/pipeline.h"
#include "schedule/schedule.h"

namespace ingot::codegen {
namespace {

// How many exponentials of the graph's kernels are.
std::ptrdiff_t found(const char* text) {
    const Plan plan = schedule(run_passes(parse_graph(text), PassContext{}));
    std::ptrdiff_t count = 0;
    for (const Kernel& k : plan.kernels)
        for (const Nest& n : k.nests)
            for (const std::vector<bool>& phase : exponentials_beside_one(n))
                count += std::ranges::count(phase, true);
    return count;
}

TEST(SummedExponentials, OfALossAreFound) {
    EXPECT_EQ(found(R"(graph(%0 "x": bf16[64, 1000]) {
  %1: f32[64, 1000] = convert(%0) {dtype=f32}
  %2: f32[64] = amax(%1) {dims=(1)}
  %3: f32[64, 1000] = broadcast(%2) {sizes=(64, 1000), dims=(0)}
  %4: f32[64, 1000] = sub(%1, %3)
  %5: f32[64, 1000] = exp(%4)
  %6: f32[64] = sum(%5) {dims=(1)}
  %7: f32[64] = log(%6)
  %8: f32[64] = add(%7, %2)
  return %8
}
)"),
              1);
}

TEST(SummedExponentials, OfScaledAndSharedTermsAreFound) {
    EXPECT_EQ(found(R"(graph(%0 "x": f32[64, 1000], %1 "y": f32[64, 1000]) {
  %2: f32[64, 1000] = mul(%0, %1)
  %3: f32[64, 1000] = tanh(%2)
  %4: f32[64, 1000] = mul(%3, %3)
  %5: f32[64] = amax(%4) {dims=(1)}
  %6: f32[64, 1000] = broadcast(%5) {sizes=(64, 1000), dims=(0)}
  %7: f32[64, 1000] = sub(%4, %6)
  %8: f32[64, 1000] = exp(%7)
  %9: f32[64] = sum(%8) {dims=(1)}
  return %9
}
)"),
              1);
}

// The exponentials are wanted themselves; the greatest is another row's, or of other numbers; the
// least is no bound.
TEST(SummedExponentials, OthersAreLeft) {
    EXPECT_EQ(found(R"(graph(%0 "x": f32[64, 1000]) {
  %1: f32[64] = amax(%0) {dims=(1)}
  %2: f32[64, 1000] = broadcast(%1) {sizes=(64, 1000), dims=(0)}
  %3: f32[64, 1000] = sub(%0, %2)
  %4: f32[64, 1000] = exp(%3)
  %5: f32[64] = sum(%4) {dims=(1)}
  return %5, %4
}
)"),
              0);
    EXPECT_EQ(found(R"(graph(%0 "x": f32[64, 1000], %1 "y": f32[64, 1000]) {
  %2: f32[64] = amax(%1) {dims=(1)}
  %3: f32[64, 1000] = broadcast(%2) {sizes=(64, 1000), dims=(0)}
  %4: f32[64, 1000] = sub(%0, %3)
  %5: f32[64, 1000] = exp(%4)
  %6: f32[64] = sum(%5) {dims=(1)}
  return %6
}
)"),
              0);
    EXPECT_EQ(found(R"(graph(%0 "x": f32[64, 1000]) {
  %1: f32[64] = amin(%0) {dims=(1)}
  %2: f32[64, 1000] = broadcast(%1) {sizes=(64, 1000), dims=(0)}
  %3: f32[64, 1000] = sub(%0, %2)
  %4: f32[64, 1000] = exp(%3)
  %5: f32[64] = sum(%4) {dims=(1)}
  return %5
}
)"),
              0);
    EXPECT_EQ(found(R"(graph(%0 "x": f32[64, 1000]) {
  %1: f32[64, 1000] = neg(%0)
  %2: f32[64] = amax(%1) {dims=(1)}
  %3: f32[64, 1000] = broadcast(%2) {sizes=(64, 1000), dims=(0)}
  %4: f32[64, 1000] = sub(%0, %3)
  %5: f32[64, 1000] = exp(%4)
  %6: f32[64] = sum(%5) {dims=(1)}
  return %6
}
)"),
              0);
}

}  // namespace
}  // namespace ingot::codegen
