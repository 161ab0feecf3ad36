// What gradients of windows (pooling, depthwise convolutions) gather by: each element of an image
// looks at the few windows that it lies in, so that nothing is cleared, scattered or added
// atomically. Used by legalising; a handful of nodes for each window that an element may lie in.
#pragma once
#include <algorithm>

#include "ir/graph.h"

namespace ingot::sched {

/// Windows over the two dims of an image, in numbers. Values are [images, rows, columns, channels].
struct ImageWindows {
    Ints kernel, stride, padding, image, result;

    /// Windows that an element may lie in, along a dim.
    std::int64_t reach(std::size_t d) const { return (kernel[d] + stride[d] - 1) / stride[d]; }
};

/// At each element of the image the value of the window (row + padding) // stride - back, and alike
/// for columns: `v` with every row and column repeated stride times, and moved.
inline ValueId from_image(Graph& g, ValueId v, const ImageWindows& w, const Ints& back,
                          Scalar outside) {
    const Sizes sizes = g.type(v).sizes;
    if (w.stride != Ints{1, 1}) {
        const Sizes apart{sizes[0], sizes[1], w.stride[0], sizes[2], w.stride[1], sizes[3]};
        v = g.emit(Prim::Broadcast, {v}, {{"sizes", apart}, {"dims", Ints{0, 1, 3, 5}}});
        v = g.emit(Prim::Reshape, {v},
                   {{"sizes", Sizes{sizes[0], sizes[1] * Expr(w.stride[0]),
                                    sizes[2] * Expr(w.stride[1]), sizes[3]}}});
    }
    Sizes low(4, Expr(0)), high(4, Expr(0));
    for (std::size_t d = 0; d < 2; ++d) {
        // Element i is what v has at i + padding - back * stride.
        const std::int64_t moved = back[d] * w.stride[d] - w.padding[d];
        low[d + 1] = moved;
        high[d + 1] = w.image[d] - moved - w.result[d] * w.stride[d];
    }
    const auto none = [](Expr e) { return e.is(0); };
    if (std::ranges::all_of(low, none) && std::ranges::all_of(high, none)) return v;
    return g.emit(Prim::Pad, {v}, {{"low", low}, {"high", high}, {"value", outside}});
}

}  // namespace ingot::sched
