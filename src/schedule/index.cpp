// Index rules of the movement prims; see index.h.
#include "schedule/index.h"

#include <algorithm>
#include <numeric>

namespace ingot::sched {

namespace {

// Adds low <= value < high unless it always holds. False when it never does.
bool require(Source& source, Expr value, Expr low, Expr high) {
    bool above = known_le(low, value) == true;
    bool below = known_lt(value, high) == true;
    if (above && below) return true;
    if (known_lt(value, low) == true || known_le(high, value) == true) return false;
    source.valid.push_back({value, low, high});
    return true;
}

Source plain(Sizes index) { return Source{0, std::move(index), {}}; }

Sizes permuted(const Node& n, const Sizes& index) {
    const Ints& dims = n.attrs.get<Ints>("dims");
    Sizes from(index.size());
    for (std::size_t i = 0; i < dims.size(); ++i)
        from[static_cast<std::size_t>(dims[i])] = index[i];
    return from;
}

Sizes broadcast(const Graph& g, const Node& n, const Sizes& index) {
    const Ints& dims = n.attrs.get<Ints>("dims");
    const Sizes& sizes = g.type(n.operands[0]).sizes;
    Sizes from;
    for (std::size_t i = 0; i < dims.size(); ++i)
        from.push_back(sizes[i].is(1) ? Expr(0) : index[static_cast<std::size_t>(dims[i])]);
    return from;
}

// Matches runs of dims with equal products, so that only dims that really split or merge meet
// division.
Sizes reshaped(const Sizes& index, const Sizes& sizes, const Sizes& from) {
    Sizes result(from.size(), Expr(0));
    std::size_t i = 0, j = 0;
    while (i < sizes.size() || j < from.size()) {
        std::size_t i0 = i, j0 = j;
        Expr a = i < sizes.size() ? sizes[i++] : Expr(1);
        Expr b = j < from.size() ? from[j++] : Expr(1);
        while (!(a == b)) {
            bool grow_a = known_lt(a, b).value_or(i < sizes.size());
            if ((grow_a || j >= from.size()) && i < sizes.size())
                a *= sizes[i++];
            else if (j < from.size())
                b *= from[j++];
            else
                break;
        }
        Sizes run_sizes(sizes.begin() + static_cast<std::ptrdiff_t>(i0),
                        sizes.begin() + static_cast<std::ptrdiff_t>(i));
        Sizes run_index(index.begin() + static_cast<std::ptrdiff_t>(i0),
                        index.begin() + static_cast<std::ptrdiff_t>(i));
        Sizes run_from(from.begin() + static_cast<std::ptrdiff_t>(j0),
                       from.begin() + static_cast<std::ptrdiff_t>(j));
        Sizes part = unflatten(flatten(run_index, run_sizes), run_from);
        std::copy(part.begin(), part.end(), result.begin() + static_cast<std::ptrdiff_t>(j0));
    }
    return result;
}

Sizes sliced(const Node& n, const Sizes& index) {
    const Sizes& starts = n.attrs.get<Sizes>("starts");
    const Ints& steps = n.attrs.get<Ints>("steps");
    Sizes from;
    for (std::size_t i = 0; i < index.size(); ++i)
        from.push_back(index[i] * Expr(steps[i]) + starts[i]);
    return from;
}

Sizes flipped(const Graph& g, const Node& n, Sizes index) {
    for (std::int64_t d : n.attrs.get<Ints>("dims")) {
        auto i = static_cast<std::size_t>(d);
        index[i] = g.type(n.operands[0]).sizes[i] - Expr(1) - index[i];
    }
    return index;
}

Sizes windowed(const Graph& g, const Node& n, const Sizes& index) {
    const Ints& dims = n.attrs.get<Ints>("dims");
    const Ints& steps = n.attrs.get<Ints>("steps");
    const Ints& dilations = n.attrs.get<Ints>("dilations");
    auto rank = static_cast<std::size_t>(g.type(n.operands[0]).rank());
    Sizes from(index.begin(), index.begin() + static_cast<std::ptrdiff_t>(rank));
    for (std::size_t i = 0; i < dims.size(); ++i) {
        Expr& at = from[static_cast<std::size_t>(dims[i])];
        at = at * Expr(steps[i]) + index[rank + i] * Expr(dilations[i]);
    }
    return from;
}

struct DiagonalDims {
    std::size_t first, second;
    std::int64_t offset;
};
DiagonalDims diagonal_dims(const Node& n) {
    return {static_cast<std::size_t>(n.attrs.get<std::int64_t>("dim1")),
            static_cast<std::size_t>(n.attrs.get<std::int64_t>("dim2")),
            n.attrs.get<std::int64_t>("offset")};
}

// Index of the full tensor at position `at` of the diagonal, other dims as in `others`.
Sizes on_diagonal(const DiagonalDims& d, const Sizes& others, Expr at, std::size_t rank) {
    Sizes from(rank);
    std::size_t next = 0;
    for (std::size_t i = 0; i < rank; ++i) {
        if (i == d.first)
            from[i] = at + Expr(std::max<std::int64_t>(-d.offset, 0));
        else if (i == d.second)
            from[i] = at + Expr(std::max<std::int64_t>(d.offset, 0));
        else
            from[i] = others[next++];
    }
    return from;
}

std::vector<Source> padded(const Graph& g, const Node& n, const Sizes& index) {
    const Sizes& low = n.attrs.get<Sizes>("low");
    const Sizes& sizes = g.type(n.operands[0]).sizes;
    Source s;
    for (std::size_t i = 0; i < index.size(); ++i) {
        s.index.push_back(index[i] - low[i]);
        if (!require(s, s.index[i], 0, sizes[i])) return {};
    }
    return {s};
}

std::vector<Source> concatenated(const Graph& g, const Node& n, const Sizes& index) {
    auto dim = static_cast<std::size_t>(n.attrs.get<std::int64_t>("dim"));
    std::vector<Source> found;
    Expr start = 0;
    for (std::size_t k = 0; k < n.operands.size(); ++k) {
        Expr size = g.type(n.operands[k]).sizes[dim];
        Source s{k, index, {}};
        s.index[dim] = index[dim] - start;
        start += size;
        // Both ends: where another part holds, this one has no memory.
        if (!require(s, s.index[dim], 0, size)) continue;
        bool certain = s.valid.empty();
        found.push_back(std::move(s));
        if (certain) break;
    }
    return found;
}

std::vector<Source> updated(const Graph& g, const Node& n, const Sizes& index) {
    const Sizes& starts = n.attrs.get<Sizes>("starts");
    const Ints& steps = n.attrs.get<Ints>("steps");
    const Sizes& box = g.type(n.operands[1]).sizes;
    Source inside{1, {}, {}};
    bool possible = true;
    for (std::size_t i = 0; i < index.size() && possible; ++i) {
        Expr from = index[i] - starts[i];
        possible = require(inside, from, 0, (box[i] - Expr(1)) * Expr(steps[i]) + Expr(1)) &&
                   (steps[i] == 1 || require(inside, mod(from, steps[i]), 0, 1));
        inside.index.push_back(floor_div(from, steps[i]));
    }
    std::vector<Source> found;
    bool certain = possible && inside.valid.empty();
    if (possible) found.push_back(std::move(inside));
    if (!certain) found.push_back(plain(index));
    return found;
}

std::vector<Source> updated_diagonal(const Graph& g, const Node& n, const Sizes& index) {
    DiagonalDims d = diagonal_dims(n);
    Source inside{1, {}, {}};
    for (std::size_t i = 0; i < index.size(); ++i)
        if (i != d.first && i != d.second) inside.index.push_back(index[i]);
    Expr at = index[d.first] - Expr(std::max<std::int64_t>(-d.offset, 0));
    inside.index.push_back(at);
    bool possible = require(inside, index[d.second] - index[d.first] - Expr(d.offset), 0, 1) &&
                    require(inside, at, 0, g.type(n.operands[1]).sizes.back());
    std::vector<Source> found;
    if (possible) found.push_back(std::move(inside));
    found.push_back(plain(index));
    return found;
}

// The dims of more than one place, from the longest stride to the shortest, where each is longer
// than the span of those behind it: then no two places are the same. Nothing where that is not
// known for all values of the symbols.
std::optional<std::vector<std::size_t>> nested_dims(const Sizes& strides, const Sizes& box,
                                                    Expr& span) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < box.size(); ++i) {
        if (box[i].is(1)) continue;
        auto at = order.begin();
        for (; at != order.end(); ++at) {
            const auto longer = known_lt(strides[*at], strides[i]);
            if (longer == true) break;
            if (longer != false) return std::nullopt;
        }
        order.insert(at, i);
    }
    span = 0;
    for (std::size_t k = order.size(); k-- > 0;) {
        if (known_lt(span, strides[order[k]]) != true) return std::nullopt;
        span += (box[order[k]] - Expr(1)) * strides[order[k]];
    }
    return order;
}

