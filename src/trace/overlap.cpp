// Overlap of strided views as a bounded linear equation; see overlap.h.
#include "trace/overlap.h"

#include <algorithm>
#include <optional>
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

/// Adds the dims of `t` in bytes; `sign` 1 for the left side of the equation, -1 for the right.
void add_terms(std::vector<Term>& terms, const at::Tensor& t, int sign) {
    const auto item = static_cast<std::int64_t>(t.itemsize());
    auto add = [&](std::int64_t stride, std::int64_t last) {
        auto same = std::ranges::find(terms, stride, &Term::stride);
        if (same == terms.end()) same = terms.insert(same, {stride, 0, 0});
        (sign > 0 ? same->high : same->low) += sign * last;
    };
    for (std::int64_t d = 0; d < t.dim(); ++d) {
        const std::int64_t stride = t.sym_stride(d).expect_int(), n = t.sym_size(d).expect_int();
        if (stride != 0 && n > 1) add(stride * item, n - 1);
    }
    add(1, item - 1);  // an element's bytes
}

bool is_number(const at::Tensor& t) {
    auto known = [](const c10::SymInt& x) { return !x.is_symbolic(); };
    const auto sizes = t.sym_sizes(), strides = t.sym_strides();
    return std::ranges::all_of(sizes, known) && std::ranges::all_of(strides, known) &&
           known(t.sym_storage_offset());
}

}  // namespace

Overlap overlap(const at::Tensor& a, const at::Tensor& b) {
    if (!is_number(a) || !is_number(b)) return Overlap::None;
    if (a.sym_numel() == 0 || b.sym_numel() == 0) return Overlap::None;
    if (a.scalar_type() == b.scalar_type() && a.sym_sizes() == b.sym_sizes() &&
        a.sym_strides() == b.sym_strides() && a.sym_storage_offset() == b.sym_storage_offset())
        return Overlap::Same;
    std::vector<Term> terms;
    add_terms(terms, a, 1);
    add_terms(terms, b, -1);
    std::ranges::sort(terms, std::ranges::greater(), &Term::stride);
    auto start = [](const at::Tensor& t) {
        return t.sym_storage_offset().expect_int() * static_cast<std::int64_t>(t.itemsize());
    };
    int steps = 10000;
    const std::optional<bool> meet = solvable(terms, start(b) - start(a), steps);
    return meet && !*meet ? Overlap::None : Overlap::Part;
}

}  // namespace ingot::trace
