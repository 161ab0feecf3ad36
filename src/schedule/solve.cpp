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

// x, x // k, x % k or (x // k) % m for a dim x.
std::optional<DimSolver::Part> DimSolver::part_of(Expr e) const {
    if (e.is_constant()) return std::nullopt;
    if (auto dim = dim_of(e)) return Part{*dim, 1, extents_[*dim]};
    const ExprNode& n = *e.node();
    if (n.kind == ExprKind::FloorDiv && n.args[1].is_constant()) {
        auto dim = dim_of(n.args[0]);
        if (!dim) return std::nullopt;
        Expr extent = floor_div(extents_[*dim], n.args[1]);
        if (!(extent * n.args[1] == extents_[*dim])) return std::nullopt;
        return Part{*dim, n.args[1], extent};
    }
    if (n.kind == ExprKind::Mod && n.args[1].is_constant()) {
        Expr of = n.args[0], stride = 1;
        if (!of.is_constant() && of.node()->kind == ExprKind::FloorDiv) {
            stride = of.node()->args[1];
            of = of.node()->args[0];
        }
        auto dim = dim_of(of);
        if (!dim || !stride.is_constant()) return std::nullopt;
        return Part{*dim, stride, n.args[1]};
    }
    return std::nullopt;
}

// A part times symbolic sizes, and these.
std::optional<std::pair<DimSolver::Part, Expr>> DimSolver::scaled_part(Expr e) const {
    if (auto part = part_of(e)) return std::pair{*part, Expr(1)};
    if (e.is_constant() || e.node()->kind != ExprKind::Mul) return std::nullopt;
    std::optional<Part> part;
    Expr scale = 1;
    for (Expr factor : e.node()->args) {
        auto p = part_of(factor);
        if (p && part) return std::nullopt;
        if (p)
            part = p;
        else
            scale *= factor;
    }
    if (!part) return std::nullopt;
    return std::pair{*part, scale};
}

// in_vars as a sum of parts, each the digit of a mixed-radix number that covers the target.
bool DimSolver::equate_sum(Expr in_vars, Expr target, Expr extent) {
    const ExprNode& sum = *in_vars.node();
    if (sum.kind != ExprKind::Add || sum.constant != 0) return false;
    std::vector<std::pair<Part, Expr>> terms;
    for (std::size_t i = 0; i < sum.args.size(); ++i) {
        auto term = scaled_part(sum.args[i]);
        if (!term) return false;
        terms.emplace_back(term->first, term->second * Expr(sum.coefficients[i]));
    }
    Expr reached = 1;
    std::vector<std::pair<std::size_t, Digit>> found;
    while (!terms.empty()) {
        auto it = std::find_if(terms.begin(), terms.end(),
                               [&](const auto& t) { return t.second == reached; });
        if (it == terms.end()) return false;
        const Part part = it->first;
        Expr value = floor_div(target, reached);
        if (terms.size() > 1) value = mod(value, part.extent);
        found.push_back({part.dim, {part.stride, part.extent, value}});
        reached *= part.extent;
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
    if (auto part = part_of(in_vars)) {
        if (!(part->extent == extent)) return false;
        return add_digit(part->dim, {part->stride, part->extent, target});
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