// Inverts the strided map digit by digit.
std::optional<std::vector<Source>> updated_strided(const Graph& g, const Node& n,
                                                   const Sizes& index) {
    const Sizes& strides = n.attrs.get<Sizes>("strides");
    const Sizes& box = g.type(n.operands[1]).sizes;
    Expr span;
    const auto order = nested_dims(strides, box, span);
    if (!order) return std::nullopt;
    Expr rest = flatten(index, g.type(n.operands[0]).sizes) - n.attrs.get<Expr>("offset");
    Source inside{1, Sizes(box.size(), Expr(0)), {}};
    bool possible = require(inside, rest, 0, span + Expr(1));
    for (std::size_t k = 0; k < order->size() && possible; ++k) {
        const std::size_t i = (*order)[k];
        inside.index[i] = floor_div(rest, strides[i]);
        rest = mod(rest, strides[i]);
        possible = require(inside, inside.index[i], 0, box[i]);
    }
    possible = possible && require(inside, rest, 0, 1);
    std::vector<Source> found;
    bool certain = possible && inside.valid.empty();
    if (possible) found.push_back(std::move(inside));
    if (!certain) found.push_back(plain(index));
    return found;
}

}  // namespace

Sizes unflatten(Expr flat, const Sizes& sizes) {
    Sizes index(sizes.size(), Expr(0));
    for (const Expr& s : sizes)
        if (s.is(0)) return index;
    std::size_t first = 0;
    while (first < sizes.size() && sizes[first].is(1)) ++first;
    for (std::size_t i = sizes.size(); i-- > first;) {
        if (sizes[i].is(1)) continue;
        index[i] = i == first ? flat : mod(flat, sizes[i]);
        if (i != first) flat = floor_div(flat, sizes[i]);
    }
    return index;
}

