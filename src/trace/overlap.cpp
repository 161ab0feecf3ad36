// Overlap of strided views as a bounded linear equation; see overlap.h.
#include "trace/overlap.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace ingot::trace {
namespace {

/// `stride` times an unknown integer of [low, high], where low <= 0 <= high.
struct Term {
    std::int64_t stride, low, high;
};

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

/// Whether the terms can add up to `sum`; largest strides first, so that only the few multiples are
/// tried from which the rest can still reach. Nothing when `steps` run out.
std::optional<bool> solvable(std::span<const Term> terms, std::int64_t sum, int& steps) {
    if (--steps < 0) return std::nullopt;
    if (terms.empty()) return sum == 0;
    const Term& first = terms.front();
    const auto rest = terms.subspan(1);
    std::int64_t low = 0, high = 0;  // what the rest can add
    for (const Term& t : rest) {
        low += t.stride * t.low;
        high += t.stride * t.high;
    }
    const std::int64_t from = std::max(first.low, -floor_div(high - sum, first.stride));
    const std::int64_t to = std::min(first.high, floor_div(sum - low, first.stride));
    for (std::int64_t k = from; k <= to; ++k) {
        const std::optional<bool> found = solvable(rest, sum - k * first.stride, steps);
        if (!found || *found) return found;
    }
    return false;
}

using Numbers = std::function<std::int64_t(Expr symbol)>;

/// A view in numbers.
struct Strided {
    Ints sizes, strides;
    std::int64_t offset = 0, item = 1;

    Strided(const at::Tensor& t, const Numbers& numbers)
        : item(static_cast<std::int64_t>(t.itemsize())) {
        const auto number = [&](const c10::SymInt& x) { return evaluate(unwrap(x), numbers); };
        for (std::int64_t d = 0; d < t.dim(); ++d) {
            sizes.push_back(number(t.sym_size(d)));
            strides.push_back(number(t.sym_stride(d)));
        }
        offset = number(t.sym_storage_offset());
    }
    /// Whether there is such a view, and it has elements.
    bool has_elements() const {
        return offset >= 0 && std::ranges::all_of(sizes, [](auto n) { return n > 0; }) &&
               std::ranges::all_of(strides, [](auto n) { return n >= 0; });
    }
};

/// Adds the dims of `v` in bytes; `sign` 1 for the left side of the equation, -1 for the right.
void add_terms(std::vector<Term>& terms, const Strided& v, int sign) {
    auto add = [&](std::int64_t stride, std::int64_t last) {
        auto same = std::ranges::find(terms, stride, &Term::stride);
        if (same == terms.end()) same = terms.insert(same, {stride, 0, 0});
        (sign > 0 ? same->high : same->low) += sign * last;
    };
    for (std::size_t d = 0; d < v.sizes.size(); ++d)
        if (v.strides[d] != 0 && v.sizes[d] > 1) add(v.strides[d] * v.item, v.sizes[d] - 1);
    add(1, v.item - 1);  // an element's bytes
}

bool meet(const at::Tensor& a, const at::Tensor& b, const Numbers& numbers) {
    const Strided x(a, numbers), y(b, numbers);
    if (!x.has_elements() || !y.has_elements()) return false;
    std::vector<Term> terms;
    add_terms(terms, x, 1);
    add_terms(terms, y, -1);
    std::ranges::sort(terms, std::ranges::greater(), &Term::stride);
    int steps = 10000;
    return solvable(terms, y.offset * y.item - x.offset * x.item, steps).value_or(true);
}

std::vector<Expr> symbols_of(const at::Tensor& a, const at::Tensor& b) {
    std::vector<Expr> found;
    for (const at::Tensor& t : {a, b}) {
        for (const auto& list : {t.sym_sizes(), t.sym_strides()})
            for (const c10::SymInt& x : list) collect_symbols(unwrap(x), found);
        collect_symbols(unwrap(t.sym_storage_offset()), found);
    }
    return found;
}

/// Whether they lie apart for some other numbers, too: all larger, and each another by itself.
bool apart_elsewhere(const at::Tensor& a, const at::Tensor& b, const SymbolicSizes& known,
                     const std::vector<Expr>& symbols) {
    const auto apart = [&](const Numbers& numbers) { return !meet(a, b, numbers); };
    if (!apart([&](Expr s) { return known.hint(s) + 1; }) ||
        !apart([&](Expr s) { return 2 * known.hint(s) + 3; }))
        return false;
    return std::ranges::all_of(symbols, [&](Expr other) {
        const auto with = [&](std::int64_t number) {
            return apart([&](Expr s) { return s == other ? number : known.hint(s); });
        };
        return with(2) && with(known.hint(other) + 1) && with(3 * known.hint(other) + 1);
    });
}

}  // namespace

bool overlaps_itself(const at::Tensor& tensor, const SymbolicSizes& known) {
    const Strided v(tensor, [&](Expr symbol) { return known.hint(symbol); });
    if (std::ranges::find(v.sizes, 0) != v.sizes.end()) return false;
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, last index
    for (std::size_t d = 0; d < v.sizes.size(); ++d)
        if (v.sizes[d] > 1) dims.emplace_back(v.strides[d], v.sizes[d] - 1);
    std::ranges::sort(dims);
    std::int64_t reach = 0;
    for (const auto& [stride, last] : dims) {
        if (stride <= reach) return true;
        reach += stride * last;
    }
    return false;
}

Overlap overlap(const at::Tensor& a, const at::Tensor& b, const SymbolicSizes& known) {
    const Numbers example = [&](Expr symbol) { return known.hint(symbol); };
    for (const at::Tensor& t : {a, b})
        if (!Strided(t, example).has_elements()) return Overlap::None;
    if (a.scalar_type() == b.scalar_type() && same(a.sym_sizes(), b.sym_sizes()) &&
        same(a.sym_strides(), b.sym_strides()) &&
        same(a.sym_storage_offset(), b.sym_storage_offset()))
        return Overlap::Same;
    if (meet(a, b, example)) return Overlap::Part;
    if (const auto symbols = symbols_of(a, b);
        !symbols.empty() && !apart_elsewhere(a, b, known, symbols)) {
        for (const at::Tensor& t : {a, b}) {
            concrete(t.sym_sizes());
            concrete(t.sym_strides());
            concrete(t.sym_storage_offset());
        }
    }
    return Overlap::None;
}

}  // namespace ingot::trace
