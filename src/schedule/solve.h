// Matching of iteration spaces: which expression of a group's loop variables each dim of another
// domain is, so that both can be walked by the same loops.
//
// A consumer reads a producer at index expressions of its own dims; the producer stands at
// expressions of the group's variables. Equating the two gives the consumer's dims: plain
// variables, digits of a variable (after a split) or sums of digits (after a merge). What stays
// free becomes loops of the consumer's own. Cost: linear in the dims.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "ir/expr.h"

namespace ingot::sched {

class DimSolver {
  public:
    /// vars: one symbol a dim (constant 0 for a size of 1).
    DimSolver(Sizes vars, Sizes extents);

    /// Records `in_vars == target`, where target takes `extent` values. False when the equation
    /// has no form this solver knows, or contradicts an earlier one; then nothing is recorded.
    bool equate(Expr in_vars, Expr target, Expr extent);

    /// The dims as expressions; `fresh(extent)` makes a variable for what is free. Nothing when a
    /// dim is known only in a part that leaves no whole number of values.
    std::optional<Sizes> finish(const std::function<Expr(Expr extent)>& fresh);

    /// Whether some dim's value is known to depend on `symbol`.
    bool uses(Expr symbol) const;

    /// Replaces the dims' variables in `e` by `values`.
    Expr apply(Expr e, const Sizes& values) const;

  private:
    struct Digit {
        Expr stride, extent, value;
    };
    /// A dim, or a digit of one.
    struct Part {
        std::size_t dim;
        Expr stride, extent;
    };
    std::optional<std::size_t> dim_of(Expr symbol) const;
    std::optional<Part> part_of(Expr e) const;
    std::optional<std::pair<Part, Expr>> scaled_part(Expr e) const;
    bool add_digit(std::size_t dim, Digit digit);
    bool equate_sum(Expr in_vars, Expr target, Expr extent);

    Sizes vars_, extents_;
    std::vector<std::vector<Digit>> digits_;
};

}  // namespace ingot::sched
