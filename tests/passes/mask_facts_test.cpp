// Masks that graphs compute, as transformers compute them, and what must not be taken for them.
#include "passes/mask_facts.h"

#include <gtest/gtest.h>

#include <string>

#include "ir/parse.h"

namespace ingot {
namespace {

// Rows and columns 0 .. 5 of a mask of two images, and true.
const std::string kBegin = R"(graph(%x: f32[2]) {
  %n = iota() {dtype=i64, sizes=(6), dim=0, start=0, step=1}
  %r = broadcast(%n) {sizes=(2, 1, 6, 6), dims=(2)}
  %s = broadcast(%n) {sizes=(2, 1, 6, 6), dims=(3)}
  %one = full() {dtype=i64, sizes=(2, 1, 6, 6), value=1}
  %true = full() {dtype=b8, sizes=(2, 1, 6, 6), value=true}
)";

MaskKind kind(const std::string& lines, const char* begin = kBegin.c_str()) {
    const Graph g = parse_graph(begin + lines + "  return %m\n}\n");
    return kind_of_mask(g, g.outputs()[0].value);
}

TEST(MaskFacts, ComparisonsOfRowsAndColumns) {
    EXPECT_EQ(kind("  %m = le(%s, %r)\n"), MaskKind::Causal);
    EXPECT_EQ(kind("  %m = ge(%r, %s)\n"), MaskKind::Causal);
    EXPECT_EQ(kind("  %t = add(%r, %one)\n  %m = lt(%s, %t)\n"), MaskKind::Causal);
    EXPECT_EQ(kind("  %a = le(%s, %r)\n  %m = bitwise_and(%true, %a)\n"), MaskKind::Causal);
    // Without the diagonal, with one more, the other half, a band.
    EXPECT_EQ(kind("  %m = lt(%s, %r)\n"), MaskKind::Unknown);
    EXPECT_EQ(kind("  %t = add(%r, %one)\n  %m = le(%s, %t)\n"), MaskKind::Unknown);
    EXPECT_EQ(kind("  %m = ge(%s, %r)\n"), MaskKind::Unknown);
    EXPECT_EQ(kind("  %t = add(%s, %one)\n  %u = add(%t, %one)\n  %a = le(%s, %r)\n"
                   "  %b = lt(%r, %u)\n  %m = logical_and(%a, %b)\n"),
              MaskKind::Unknown);
    EXPECT_EQ(kind("  %m = eq(%s, %r)\n"), MaskKind::Unknown);
}

TEST(MaskFacts, WhatHoldsEverywhere) {
    EXPECT_EQ(kind("  %m = logical_and(%true, %true)\n"), MaskKind::All);
    EXPECT_EQ(kind("  %z = sub(%one, %one)\n  %m = ge(%r, %z)\n"), MaskKind::All);
    EXPECT_EQ(kind("  %z = sub(%r, %r)\n  %m = lt(%z, %one)\n"), MaskKind::All);
    EXPECT_EQ(kind("  %m = ge(%r, %one)\n"), MaskKind::Unknown);
    EXPECT_EQ(kind("  %m = lt(%one, %one)\n"), MaskKind::Unknown);  // nothing takes part
}

// Positions that go on by one everywhere belong to one text, whose number is 0: what models ask of
// positions to find several texts in one row.
constexpr const char* kPacked = R"(graph(%x: f32[2]) {
  %n = iota() {dtype=i64, sizes=(2, 6), dim=1, start=0, step=1}
  %f = slice(%n) {starts=(0, 0), ends=(2, 1), steps=(1, 1)}
  %one = full() {dtype=i64, sizes=(2, 1), value=1}
  %b = sub(%f, %one)
  %c = concat(%b, %n) {dim=1}
  %hi = slice(%c) {starts=(0, 1), ends=(2, 7), steps=(1, 1)}
  %lo = slice(%c) {starts=(0, 0), ends=(2, 6), steps=(1, 1)}
  %d = sub(%hi, %lo)
  %k = full() {dtype=i64, sizes=(2, 6), value=STEP}
  %e = ne(%d, %k)
  %i = convert(%e) {dtype=i64}
  %t = cumsum(%i) {dim=1}
  %p = iota() {dtype=i64, sizes=(6), dim=0, start=0, step=1}
  %q = iota() {dtype=i64, sizes=(2, 1, 6, 6), dim=2, start=0, step=1}
  %o = iota() {dtype=i64, sizes=(2, 1, 6, 6), dim=3, start=0, step=1}
  %g = iota() {dtype=i64, sizes=(2, 1, 6, 6), dim=0, start=0, step=1}
  %u = take(%t, %g, %q) {dims=(0, 1)}
  %v = take(%t, %g, %o) {dims=(0, 1)}
  %w = eq(%u, %v)
  %y = le(%o, %q)
  %m = bitwise_and(%w, %y)
)";

TEST(MaskFacts, PositionsOfOneText) {
    const auto with_step = [](const char* step) {
        std::string text = kPacked;
        return text.replace(text.find("STEP"), 4, step);
    };
    EXPECT_EQ(kind("", with_step("1").c_str()), MaskKind::Causal);
    EXPECT_EQ(kind("", with_step("2").c_str()), MaskKind::Unknown);  // a text for each position
}

TEST(MaskFacts, InputsAndOtherSizesAreUnknown) {
    EXPECT_EQ(kind("", "graph(%m: b8[4, 4]) {\n"), MaskKind::Unknown);
    EXPECT_EQ(kind("  %m = le(%s, %r)\n",
                   "graph(%x: f32[2]) {\n"
                   "  %r = iota() {dtype=i64, sizes=(4, 6), dim=0, start=0, step=1}\n"
                   "  %s = iota() {dtype=i64, sizes=(4, 6), dim=1, start=0, step=1}\n"),
              MaskKind::Unknown);
    // As many columns as rows, whatever their number.
    EXPECT_EQ(kind("  %m = le(%s, %r)\n",
                   "symbols n in [2, 64]\ngraph(%x: f32[n]) {\n"
                   "  %r = iota() {dtype=i64, sizes=(n, n), dim=0, start=0, step=1}\n"
                   "  %s = iota() {dtype=i64, sizes=(n, n), dim=1, start=0, step=1}\n"),
              MaskKind::Causal);
}

}  // namespace
}  // namespace ingot
