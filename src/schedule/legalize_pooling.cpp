// See legalize_pooling.h.
#include "schedule/legalize_pooling.h"

#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "schedule/convert.h"

namespace ingot::sched {

namespace {

Scalar smallest(DType t) {
    if (is_float(t)) return Scalar(-std::numeric_limits<double>::infinity());
    if (!is_signed_int(t)) return Scalar(std::int64_t{0});
    const int bits = 8 * bytes(t);
    return Scalar(bits == 64 ? std::numeric_limits<std::int64_t>::min()
                             : -(std::int64_t{1} << (bits - 1)));
}

struct Pool {
    Ints kernel, stride, padding, dilation;
    Sizes image;   // of the operand, all dims
    Sizes result;  // all dims
    std::size_t first;

    Pool(const Graph& g, const Node& n)
        : kernel(n.attrs.get<Ints>("kernel")),
          stride(n.attrs.get<Ints>("stride")),
          padding(n.attrs.get<Ints>("padding")),
          dilation(n.attrs.get<Ints>("dilation")),
          image(g.type(n.operands[0]).sizes),
          result(g.type(n.results[0]).sizes),
          first(result.size() - kernel.size()) {}
    std::int64_t taps() const {
        return std::accumulate(kernel.begin(), kernel.end(), std::int64_t{1}, std::multiplies<>());
    }
    Ints window_dims() const {
        Ints dims(kernel.size());
        std::iota(dims.begin(), dims.end(), static_cast<std::int64_t>(result.size()));
        return dims;
    }
    /// What holds a place in an image, and what is added and multiplied on the way.
    DType place_type() const {
        std::int64_t points = 1;
        for (std::size_t d = first; d < image.size(); ++d) {
            if (!image[d].is_constant() || image[d].constant() > 1 << 15) return DType::I64;
            points *= image[d].constant();
            if (points > 1 << 30) return DType::I64;
        }
        return DType::I32;
    }
};

// Windows in dims of their own behind the others, padded so that they may stick out at the end
// (ceil mode).
ValueId pool_windows(Graph& g, const Pool& p, ValueId x) {
    const std::size_t rank = p.image.size();
    Sizes low(rank, Expr(0)), high(rank, Expr(0)), inside;
    Ints dims;
    bool pads = false;
    for (std::size_t i = 0; i < p.kernel.size(); ++i) {
        const std::size_t d = p.first + i;
        dims.push_back(static_cast<std::int64_t>(d));
        inside.push_back(p.kernel[i]);
        low[d] = p.padding[i];
        const Expr needed = (p.result[d] - Expr(1)) * Expr(p.stride[i]) +
                            Expr((p.kernel[i] - 1) * p.dilation[i] + 1);
        // A symbolic size leaves out windows that stick out: what is behind the last one may stay.
        high[d] = p.image[d].is_constant() ? needed - p.image[d] - low[d] : low[d];
        pads = pads || !low[d].is(0) || !high[d].is(0);
    }
    if (pads)
        x = g.emit(Prim::Pad, {x},
                   {{"low", low}, {"high", high}, {"value", smallest(g.type(x).dtype)}});
    return g.emit(
        Prim::Window, {x},
        {{"dims", dims}, {"sizes", inside}, {"steps", p.stride}, {"dilations", p.dilation}});
}

// Flat places of one element of each window, and whether it lies inside the image.
struct Places {
    std::optional<ValueId> flat, inside;
};

// Of the element at this position of its window; with none, of the first inside the image.
Places places(Graph& g, const Pool& p, DType type, std::optional<ValueId> position) {
    Places found;
    std::int64_t inner = p.taps();
    for (std::size_t i = 0; i < p.kernel.size(); ++i) {
        const auto dim = static_cast<std::int64_t>(p.first + i);
        ValueId at = g.emit(Prim::Iota, {},
                            {{"dtype", type},
                             {"sizes", p.result},
                             {"dim", dim},
                             {"start", Scalar(-p.padding[i])},
                             {"step", Scalar(p.stride[i])}});
        const ValueId size = size_like(g, at, p.image[p.first + i]);
        const auto number = [&](std::int64_t v) { return full_like(g, at, Scalar(v)); };
        inner /= p.kernel[i];
        if (position) {
            ValueId k = *position;
            if (inner > 1) k = g.emit(Prim::FloorDiv, {k, number(inner)});
            if (i > 0) k = g.emit(Prim::Remainder, {k, number(p.kernel[i])});
            if (p.dilation[i] > 1) k = g.emit(Prim::Mul, {k, number(p.dilation[i])});
            at = g.emit(Prim::Add, {at, k});
        } else if (p.padding[i] > 0) {
            const ValueId steps = g.emit(Prim::Remainder, {at, number(p.dilation[i])});
            at = g.emit(Prim::Maximum, {at, steps});
        }
        // The first windows begin before the image, the last may end behind it.
        const ValueId within = g.emit(
            Prim::LogicalAnd, {g.emit(Prim::Ge, {at, number(0)}), g.emit(Prim::Lt, {at, size})});
        found.inside = found.inside ? g.emit(Prim::LogicalAnd, {*found.inside, within}) : within;
        found.flat =
            found.flat ? g.emit(Prim::Add, {g.emit(Prim::Mul, {*found.flat, size}), at}) : at;
    }
    return found;
}

// Which element of its window wins, in the order in which they are walked.
ValueId winner(Graph& g, const Pool& p, ValueId windows, DType type) {
    const Attrs dims{{"dims", p.window_dims()}};
    const ValueId first = convert(g, g.emit(Prim::Argmax, {windows}, dims), type);
    if (!is_float(g.type(windows).dtype)) return first;
    std::optional<ValueId> order;
    for (std::size_t i = 0; i < p.kernel.size(); ++i) {
        const ValueId k = g.emit(Prim::Iota, {},
                                 {{"dtype", type},
                                  {"sizes", g.type(windows).sizes},
                                  {"dim", static_cast<std::int64_t>(p.result.size() + i)},
                                  {"start", Scalar(0)},
                                  {"step", Scalar(1)}});
        const auto scaled = [&](ValueId v) {
            return g.emit(Prim::Mul, {v, full_like(g, v, Scalar(p.kernel[i]))});
        };
        order = order ? g.emit(Prim::Add, {scaled(*order), k}) : k;
    }
    const ValueId none = full_like(g, *order, Scalar(-1));
    const ValueId nans = g.emit(Prim::Select, {g.emit(Prim::IsNan, {windows}), *order, none});
    const ValueId last = g.emit(Prim::Amax, {nans}, dims);
    const ValueId any = g.emit(Prim::Ge, {last, full_like(g, last, Scalar(0))});
    return g.emit(Prim::Select, {any, last, first});
}

}  // namespace

void legalize_max_pool(Rewriter& r, const Graph& old, const Node& n, bool positions) {
    const Pool p(old, n);
    Graph& g = r.out();
    const ValueId windows = pool_windows(g, p, r(n.operands[0]));
    r.map(n.results[0], g.emit(Prim::Amax, {windows}, {{"dims", p.window_dims()}}));
    if (!positions) return;
    const DType type = p.place_type();
    const Places won = places(g, p, type, winner(g, p, windows, type));
    const Places first = places(g, p, type, std::nullopt);
    // Where an element of the border wins, all are as small as it is.
    const ValueId at = g.emit(Prim::Select, {*won.inside, *won.flat, *first.flat});
    r.map(n.results[1], convert(g, at, old.type(n.results[1]).dtype));
}

}  // namespace ingot::sched
