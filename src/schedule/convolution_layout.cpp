// See convolution_layout.h.
#include "schedule/convolution_layout.h"

#include <algorithm>

namespace ingot::sched {

namespace {

bool has_channels_last(const Layouts& layouts, const Graph& g, ValueId v) {
    return g.type(v).sizes[1].is(1) || layouts.strides(v)[1].is(1);
}

// `v` as before, its memory a copy with channels innermost.
ValueId copied(Graph& g, std::vector<ValueId>& in_memory, ValueId v) {
    const auto rank = g.type(v).rank();
    Ints order{0}, back{0, rank - 1};
    for (std::int64_t d = 2; d < rank; ++d) {
        order.push_back(d);
        back.push_back(d - 1);
    }
    order.push_back(1);
    v = g.emit(Prim::Permute, {v}, {{"dims", order}});
    in_memory.push_back(v);
    return g.emit(Prim::Permute, {v}, {{"dims", back}});
}

bool is_empty(const Type& t) {
    return std::ranges::any_of(t.sizes, [](Expr e) { return e.is(0); });
}

// Whether the result is an output whose channels are not innermost, and nothing else.
bool leaves_as_it_came(const Graph& g, ValueId v) {
    const bool read = std::ranges::any_of(g.nodes(), [&](const Node& n) {
        return std::ranges::find(n.operands, v) != n.operands.end();
    });
    return !read && std::ranges::any_of(g.outputs(), [&](const Output& o) {
        return o.value == v && !o.strides[1].is(1);
    });
}

}  // namespace

bool convolve_channels_last(Rewriter& r, const Graph& old, const Node& n, const Layouts& layouts,
                            std::vector<ValueId>& in_memory) {
    if (n.prim != Prim::Conv) return false;
    const Type& image = old.type(n.operands[0]);
    const ValueId filter = n.operands[1];
    if (image.rank() < 4 || is_empty(image) || is_empty(old.type(n.results[0])) ||
        !is_float(image.dtype) || n.attrs.get<std::int64_t>("groups") != 1 ||
        known_le(kFewestChannels, image.sizes[1]) != true || leaves_as_it_came(old, n.results[0]))
        return false;
    const bool image_lies = has_channels_last(layouts, old, n.operands[0]);
    const bool filter_lies = has_channels_last(layouts, old, filter);
    if (image_lies && filter_lies) return false;
    Graph& g = r.out();
    std::vector<ValueId> operands;
    for (ValueId v : n.operands) operands.push_back(r(v));
    if (!image_lies) operands[0] = copied(g, in_memory, operands[0]);
    if (!filter_lies) operands[1] = copied(g, in_memory, operands[1]);
    const NodeId id =
        g.add_with_types(n.prim, operands, n.attrs, {old.type(n.results[0])}, n.origin);
    r.map(n.results[0], g.node(id).results[0]);
    return true;
}

}  // namespace ingot::sched