Expr flatten(const Sizes& index, const Sizes& sizes) {
    return offset_of(index, contiguous_strides(sizes));
}

Expr offset_of(const Sizes& index, const Sizes& strides) {
    Expr offset = 0;
    for (std::size_t i = 0; i < index.size(); ++i) offset += index[i] * strides[i];
    return offset;
}

Expr loop_variable(ExprPool& pool, const char* prefix, std::size_t position, Expr extent) {
    std::string name = prefix + std::to_string(position) + "_";
    if (extent.is_constant())
        name += std::to_string(extent.constant());
    else
        name += "n" + std::to_string(extent.node()->id);
    return pool.index(name, extent);
}

Sizes domain_variables(ExprPool& pool, const char* prefix, const Sizes& sizes) {
    Sizes vars;
    for (std::size_t i = 0; i < sizes.size(); ++i)
        vars.push_back(sizes[i].is(1) ? Expr(0) : loop_variable(pool, prefix, i, sizes[i]));
    return vars;
}

bool is_plain_view(const Node& node) {
    switch (node.prim) {
        case Prim::Permute:
        case Prim::Broadcast:
        case Prim::Reshape:
        case Prim::Slice:
        case Prim::Flip:
        case Prim::Window:
        case Prim::Diagonal:
        case Prim::AsStrided:
            return true;
        default:
            return false;
    }
}

