// Small values that the files that legalise make alike: a change of type where one is needed,
// numbers of a value's shape, what a reduction has left repeated again.
#pragma once
#include <algorithm>

#include "ir/graph.h"

namespace ingot::sched {

/// `v` in the type `to`: itself if it has it.
inline ValueId convert(Graph& g, ValueId v, DType to) {
    if (g.type(v).dtype == to) return v;
    return g.emit(Prim::Convert, {v}, {{"dtype", to}});
}

/// The number, in `like`'s type and sizes.
inline ValueId full_like(Graph& g, ValueId like, Scalar value) {
    const Type t = g.type(like);
    return g.emit(Prim::Full, {}, {{"dtype", t.dtype}, {"sizes", t.sizes}, {"value", value}});
}

/// The size, in `like`'s type and sizes.
inline ValueId size_like(Graph& g, ValueId like, Expr size) {
    const Type t = g.type(like);
    if (size.is_constant()) {
        if (is_integral(t.dtype)) return full_like(g, like, Scalar(size.constant()));
        return full_like(g, like, Scalar(static_cast<double>(size.constant())));
    }
    return g.emit(Prim::SizeValue, {}, {{"dtype", t.dtype}, {"sizes", t.sizes}, {"size", size}});
}

/// Whether a reduction over `dims` is over dim `i`.
inline bool reduced(const Ints& dims, std::size_t i) {
    return std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(i)) != dims.end();
}

/// `v`, whose sizes are `sizes` without `dims`, repeated along them.
inline ValueId broadcast_back(Graph& g, ValueId v, const Sizes& sizes, const Ints& dims) {
    Ints kept;
    for (std::size_t i = 0; i < sizes.size(); ++i)
        if (!reduced(dims, i)) kept.push_back(static_cast<std::int64_t>(i));
    return g.emit(Prim::Broadcast, {v}, {{"sizes", sizes}, {"dims", kept}});
}

}  // namespace ingot::sched
