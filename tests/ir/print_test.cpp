// Printing and parsing of graphs are exact inverses, and bad text is refused with its place.
#include "ir/print.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "ir/parse.h"
#include "ir/random_graph.h"
#include "ir/text.h"

namespace ingot {
namespace {

constexpr std::string_view kEverything = R"(symbols s0 in [1, 4096], s1
graph(%0 "x": f32[8, s0], %1 "a \"quoted\"\n": f32[s0, 16] strides (1, s0) frozen, %2: c64[]@cuda:1) no rounding {
  %3: f32[(s0 // 2) + 2*s1, 16] = extern_call(%0, %1) {callee="aten::foo", index=-3, pure=true}  # at \\ line 3\n#
  extern_call(%3) {callee="effect", index=0, pure=false}
  %4: f32[2]@cuda:1 = full() {dtype=f32, sizes=(2), value=nan}
  %5: f32[2] = full() {dtype=f32, sizes=(2), value=-nan(0x8000000000001)}
  %6: f64[] = full() {dtype=f64, sizes=(), value=-0.0}
  %7: c64[1] = full() {dtype=c64, sizes=(1), value=complex(inf, 1e-300)}
  %8: i64[1] = full() {dtype=i64, sizes=(1), value=-9223372036854775808}
  %9: b8[1] = full() {dtype=b8, sizes=(1), value=true}
  %10: u8[3] = constant() {dtype=u8, sizes=(3), data=0x00ff7a}
  %11: f32[0] = constant() {dtype=f32, sizes=(0), data=0x}
  %12: f32[2] = var(%0) {dims=(0, 1), correction=0.1}
  %13: f32[8, 16], %14: i64[8, 16] = topk(%0) {dim=1, k=min(16, s0), largest=true, sorted=false}
  guard s0 <= s0*s1 "because"
  guard s0 % 8 == 0 ""
  guard s0 != 3 "x"
  guard s0 < 3 "x"
  return %3, %0 strides (1, 8) writes 0
}
)";

TEST(Print, TextOfEverythingReadsBack) {
    EXPECT_EQ(to_string(parse_graph(kEverything)), kEverything);
    EXPECT_EQ(to_string(parse_graph("graph() {\n  return\n}\n")), "graph() {\n  return\n}\n");
}

TEST(Print, RandomGraphsReadBack) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Graph g = testing::RandomGraph(seed).make(30);
        std::string text = to_string(g);
        Graph fresh = parse_graph(text);
        ASSERT_EQ(to_string(fresh), text);
        Graph same = parse_graph(text, g.shared_pool());
        ASSERT_EQ(same.nodes().size(), g.nodes().size());
        for (NodeId i = 0; i < g.nodes().size(); ++i) {
            const Node &a = g.node(i), &b = same.node(i);
            ASSERT_TRUE(a.prim == b.prim && a.operands == b.operands && a.results == b.results &&
                        a.attrs == b.attrs && a.origin == b.origin);
        }
        for (ValueId v = 0; v < g.values().size(); ++v) ASSERT_EQ(g.type(v), same.type(v));
    }
}

TEST(Print, RandomDoublesReadBack) {
    std::mt19937_64 random(7);
    for (int i = 0; i < 20000; ++i) {
        auto bits = random();
        if (i % 8 == 0) bits |= 0x7ff0000000000000ull;  // infinities and NaNs
        if (i % 8 == 1) bits &= 0x800fffffffffffffull;  // denormals
        std::string text = write_double(std::bit_cast<double>(bits));
        Scanner scanner(text, "number");
        double back = scanner.floating();
        ASSERT_EQ(std::bit_cast<std::uint64_t>(back), bits) << text;
        ASSERT_TRUE(scanner.at_end());
    }
}

TEST(Parse, TypesMayBeLeftOut) {
    Graph g = parse_graph("graph(%x: f32[4, 5]) {\n  %y = sum(%x) {dims=(1)}\n  return %y\n}");
    EXPECT_EQ(g.type(g.outputs()[0].value).sizes, Sizes{4});
}

std::string error_of(std::string_view text) {
    try {
        parse_graph(text);
    } catch (const UserError& e) {
        return e.what();
    }
    return "no error";
}

TEST(Parse, ErrorsNameLineAndColumn) {
    EXPECT_EQ(error_of("graph(%0: f33[4]) {\n  return\n}"),
              "graph, line 1, column 11: unknown element type");
    EXPECT_EQ(error_of("graph(%0: f32[4]) {\n  %1 = foo(%0)\n  return\n}"),
              "graph, line 2, column 8: unknown prim");
    EXPECT_EQ(error_of("graph(%0: f32[4]) {\n  %1 = neg(%7)\n  return\n}"),
              "graph, line 2, column 12: this value is not defined");
    EXPECT_EQ(error_of("graph(%0: f32[4]) {\n  %1 = sum(%0) {dim=(1)}\n  return\n}"),
              "graph, line 2, column 17: sum has no attribute 'dim'");
    EXPECT_NE(error_of("graph(%0: f32[4 +]) {\n  return\n}").find("line 1, column 15"),
              std::string::npos);
    EXPECT_NE(error_of("graph(%0: f32[4], %1: f32[5]) {\n  %2 = add(%0, %1)\n  return\n}")
                  .find("line 2, column 3: add: operands of different sizes"),
              std::string::npos);
    EXPECT_NE(error_of("graph(").find("line 1, column 7"), std::string::npos);
    EXPECT_NE(error_of("graph() { return } x").find("unexpected text"), std::string::npos);
}

// Every prefix of a valid text is refused, none crashes.
TEST(Parse, TruncatedTextIsRefused) {
    std::string_view text = kEverything;
    std::size_t last = text.rfind('}');
    for (std::size_t n = 0; n < last; ++n)
        EXPECT_THROW(parse_graph(text.substr(0, n)), UserError) << n;
}

TEST(Parse, DamagedTextNeverCrashes) {
    std::mt19937 random(3);
    for (int i = 0; i < 3000; ++i) {
        std::string text(kEverything);
        for (int k = 0; k < 3; ++k)
            text[random() % text.size()] = static_cast<char>(32 + random() % 95);
        try {
            to_string(parse_graph(text));
        } catch (const UserError&) {
        }
    }
}

}  // namespace
}  // namespace ingot
