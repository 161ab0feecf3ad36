// Symbolic sizes while recording: PyTorch's symbolic integers over the core's expressions.
//
// A size the caller declares as symbolic is a symbol of the graph's ExprPool with the value it has
// in the example (its hint). PyTorch's own code, Python's and the lowerings compute with it through
// c10::SymInt; arithmetic makes expressions. A comparison that ranges and canonical forms do not
// decide is decided by the hints, and the relation is kept as a guard: the program serves every set
// of sizes for which all guards hold. Where code insists on a number, the size is specialised: a
// guard that it has exactly this value. So nothing is ever refused, and nothing is ever wrong.
//
// Flow: made by the Recorder; its guards leave with the graph (Graph::guards) and are checked by
// CompiledFunction. Cost: nothing without symbols; else an allocation per result.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/SymBool.h>
#include <c10/core/SymFloat.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace ingot::trace {

/// Sizes, strides or parts of them. Numbers convert by themselves.
class SymInts : public std::vector<c10::SymInt> {
  public:
    using std::vector<c10::SymInt>::vector;
    SymInts() = default;
    SymInts(const std::vector<c10::SymInt>& v) : std::vector<c10::SymInt>(v) {}
    SymInts(std::vector<c10::SymInt>&& v) : std::vector<c10::SymInt>(std::move(v)) {}
    SymInts(const Ints& v) : std::vector<c10::SymInt>(v.begin(), v.end()) {}
};

class SymbolicSizes : public std::enable_shared_from_this<SymbolicSizes> {
  public:
    explicit SymbolicSizes(std::shared_ptr<ExprPool> pool) : pool_(std::move(pool)) {}

    /// The symbol `name`, which is `hint` in the example; the same name is the same size. Throws
    /// UserError when the name had another hint before or the range excludes it.
    Expr symbol(const std::string& name, std::int64_t hint, Range range);
    /// Whether there is any symbol.
    bool any() const { return !hints_.empty(); }
    /// `e` as PyTorch's integer.
    c10::SymInt wrap(Expr e);
    SymInts wrap(const Sizes& sizes);
    std::int64_t hint(Expr e) const;
    /// The truth of a relation: known, or the hints' with a guard.
    bool decide(SizeGuard::Relation relation, Expr left, Expr right);
    /// Guards that the pairs are equal. Throws UserError where one is not.
    void require_equal(std::span<const std::pair<Expr, Expr>> pairs);
    /// The number `e` is, with a guard that it is.
    std::int64_t specialise(Expr e);
    /// What was specialised: a decision that two sizes are equal is not.
    const std::vector<Expr>& specialised() const { return specialised_; }

    /// A float that is known only when the program runs, as PyTorch's: `contents` is the promise of
    /// it (f64, 0-d), `hint` what it is in the example. Where code insists on the number it is
    /// fixed: the program then holds for the hint alone, and `is_fixed` says so.
    c10::SymFloat wrap(const at::Tensor& contents, double hint);
    bool any_floats() const { return !floats_.empty(); }
    bool is_fixed(const at::Tensor& contents) const;
    /// The hint of such a promise, which is fixed by that; nothing for any other tensor.
    std::optional<double> fix_float(const at::Tensor& contents);

    const std::vector<SizeGuard>& guards() const { return guards_; }
    /// What is being recorded: the reason of guards made now. May be null.
    void set_origin(const std::string* origin) { origin_ = origin; }

  private:
    void add_guard(SizeGuard::Relation relation, Expr left, Expr right);

    std::shared_ptr<ExprPool> pool_;
    std::unordered_map<const ExprNode*, std::int64_t> hints_;
    struct Float {
        double hint = 0;
        bool fixed = false;
    };
    std::unordered_map<const c10::TensorImpl*, Float> floats_;  // by promise
    std::vector<SizeGuard> guards_;
    std::vector<Expr> specialised_;
    const std::string* origin_ = nullptr;
};

/// What is known of a relation without hints.
std::optional<bool> known(SizeGuard::Relation relation, Expr left, Expr right);

/// The expression behind a number. Throws NotSupported for symbolic integers of somebody else's.
Expr unwrap(const c10::SymInt& value);
Sizes unwrap(c10::SymIntArrayRef values);
/// The promise behind a float that is known only when the program runs; undefined for one that is a
/// number.
at::Tensor contents(const c10::SymFloat& value);
/// Whether they are the same expressions; asks no guard, so a "no" may be too careful.
bool same(const c10::SymInt& a, const c10::SymInt& b);
bool same(c10::SymIntArrayRef a, c10::SymIntArrayRef b);
/// The number; a symbolic one is specialised.
std::int64_t concrete(const c10::SymInt& value);
Ints concrete(c10::SymIntArrayRef values);

}  // namespace ingot::trace
