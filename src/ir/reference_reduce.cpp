// Reductions, scans and sorting in the reference evaluator.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "ir/reference_call.h"

namespace ingot::reference {

bool is_nan(Num v, DType dtype) {
    return !is_integral(dtype) && (std::isnan(v.re) || (is_complex(dtype) && std::isnan(v.im)));
}
bool sorts_before(Num a, Num b, DType dtype) {
    if (is_nan(a, dtype) || is_nan(b, dtype)) return !is_nan(a, dtype) && is_nan(b, dtype);
    const Num both[] = {a, b};
    return evaluate_pointwise(Prim::Lt, dtype, DType::Bool, both).i != 0;
}

namespace {

using Row = std::vector<Num>;

// Calls `visit` with each result index's elements, in row-major order of the reduced dims.
template <class Visit>
void for_each_row(const Tensor& x, const Ints& dims, const Visit& visit) {
    const Ints strides = dense_strides(x.sizes);
    Ints sorted = dims, kept_sizes, kept_strides, row_sizes, row_strides;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t d = 0; d < x.sizes.size(); ++d) {
        bool reduced =
            std::binary_search(sorted.begin(), sorted.end(), static_cast<std::int64_t>(d));
        (reduced ? row_sizes : kept_sizes).push_back(x.sizes[d]);
        (reduced ? row_strides : kept_strides).push_back(strides[d]);
    }
    std::int64_t at = 0;
    for_each_index(kept_sizes, [&](const Ints& index) {
        Row row;
        std::int64_t base = dot(index, kept_strides);
        for_each_index(row_sizes,
                       [&](const Ints& r) { row.push_back(x.get(base + dot(r, row_strides))); });
        visit(at++, row);
    });
}

// The position of the largest (smallest) of a row; NaN wins, the first of equals.
std::size_t extreme(const Row& row, DType t, bool largest) {
    check(!row.empty(), "the largest of nothing");
    std::size_t best = 0;
    for (std::size_t i = 1; i < row.size(); ++i) {
        if (is_nan(row[best], t)) break;
        bool better = is_nan(row[i], t) || (largest ? sorts_before(row[best], row[i], t)
                                                    : sorts_before(row[i], row[best], t));
        if (better) best = i;
    }
    return best;
}

Num product(const Row& row, DType t) {
    std::complex<double> z = 1;
    double real = 1;
    std::uint64_t whole = 1;
    for (Num v : row) {
        z *= std::complex<double>(v.re, v.im);
        real *= v.re;
        whole *= static_cast<std::uint64_t>(v.i);
    }
    if (!is_complex(t)) z = real;
    return {z.real(), z.imag(), static_cast<std::int64_t>(whole)};
}

double variance(const Row& row, DType t, double correction) {
    std::complex<double> mean = 0;
    for (Num v : row) mean += std::complex<double>(to_double(v, t), v.im);
    mean /= static_cast<double>(row.size());
    double sum = 0;
    for (Num v : row) sum += std::norm(std::complex<double>(to_double(v, t), v.im) - mean);
    return sum / std::max(0.0, static_cast<double>(row.size()) - correction);
}

Num reduce(const Call& c, const Row& row, DType t) {
    switch (c.prim) {
        case Prim::Prod:
            return product(row, t);
        case Prim::Amax:
        case Prim::Amin:
            return row[extreme(row, t, c.prim == Prim::Amax)];
        case Prim::Argmax:
        case Prim::Argmin:
            return {0, 0, static_cast<std::int64_t>(extreme(row, t, c.prim == Prim::Argmax))};
        case Prim::All:
        case Prim::Any: {
            auto truth = [t](Num v) { return is_nonzero(v, t); };
            bool all = c.prim == Prim::All;
            return {0, 0,
                    all ? std::all_of(row.begin(), row.end(), truth)
                        : std::any_of(row.begin(), row.end(), truth)};
        }
        case Prim::XorSum: {
            Num r;
            for (Num v : row) r.i ^= v.i;
            return r;
        }
        case Prim::Var:
            return {variance(row, t, c.attr<double>("correction")), 0, 0};
        case Prim::Norm2: {
            double sum = 0;
            for (Num v : row) sum = std::hypot(sum, v.re, v.im);
            return {sum, 0, 0};
        }
        default: {
            Total total;
            for (Num v : row) total.add(v);
            Num sum = total.rounded(DType::C128);
            sum.i = static_cast<std::int64_t>(total.whole);
            return sum;
        }
    }
}

// Calls `visit` with every line along `dim`: the offsets of its elements.
template <class Visit>
void for_each_line(const Ints& sizes, std::size_t dim, const Visit& visit) {
    const Ints strides = dense_strides(sizes);
    Ints others = sizes;
    if (!others.empty()) others[dim] = 1;
    for_each_index(others, [&](const Ints& index) {
        std::vector<std::int64_t> line;
        std::int64_t base = dot(index, strides), n = sizes.empty() ? 1 : sizes[dim];
        for (std::int64_t i = 0; i < n; ++i)
            line.push_back(base + (sizes.empty() ? 0 : i * strides[dim]));
        visit(line);
    });
}
std::size_t line_dim(const Call& c) {
    return c.x[0].sizes.empty() ? 0 : static_cast<std::size_t>(c.integer("dim"));
}

Num add(Num a, Num b) {
    return {a.re + b.re, a.im + b.im,
            static_cast<std::int64_t>(static_cast<std::uint64_t>(a.i) +
                                      static_cast<std::uint64_t>(b.i))};
}

double log_add_exp(double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return a + b;
    double high = std::max(a, b), low = std::min(a, b);
    return std::isinf(high) ? high : high + std::log1p(std::exp(low - high));
}

void scan_line(const Call& c, const std::vector<std::int64_t>& line) {
    const Tensor& x = c.x[0];
    const DType t = x.dtype;
    Num now = c.prim == Prim::Cumprod ? Num{1, 0, 1} : Num{};
    if (c.prim == Prim::Logcumsumexp) now.re = -HUGE_VAL;
    std::int64_t best = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
        Num v = x.get(line[i]);
        switch (c.prim) {
            case Prim::Cumsum:
                now = add(now, v);
                break;
            case Prim::Cumprod:
                now = product({now, v}, t);
                break;
            case Prim::Logcumsumexp:
                now.re = log_add_exp(now.re, v.re);
                break;
            case Prim::LinearScan:
                now = add(product({v, now}, t), c.x[1].get(line[i]));
                break;
            default: {
                bool replaces =
                    i == 0 || is_nan(v, t) ||
                    (!is_nan(now, t) &&
                     !(c.prim == Prim::Cummax ? sorts_before(v, now, t) : sorts_before(now, v, t)));
                if (replaces) now = v, best = static_cast<std::int64_t>(i);
                c.out[1].set(line[i], {0, 0, best});
            }
        }
        c.out[0].set(line[i], round_num(now, t));
    }
}