namespace {

std::optional<std::vector<Source>> raw_sources(const Graph& g, const Node& n, const Sizes& index) {
    using One = std::vector<Source>;
    switch (n.prim) {
        case Prim::Permute:
            return One{plain(permuted(n, index))};
        case Prim::Broadcast:
            return One{plain(broadcast(g, n, index))};
        case Prim::Reshape:
            return One{
                plain(reshaped(index, g.type(n.results[0]).sizes, g.type(n.operands[0]).sizes))};
        case Prim::Slice:
            return One{plain(sliced(n, index))};
        case Prim::Flip:
            return One{plain(flipped(g, n, index))};
        case Prim::Window:
            return One{plain(windowed(g, n, index))};
        case Prim::Diagonal:
            return One{plain(on_diagonal(diagonal_dims(n), index, index.back(), index.size() + 1))};
        case Prim::AsStrided: {
            Expr flat =
                offset_of(index, n.attrs.get<Sizes>("strides")) + n.attrs.get<Expr>("offset");
            return One{plain(unflatten(flat, g.type(n.operands[0]).sizes))};
        }
        case Prim::Pad:
            return padded(g, n, index);
        case Prim::Concat:
            return concatenated(g, n, index);
        case Prim::Update:
            return updated(g, n, index);
        case Prim::UpdateDiagonal:
            return updated_diagonal(g, n, index);
        case Prim::UpdateStrided:
            return updated_strided(g, n, index);
        default:
            throw InternalError("no movement prim: " + std::string(name(n.prim)));
    }
}

}  // namespace

std::optional<std::vector<Source>> sources(const Graph& g, const Node& n, const Sizes& index) {
    auto found = raw_sources(g, n, index);
    if (!found) return found;
    // There is only one place in a dim of size 1.
    for (Source& s : *found) {
        const Sizes& sizes = g.type(n.operands[s.operand]).sizes;
        for (std::size_t d = 0; d < sizes.size(); ++d)
            if (sizes[d].is(1)) s.index[d] = 0;
    }
    return found;
}

std::optional<StridedView> strided_view(const Graph& g, ValueId value,
                                        const std::function<bool(ValueId)>& stop,
                                        const std::function<Sizes(ValueId)>& layout,
                                        std::size_t free) {
    const Sizes& sizes = g.type(value).sizes;
    Sizes vars = domain_variables(g.pool(), "v", sizes);
    Sizes index = vars;
    ValueId at = value;
    for (const Node* n = g.producer(at); n != nullptr && is_plain_view(*n) && !stop(at);
         n = g.producer(at)) {
        index = (*sources(g, *n, index))[0].index;
        at = n->operands[0];
    }
    StridedView view{at, {}, offset_of(index, layout(at))};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (vars[i].is_constant()) {
            view.strides.push_back(1);
            continue;
        }
        auto linear = linear_in(view.offset, vars[i]);
        if (!linear && i < free) {
            view.strides.push_back(0);
            continue;
        }
        if (!linear) return std::nullopt;
        view.strides.push_back(linear->stride);
        view.offset = linear->rest;
    }
    // A size of 1 has no stride of its own; the row-major one suits every library.
    for (std::size_t i = sizes.size(); i-- > 0;)
        if (vars[i].is_constant())
            view.strides[i] =
                i + 1 < sizes.size() ? view.strides[i + 1] * max(sizes[i + 1], 1) : Expr(1);
    for (std::size_t i = free; i < vars.size(); ++i)
        if (!vars[i].is_constant() && contains(view.offset, vars[i])) return std::nullopt;
    return view;
}

}  // namespace ingot::sched
