// Canonical forms of integer expressions, and their agreement with plain evaluation on random
// expressions.
#include "ir/expr.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "ir/error.h"

namespace ingot {
namespace {

TEST(Expr, EqualExpressionsAreEqualNodes) {
    ExprPool pool;
    Expr a = pool.symbol("a"), b = pool.symbol("b");
    EXPECT_EQ((a + b) * (a - b), a * a - b * b);
    EXPECT_EQ(a + Expr(0), a);
    EXPECT_TRUE((a - a).is(0));
}

TEST(Expr, DivisionUsesRanges) {
    ExprPool pool;
    Expr i = pool.index("i", 8), j = pool.index("j", 4);
    EXPECT_EQ(floor_div(i * Expr(4) + j, 4), i);
    EXPECT_EQ(mod(i * Expr(4) + j, 4), j);
    EXPECT_EQ(floor_div(i * Expr(4) + j, 8), floor_div(i, 2));
    EXPECT_TRUE(floor_div(i, 8).is(0));
}

TEST(Expr, QuotientAndRemainderJoin) {
    ExprPool pool;
    Expr i = pool.index("i", 1000);
    EXPECT_EQ(floor_div(i, 7) * Expr(7) + mod(i, 7), i);
    EXPECT_EQ(floor_div(i, 7) * Expr(21) + mod(i, 7) * Expr(3), i * Expr(3));
}

TEST(Expr, SymbolicExtentsDecide) {
    ExprPool pool;
    Expr n = pool.symbol("n", {1, 1 << 20}), m = pool.symbol("m", {1, 1 << 20});
    Expr i = pool.index("i", n), j = pool.index("j", m);
    EXPECT_EQ(floor_div(i * m + j, m), i);
    EXPECT_EQ(mod(i * m + j, m), j);
    EXPECT_EQ(known_lt(i * m + j, n * m), std::optional<bool>(true));
    EXPECT_EQ(known_lt(n * m, i * m + j), std::optional<bool>(false));
    EXPECT_EQ(known_lt(n, m), std::nullopt);
}

TEST(Expr, LinearForm) {
    ExprPool pool;
    Expr i = pool.index("i", 10), n = pool.symbol("n");
    auto f = linear_in(i * n + i * Expr(2) + n, i);
    ASSERT_TRUE(f);
    EXPECT_EQ(f->stride, n + Expr(2));
    EXPECT_EQ(f->rest, n);
    EXPECT_FALSE(linear_in(floor_div(i, 3), i));
}

TEST(Expr, BadTextNamesTheColumn) {
    ExprPool pool;
    EXPECT_THROW(parse_expr("a + ", pool), UserError);
    EXPECT_THROW(parse_expr("(a", pool), UserError);
    EXPECT_THROW(parse_expr("a b", pool), UserError);
    EXPECT_THROW(parse_expr("99999999999999999999", pool), UserError);
}

// Random expressions are built twice: through Expr and as plain numbers; every evaluation and the
// text agree.
TEST(Expr, RandomExpressionsKeepTheirValue) {
    std::mt19937 random(7);
    auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (int round = 0; round < 2000; ++round) {
        ExprPool pool;
        std::vector<Expr> symbols;
        std::map<std::string, std::int64_t> numbers;
        for (int s = 0; s < 4; ++s) {
            std::string name = "i" + std::to_string(s);
            int extent = 1 + pick(40);
            symbols.push_back(pool.index(name, extent));
            numbers[name] = pick(extent);
        }
        auto number = [&](Expr s) { return numbers.at(to_string(s)); };
        std::vector<std::pair<Expr, std::int64_t>> terms;
        for (Expr s : symbols) terms.push_back({s, number(s)});
        auto floored = [](std::int64_t a, std::int64_t b) { return (a - ((a % b) + b) % b) / b; };
        for (int step = 0; step < 12; ++step) {
            auto [x, vx] = terms[static_cast<std::size_t>(pick(static_cast<int>(terms.size())))];
            auto [y, vy] = terms[static_cast<std::size_t>(pick(static_cast<int>(terms.size())))];
            std::int64_t c = 1 + pick(12);
            switch (pick(7)) {
                case 0:
                    terms.push_back({x + y, vx + vy});
                    break;
                case 1:
                    terms.push_back({x - y, vx - vy});
                    break;
                case 2:
                    terms.push_back({x * Expr(c), vx * c});
                    break;
                case 3:
                    terms.push_back({floor_div(x, c), floored(vx, c)});
                    break;
                case 4:
                    terms.push_back({mod(x, c), vx - c * floored(vx, c)});
                    break;
                case 5:
                    terms.push_back({min(x, y), std::min(vx, vy)});
                    break;
                default:
                    terms.push_back({max(x, y), std::max(vx, vy)});
                    break;
            }
        }
        for (auto& [e, v] : terms) {
            ASSERT_EQ(evaluate(e, number), v) << to_string(e);
            ASSERT_LE(e.range().lo, v) << to_string(e);
            ASSERT_GE(e.range().hi, v) << to_string(e);
            ASSERT_EQ(parse_expr(to_string(e), pool), e) << to_string(e);
        }
    }
}

}  // namespace
}  // namespace ingot
