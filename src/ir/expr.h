// Integer expressions: symbolic sizes, strides and the index arithmetic of loop nests.
//
// An Expr is a value of two words: a constant, or a pointer to a node that its ExprPool owns. Nodes
// are hash-consed and kept in a canonical form (a sum of integer-weighted products, sorted), so
// equal expressions are equal pointers and `a == b` is structural equality. Every node carries an
// interval; simplification of // and % uses it. The pool must outlive its expressions. All
// arithmetic is exact on int64; division and modulo are floored, as Python's.
//
// Flow: sizes are made while tracing (src/trace) and by parsing; loop variables by the scheduler;
// codegen prints them as machine code. Cost: one hash look-up per operation on symbolic operands,
// none on constants.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ingot {

class ExprPool;
struct ExprNode;

/// Closed interval; the extreme int64 values stand for "unbounded".
struct Range {
    static constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
    static constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    std::int64_t lo = kMin;
    std::int64_t hi = kMax;
    friend bool operator==(const Range&, const Range&) = default;
};

enum class ExprKind : std::uint8_t { Symbol, Add, Mul, FloorDiv, Mod, Min, Max };

class Expr {
  public:
    constexpr Expr() = default;
    constexpr Expr(std::int64_t value) : value_(value) {}
    constexpr Expr(int value) : value_(value) {}
    explicit constexpr Expr(const ExprNode* node) : node_(node) {}

    constexpr bool is_constant() const { return node_ == nullptr; }
    /// The value of a constant; undefined for symbolic expressions.
    constexpr std::int64_t constant() const { return value_; }
    constexpr const ExprNode* node() const { return node_; }
    constexpr bool is(std::int64_t v) const { return node_ == nullptr && value_ == v; }
    bool is_symbol() const;
    Range range() const;
    /// Equality of canonical forms: true means equal for all values of the symbols.
    friend constexpr bool operator==(const Expr& a, const Expr& b) {
        return a.node_ == b.node_ && (a.node_ != nullptr || a.value_ == b.value_);
    }

  private:
    std::int64_t value_ = 0;
    const ExprNode* node_ = nullptr;
};

/// A shape's dimension or a stride.
using Size = Expr;
using Sizes = std::vector<Expr>;

struct ExprNode {
    ExprKind kind;
    ExprPool* pool;
    std::uint32_t id;  // order of creation: the canonical order of terms
    Range range;
    // Add: terms args[i] * coefficients[i] plus `constant`. Mul: product of args (no constants).
    // Others: args.
    std::vector<Expr> args;
    std::vector<std::int64_t> coefficients;
    std::int64_t constant = 0;
    std::string symbol;  // Symbol: its name
    Expr extent;  // Symbol: an exclusive upper bound when it has a symbolic one (else constant 0:
                  // none)
};

Expr operator+(Expr a, Expr b);
Expr operator-(Expr a, Expr b);
Expr operator*(Expr a, Expr b);
Expr operator-(Expr a);
inline Expr& operator+=(Expr& a, Expr b) { return a = a + b; }
inline Expr& operator*=(Expr& a, Expr b) { return a = a * b; }
/// Floored quotient. Precondition: b != 0. Constant division by zero throws UserError.
Expr floor_div(Expr a, Expr b);
/// a - b * floor_div(a, b).
Expr mod(Expr a, Expr b);
inline Expr ceil_div(Expr a, Expr b) { return floor_div(a + b + Expr(-1), b); }
Expr min(Expr a, Expr b);
Expr max(Expr a, Expr b);

/// Whether `a < b` (etc.) is known from ranges and canonical forms; nothing when it is not decided.
std::optional<bool> known_lt(Expr a, Expr b);
std::optional<bool> known_le(Expr a, Expr b);
std::optional<bool> known_eq(Expr a, Expr b);

/// `a` with every symbol for which `value` returns an expression replaced by it, simplified again.
Expr substitute(Expr a, const std::function<std::optional<Expr>(Expr symbol)>& value);
/// The number `a` has when `value` gives the symbols' numbers.
std::int64_t evaluate(Expr a, const std::function<std::int64_t(Expr symbol)>& value);
/// The distinct symbols of `a`, in order of first creation.
std::vector<Expr> symbols(Expr a);
void collect_symbols(Expr a, std::vector<Expr>& into);
bool contains(Expr a, Expr symbol);

/// If a == stride * symbol + rest with neither containing the symbol, {stride, rest}; nothing
/// otherwise.
struct LinearForm {
    Expr stride;
    Expr rest;
};
std::optional<LinearForm> linear_in(Expr a, Expr symbol);

/// Text such as `4*i0 + s1 // 2`; parse_expr reads it back to the identical expression. Terms stand
/// in the order of their text, so that the text does not depend on the order of creation.
std::string to_string(Expr a);
/// The same with other names for the symbols.
using SymbolNames = std::function<std::string(Expr symbol)>;
std::string to_string(Expr a, const SymbolNames& names);

/// Owns nodes; looks symbols up by name. Not thread-safe: one pool per compilation.
class ExprPool {
  public:
    ExprPool();
    ~ExprPool();
    ExprPool(const ExprPool&) = delete;
    ExprPool& operator=(const ExprPool&) = delete;

    /// The symbol `name`; made on first use. A later call with a range narrows the symbol's range
    /// only for expressions made afterwards, so give the range with the first use.
    Expr symbol(std::string_view name, Range range = {});
    /// A loop variable: 0 <= name < extent. The name must be new, or used with an equal extent
    /// before. `range`, where given, is known instead of what follows from the extent.
    Expr index(std::string_view name, Expr extent, std::optional<Range> range = {});
    std::optional<Expr> find(std::string_view name) const;
    /// To be held while expressions are made, where a compilation in the background and others
    /// share a pool.
    std::mutex& turn() { return turn_; }

  private:
    friend struct ExprBuilder;
    std::mutex turn_;
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Reads to_string's syntax; symbols not yet in the pool are made. Throws UserError with position
/// on bad text.
Expr parse_expr(std::string_view text, ExprPool& pool);
/// The same with `symbol` saying what a name stands for.
Expr parse_expr(std::string_view text, const std::function<Expr(std::string_view name)>& symbol);

/// Product of all sizes (1 for none).
Expr product(std::span<const Expr> sizes);
/// Row-major strides for `sizes`.
Sizes contiguous_strides(std::span<const Expr> sizes);

}  // namespace ingot