// The order of a line: indices such that their elements ascend (descend); NaN is largest.
std::vector<std::size_t> order(const Row& row, DType t, bool descending) {
    std::vector<std::size_t> at(row.size());
    std::iota(at.begin(), at.end(), std::size_t{0});
    std::stable_sort(at.begin(), at.end(), [&](std::size_t a, std::size_t b) {
        return descending ? sorts_before(row[b], row[a], t) : sorts_before(row[a], row[b], t);
    });
    return at;
}

// The position of the k-th smallest (from 1).
std::size_t kth(const Row& row, DType t, std::int64_t k) {
    return order(row, t, false).at(static_cast<std::size_t>(k - 1));
}

std::size_t median(const Row& row, DType t, bool ignore_nan) {
    std::int64_t real = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
        if (!is_nan(row[i], t))
            ++real;
        else if (!ignore_nan)
            return i;
    }
    return real == 0 ? 0 : kth(row, t, (real - 1) / 2 + 1);
}

std::size_t mode(const Row& row, DType t) {
    std::vector<std::size_t> at = order(row, t, false);
    std::size_t best = 0, best_count = 0;
    for (std::size_t i = 0; i < at.size();) {
        std::size_t j = i;
        while (j < at.size() && !sorts_before(row[at[i]], row[at[j]], t)) ++j;
        if (j - i > best_count) best_count = j - i, best = at[j - 1];
        i = j;
    }
    return best;
}

}  // namespace

void reduction(const Call& c) {
    const Tensor& x = c.x[0];
    if (c.prim == Prim::Trace) {
        const std::size_t rank = x.sizes.size();
        std::int64_t rows = x.sizes[rank - 2], columns = x.sizes[rank - 1];
        for (std::int64_t b = 0; b < c.out[0].numel(); ++b) {
            Total sum;
            for (std::int64_t i = 0; i < std::min(rows, columns); ++i)
                sum.add(x.get((b * rows + i) * columns + i));
            c.out[0].set(b, sum.rounded(x.dtype));
        }
        return;
    }
    for_each_row(x, c.ints("dims"), [&](std::int64_t at, const Row& row) {
        c.out[0].set(at, round_num(reduce(c, row, x.dtype), c.out[0].dtype));
    });
}

void scan(const Call& c) {
    for_each_line(c.x[0].sizes, line_dim(c), [&](const auto& line) { scan_line(c, line); });
}

void sorting(const Call& c) {
    const Tensor& x = c.x[0];
    const DType t = x.dtype;
    std::vector<std::vector<std::size_t>> chosen;
    std::vector<Row> rows;
    for_each_line(x.sizes, line_dim(c), [&](const auto& line) {
        Row row;
        for (std::int64_t at : line) row.push_back(x.get(at));
        switch (c.prim) {
            case Prim::Sort:
                chosen.push_back(order(row, t, c.attr<bool>("descending")));
                break;
            case Prim::Topk:
                chosen.push_back(order(row, t, c.attr<bool>("largest")));
                chosen.back().resize(static_cast<std::size_t>(c.value(c.attr<Expr>("k"))));
                break;
            case Prim::Kthvalue:
                chosen.push_back({kth(row, t, c.value(c.attr<Expr>("k")))});
                break;
            case Prim::Median:
                chosen.push_back({median(row, t, c.attr<bool>("ignore_nan"))});
                break;
            default:
                chosen.push_back({mode(row, t)});
        }
        rows.push_back(std::move(row));
    });
    std::size_t next = 0;
    auto put = [&](std::int64_t at, std::size_t line, std::size_t i) {
        c.out[0].set(at, rows[line][chosen[line][i]]);
        c.out[1].set(at, {0, 0, static_cast<std::int64_t>(chosen[line][i])});
    };
    if (c.prim == Prim::Sort || c.prim == Prim::Topk) {
        for_each_line(c.out[0].sizes, line_dim(c), [&](const auto& line) {
            for (std::size_t i = 0; i < line.size() && i < chosen[next].size(); ++i)
                put(line[i], next, i);
            ++next;
        });
        return;
    }
    for (; next < rows.size(); ++next) put(static_cast<std::int64_t>(next), next, 0);
}

}  // namespace ingot::reference
