// See solve.h.
#include "schedule/solve.h"

#include <algorithm>

namespace ingot::sched {

DimSolver::DimSolver(Sizes vars, Sizes extents)
    : vars_(std::move(vars)), extents_(std::move(extents)), digits_(vars_.size()) {}

std::optional<std::size_t> DimSolver::dim_of(Expr symbol) const {
    if (symbol.is_constant()) return std::nullopt;
    auto it = std::find(vars_.begin(), vars_.end(), symbol);
    if (it == vars_.end()) return std::nullopt;
    return static_cast<std::size_t>(it - vars_.begin());
}

bool DimSolver::add_digit(std::size_t dim, Digit digit) {
    for (const Digit& d : digits_[dim]) {
        if (d.stride == digit.stride && d.extent == digit.extent) return d.value == digit.value;
        // Two digits overlap unless one starts at or after the other's end.
        bool after = known_le(d.stride * d.extent, digit.stride) == true;
        bool before = known_le(digit.stride * digit.extent, d.stride) == true;
        if (!after && !before) return false;
    }
    digits_[dim].push_back(std::move(digit));
    return true;
}

// in_vars as a sum of whole dims, each the digit of a mixed-radix number that covers the target.
bool DimSolver::equate_sum(Expr in_vars, Expr target, Expr extent) {
    struct Term {
        std::size_t dim;
        Expr stride;
    };
    std::vector<Term> terms;
    Expr rest = in_vars;
    for (Expr s : symbols(in_vars)) {
        auto dim = dim_of(s);
        if (!dim) continue;
        auto linear = linear_in(rest, s);
        if (!linear) return false;
        terms.push_back({*dim, linear->stride});
        rest = linear->rest;
    }
    if (!rest.is(0)) return false;
    Expr reached = 1;
    std::vector<std::pair<std::size_t, Digit>> found;
    while (!terms.empty()) {
        auto it = std::find_if(terms.begin(), terms.end(),
                               [&](const Term& t) { return t.stride == reached; });
        if (it == terms.end()) return false;
        Expr size = extents_[it->dim];
        Expr value = floor_div(target, reached);
        if (terms.size() > 1) value = mod(value, size);
        found.push_back({it->dim, {1, size, value}});
        reached *= size;
        terms.erase(it);
    }
    if (!(reached == extent)) return false;
    auto before = digits_;
    for (auto& [dim, digit] : found)
        if (!add_digit(dim, digit)) {
            digits_ = std::move(before);
            return false;
        }
    return true;
}

bool DimSolver::equate(Expr in_vars, Expr target, Expr extent) {
    if (in_vars.is_constant()) return in_vars == target;
    if (auto dim = dim_of(in_vars)) {
        if (!(extents_[*dim] == extent)) return false;
        return add_digit(*dim, {1, extent, target});
    }
    const ExprNode& n = *in_vars.node();
    if (n.kind == ExprKind::FloorDiv && n.args[1].is_constant()) {
        auto dim = dim_of(n.args[0]);
        if (!dim) return false;
        Expr k = n.args[1];
        if (!(k * extent == extents_[*dim])) return false;
        return add_digit(*dim, {k, extent, target});
    }
    if (n.kind == ExprKind::Mod && n.args[1].is_constant() && n.args[1] == extent) {
        Expr of = n.args[0];
        Expr stride = 1;
        if (!of.is_constant() && of.node()->kind == ExprKind::FloorDiv) {
            stride = of.node()->args[1];
            of = of.node()->args[0];
        }
        auto dim = dim_of(of);
        if (!dim || !stride.is_constant()) return false;
        return add_digit(*dim, {stride, extent, target});
    }
    return equate_sum(in_vars, target, extent);
}

std::optional<Sizes> DimSolver::finish(const std::function<Expr(Expr)>& fresh) {
    Sizes values;
    for (std::size_t i = 0; i < vars_.size(); ++i) {
        if (vars_[i].is_constant()) {
            values.push_back(0);
            continue;
        }
        auto digits = digits_[i];
        std::sort(digits.begin(), digits.end(), [](const Digit& a, const Digit& b) {
            return known_lt(a.stride, b.stride) == true;
        });
        Expr reached = 1, value = 0;
        auto fill = [&](Expr upto) {  // a free digit from `reached` to `upto`
            if (reached == upto) return true;
            Expr size = floor_div(upto, reached);
            if (!(size * reached == upto)) return false;
            value += fresh(size) * reached;
            reached = upto;
            return true;
        };
        for (const Digit& d : digits) {
            if (!fill(d.stride)) return std::nullopt;
            value += d.value * d.stride;
            reached *= d.extent;
        }
        if (!fill(extents_[i])) return std::nullopt;
        values.push_back(value);
    }
    return values;
}

bool DimSolver::uses(Expr symbol) const {
    for (const auto& dim : digits_)
        for (const Digit& d : dim)
            if (contains(d.value, symbol)) return true;
    return false;
}

Expr DimSolver::apply(Expr e, const Sizes& values) const {
    return substitute(e, [&](Expr s) -> std::optional<Expr> {
        auto dim = dim_of(s);
        if (!dim) return std::nullopt;
        return values[*dim];
    });
}

}  // namespace ingot::sched
