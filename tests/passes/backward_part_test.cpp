// A backward without some of the gradients that it is given, or that it gives: what is left of it
// as text.
#include "passes/backward_part.h"

#include <gtest/gtest.h>

#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"

namespace ingot {
namespace {

// Of two saved values and two tangents; %b joins what comes through both.
constexpr const char* kBackward = R"(graph(%s: f32[4], %r: f32[4], %g: f32[4], %h: f32[4]) {
  %a = mul(%s, %g)
  %c = div(%h, %r)
  %b = add(%a, %c)
  %d = sub(%a, %c)
  %e = neg(%c)
  return %b, %d, %e
}
)";

BackwardPart part_of(std::vector<bool> missing, std::vector<bool> wanted) {
    const Graph whole = parse_graph(kBackward);
    verify(whole);
    BackwardPart part = backward_part(whole, {{false, false, true, true},
                                              std::move(missing),
                                              std::move(wanted),
                                              std::vector<bool>(4, false)});
    verify(part.graph);
    return part;
}

TEST(BackwardPart, WhatDependsOnMissingGradientsAloneGoes) {
    const BackwardPart part = part_of({false, false, false, true}, {true, true, false});
    EXPECT_EQ(part.inputs, (std::vector<std::int32_t>{0, 2}));
    EXPECT_EQ(part.outputs, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(to_string(part.graph), R"(graph(%0: f32[4], %1: f32[4]) {
  %2: f32[4] = mul(%0, %1)
  return %2, %2
}
)");
}

TEST(BackwardPart, ADifferenceWithoutItsFirstTermIsTheOtherNegated) {
    const BackwardPart part = part_of({false, false, true, false}, {false, true, false});
    EXPECT_EQ(part.inputs, (std::vector<std::int32_t>{1, 3}));
    EXPECT_EQ(to_string(part.graph), R"(graph(%0: f32[4], %1: f32[4]) {
  %2: f32[4] = div(%1, %0)
  %3: f32[4] = neg(%2)
  return %3
}
)");
}

TEST(BackwardPart, WhatNobodyWantsIsNotRead) {
    const BackwardPart part = part_of(std::vector<bool>(4, false), {false, false, true});
    EXPECT_EQ(part.inputs, (std::vector<std::int32_t>{1, 3}));
    EXPECT_EQ(part.outputs, (std::vector<std::int32_t>{2}));
}

TEST(BackwardPart, AGradientThatIsGivenAllTheSameIsZeros) {
    const BackwardPart part = part_of({false, false, false, true}, {false, false, true});
    EXPECT_TRUE(part.inputs.empty());
    ASSERT_EQ(part.graph.nodes().size(), 1u);
    EXPECT_EQ(part.graph.nodes()[0].prim, Prim::Full);
}

}  // namespace
}  // namespace ingot
