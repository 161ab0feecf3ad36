// Indexing and stencil prims in the reference evaluator.
#include <algorithm>
#include <numeric>

#include "ir/reference_call.h"

namespace ingot::reference {

namespace {

// `i` as an index of a dim of `size`; indices out of range are the user's mistake.
std::int64_t checked(std::int64_t i, std::int64_t size, bool wraps) {
    if (wraps && i < 0) i += size;
    if (i < 0 || i >= size) throw UserError("index out of range");
    return i;
}

// The offset in operand 0 of element `index` of the index operand along dim.
std::int64_t gathered(const Call& c, const Ints& index, std::int64_t at, const Ints& strides) {
    if (index.empty()) return checked(c.x[1].get(0).i, 1, false);
    auto dim = static_cast<std::size_t>(c.integer("dim"));
    Ints from = index;
    from[dim] = checked(c.x[1].get(at).i, c.x[0].sizes[dim], false);
    return dot(from, strides);
}

Num binary(Prim p, Num a, Num b, DType t) {
    const Num both[] = {a, b};
    return evaluate_pointwise(p, t, t, both);
}

void scatter_reduce(const Call& c, const Ints& strides) {
    const DType t = c.x[0].dtype;
    const auto& how = c.attr<std::string>("reduce");
    const bool include = c.attr<bool>("include_self");
    Tensor& out = c.out[0] = c.x[0];
    // Sums and products are kept unrounded until the end.
    std::vector<Num> value(static_cast<std::size_t>(out.numel()));
    std::vector<std::int64_t> count(value.size(), include ? 1 : 0);
    for (std::size_t i = 0; i < value.size(); ++i) value[i] = out.get(static_cast<std::int64_t>(i));
    std::vector<bool> hit(value.size(), false);
    std::int64_t at = 0;
    const DType wide = is_integral(t) ? t : is_complex(t) ? DType::C128 : DType::F64;
    for_each_index(c.x[1].sizes, [&](const Ints& index) {
        auto to = static_cast<std::size_t>(gathered(c, index, at, strides));
        Num v = c.x[2].get(at++);
        bool first = count[to] == 0;
        ++count[to];
        hit[to] = true;
        Prim p = how == "prod" ? Prim::Mul : how == "amax" ? Prim::Maximum : Prim::Minimum;
        if (how == "sum" || how == "mean") p = Prim::Add;
        value[to] = first ? v : binary(p, value[to], v, wide);
    });
    for (std::size_t i = 0; i < value.size(); ++i) {
        if (!hit[i]) continue;
        if (how == "mean") {
            Num n = is_integral(t) ? Num{0, 0, count[i]} : Num{static_cast<double>(count[i]), 0, 0};
            value[i] = binary(is_integral(t) ? Prim::FloorDiv : Prim::Div, value[i], n, wide);
        }
        out.set(static_cast<std::int64_t>(i), round_num(value[i], t));
    }
}

// take (writes == false): visits result elements with the operand's offset; put: the same relation.
template <class Visit>
void for_each_taken(const Call& c, std::size_t first, const Ints& taken_sizes, const Visit& visit) {
    const Ints& dims = c.ints("dims");
    const Ints strides = dense_strides(c.x[0].sizes);
    const Ints index_strides = dense_strides(c.x[first].sizes);
    const std::size_t index_rank = index_strides.size();
    auto begin = static_cast<std::size_t>(dims[0]);
    std::int64_t at = 0;
    for_each_index(taken_sizes, [&](const Ints& index) {
        Ints inner(index.begin() + static_cast<std::ptrdiff_t>(begin),
                   index.begin() + static_cast<std::ptrdiff_t>(begin + index_rank));
        std::int64_t which = dot(inner, index_strides), from = 0;
        std::size_t next = 0, listed = 0;
        for (std::size_t d = 0; d < strides.size(); ++d) {
            if (next == begin) next += index_rank;
            if (listed < dims.size() && static_cast<std::size_t>(dims[listed]) == d) {
                from +=
                    strides[d] * checked(c.x[first + listed].get(which).i, c.x[0].sizes[d], true);
                ++listed;
            } else {
                from += strides[d] * index[next++];
            }
        }
        visit(at++, from);
    });
}

void put(const Call& c) {
    const DType t = c.x[0].dtype;
    const bool add = c.attr<bool>("accumulate");
    Tensor& out = c.out[0] = c.x[0];
    for_each_taken(c, 2, c.x[1].sizes, [&](std::int64_t at, std::int64_t to) {
        Num v = c.x[1].get(at);
        out.set(to, add ? binary(Prim::Add, out.get(to), v, t) : v);
    });
}

void searchsorted(const Call& c) {
    const Tensor &sorted = c.x[0], &values = c.x[1];
    const DType t = sorted.dtype;
    const bool right = c.attr<bool>("right");
    const std::int64_t n = sorted.sizes.back();
    const std::int64_t row = values.sizes.empty() ? 1 : values.sizes.back();
    for (std::int64_t i = 0; i < values.numel(); ++i) {
        std::int64_t base = sorted.rank() == 1 ? 0 : i / row * n, at = 0;
        Num v = values.get(i);
        while (at < n && (right ? !sorts_before(v, sorted.get(base + at), t)
                                : sorts_before(sorted.get(base + at), v, t)))
            ++at;
        c.out[0].set(i, {0, 0, at});
    }
}

void nonzero(const Call& c) {
    std::int64_t row = 0, at = 0, rank = c.x[0].rank();
    for_each_index(c.x[0].sizes, [&](const Ints& index) {
        if (!is_nonzero(c.x[0].get(at++), c.x[0].dtype)) return;
        check(row < c.out[0].sizes[0], "nonzero's count is too small");
        for (std::int64_t d = 0; d < rank; ++d)
            c.out[0].set(row * rank + d, {0, 0, index[static_cast<std::size_t>(d)]});
        ++row;
    });
    check(row == c.out[0].sizes[0], "nonzero's count is too large");
}

void embedding_bag(const Call& c) {
    const auto& mode = c.attr<std::string>("mode");
    const DType t = c.x[0].dtype;
    const std::int64_t bags = c.x[2].numel(), width = c.x[0].sizes[1];
    for (std::int64_t b = 0; b < bags; ++b) {
        std::int64_t begin = c.x[2].get(b).i;
        std::int64_t end = b + 1 < bags ? c.x[2].get(b + 1).i : c.x[1].numel();
        for (std::int64_t j = 0; j < width && begin < end; ++j) {
            Total total;
            Num largest;
            for (std::int64_t i = begin; i < end; ++i) {
                std::int64_t from = checked(c.x[1].get(i).i, c.x[0].sizes[0], false);
                Num v = c.x[0].get(from * width + j);
                total.add(v);
                largest = i == begin ? v : binary(Prim::Maximum, largest, v, t);
            }
            if (mode == "mean") total.floating /= static_cast<double>(end - begin);
            c.out[0].set(b * width + j, mode == "max" ? largest : total.rounded(t));
        }
    }
}

}  // namespace

void indexing(const Call& c) {
    const Ints strides = dense_strides(c.x[0].sizes);
    std::int64_t at = 0;
    switch (c.prim) {
        case Prim::Gather:
            for_each_index(c.x[1].sizes, [&](const Ints& index) {
                c.out[0].set(at, c.x[0].get(gathered(c, index, at, strides)));
                ++at;
            });
            return;
        case Prim::Scatter:
            c.out[0] = c.x[0];
            for_each_index(c.x[1].sizes, [&](const Ints& index) {
                c.out[0].set(gathered(c, index, at, strides), c.x[2].get(at));
                ++at;
            });
            return;
        case Prim::ScatterReduce:
            return scatter_reduce(c, strides);
        case Prim::Take:
            return for_each_taken(c, 1, c.out[0].sizes, [&](std::int64_t to, std::int64_t from) {
                c.out[0].set(to, c.x[0].get(from));
            });
        case Prim::Put:
            return put(c);
        case Prim::MaskedScatter:
            c.out[0] = c.x[0];
            for (std::int64_t i = 0; i < c.x[0].numel(); ++i) {
                if (!c.x[1].get(i).i) continue;
                if (at >= c.x[2].numel()) throw UserError("masked_scatter: too few elements");
                c.out[0].set(i, c.x[2].get(at++));
            }
            return;
        case Prim::Searchsorted:
            return searchsorted(c);
        case Prim::Nonzero:
            return nonzero(c);
        case Prim::Bincount:
            for (; at < c.x[0].numel(); ++at) {
                std::int64_t v = checked(c.x[0].get(at).i, c.out[0].sizes[0], false);
                c.out[0].set(v, {0, 0, c.out[0].get(v).i + 1});
            }
            return;
        default:
            return embedding_bag(c);
    }
}

namespace {

void max_pool(const Call& c) {
    const Tensor& x = c.x[0];
    const std::size_t rank = x.sizes.size(), spatial = c.ints("kernel").size();
    const std::size_t first = rank - spatial;
    const Ints strides = dense_strides(x.sizes);
    std::int64_t at = 0;
    for_each_index(c.out[0].sizes, [&](const Ints& index) {
        std::int64_t base = 0, best_at = -1;
        Num best;
        for (std::size_t d = 0; d < first; ++d) base += index[d] * strides[d];
        for_each_index(c.ints("kernel"), [&](const Ints& k) {
            std::int64_t from = 0;
            for (std::size_t i = 0; i < spatial; ++i) {
                std::int64_t p = index[first + i] * c.ints("stride")[i] - c.ints("padding")[i] +
                                 k[i] * c.ints("dilation")[i];
                if (p < 0 || p >= x.sizes[first + i]) return;
                from += p * strides[first + i];
            }
            Num v = x.get(base + from);
            if (best_at < 0 || is_nan(v, x.dtype) ||
                (!is_nan(best, x.dtype) && sorts_before(best, v, x.dtype)))
                best = v, best_at = from;
        });
        check(best_at >= 0, "a pooling window without elements");
        c.out[0].set(at, best);
        c.out[1].set(at++, {0, 0, best_at});
    });
}

void max_pool_grad(const Call& c) {
    // Windows of one channel: as many spatial dims as follow the batch and channel dims.
    const Tensor &grad = c.x[0], &out = c.out[0];
    const std::size_t rank = out.sizes.size();
    const std::size_t spatial = rank > 2 ? rank - 2 : 1;
    std::int64_t planes = count_of(std::span(out.sizes).first(rank - spatial));
    std::int64_t plane = planes ? out.numel() / planes : 0,
                 windows = planes ? grad.numel() / planes : 0;
    std::vector<Total> sums(static_cast<std::size_t>(out.numel()));
    for (std::int64_t i = 0; i < grad.numel(); ++i) {
        std::int64_t to = i / windows * plane + checked(c.x[1].get(i).i, plane, false);
        sums[static_cast<std::size_t>(to)].add(grad.get(i));
    }
    for (std::size_t i = 0; i < sums.size(); ++i)
        c.out[0].set(static_cast<std::int64_t>(i), sums[i].rounded(out.dtype));
}

}  // namespace

void stencil(const Call& c) {
    if (c.prim == Prim::MaxPoolIndices) return max_pool(c);
    return max_pool_grad(c);
}

}  // namespace ingot::reference
