// The verifier accepts what tracing may build and names what it may not.
#include "ir/verify.h"

#include <gtest/gtest.h>

#include "ir/parse.h"
#include "ir/random_graph.h"

namespace ingot {
namespace {

std::string complaint(const Graph& g, Level level = Level::Packed) {
    try {
        verify(g, level);
    } catch (const InternalError& e) {
        return e.what();
    }
    return "";
}
bool complains(std::string_view text, std::string_view about, Level level = Level::Packed) {
    return complaint(parse_graph(text), level).find(about) != std::string::npos;
}

TEST(Verify, RandomGraphsPass) {
    for (std::uint64_t seed = 0; seed < 50; ++seed)
        EXPECT_EQ(complaint(testing::RandomGraph(seed).make(40)), "");
}

TEST(Verify, Attributes) {
    EXPECT_TRUE(complains("graph(%0: f32[4]) {\n %1: i64[4] = rand_bernoulli(%0)\n return %1\n}",
                          "has no attribute dtype"));
    Graph g;
    ValueId x = g.add_input({DType::F32, {4}, {}}, "", {1});
    g.add_with_types(Prim::Sum, {x}, {{"dims", std::int64_t{0}}}, {{DType::F32, {}, {}}});
    EXPECT_NE(complaint(g).find("attribute dims is not of type ints"), std::string::npos);
    Graph h;
    x = h.add_input({DType::F32, {4}, {}}, "", {1});
    h.add_with_types(Prim::Neg, {x}, {{"dims", Ints{0}}}, {{DType::F32, {4}, {}}});
    EXPECT_NE(complaint(h).find("does not take"), std::string::npos);
}

TEST(Verify, Types) {
    EXPECT_TRUE(complains("graph(%0: f32[4]) {\n %1: f32[5] = neg(%0)\n return %1\n}",
                          "result 0 is f32[5], not f32[4]"));
    EXPECT_TRUE(complains("graph(%0: f32[4]) {\n %1: f64[4] = neg(%0)\n return %1\n}",
                          "result 0 is f64[4], not f32[4]"));
}

TEST(Verify, OrderOfValues) {
    Graph g;
    ValueId x = g.add_input({DType::F32, {4}, {}}, "", {1});
    g.emit(Prim::Neg, {x});
    g.node(0).operands[0] = g.node(0).results[0];
    EXPECT_NE(complaint(g).find("before it is made"), std::string::npos);
}

TEST(Verify, Levels) {
    constexpr std::string_view text =
        "graph(%0: f32[4, 3], %1: f32[2, 3, 8]) {\n"
        " %2 = packed_matmul(%0, %1) {n=16, layout=\"panel8\"}\n return %2\n}";
    EXPECT_EQ(complaint(parse_graph(text)), "");
    EXPECT_TRUE(complains(text, "not legal", Level::Traced));
}

TEST(Verify, TwoOutputsMayNotWriteOneInput) {
    EXPECT_TRUE(complains("graph(%0: f32[4]) {\n return %0 writes 0, %0 writes 0\n}",
                          "two outputs write one input"));
}

}  // namespace
}  // namespace ingot
