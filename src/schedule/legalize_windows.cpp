// See legalize_windows.h.
#include "schedule/legalize_windows.h"

#include <optional>

#include "schedule/convert.h"
#include "schedule/from_image.h"

namespace ingot::sched {

namespace {

constexpr std::int64_t kWindows = 4;  // that an element may lie in: each costs two accesses
const Ints kChannelsLast{0, 2, 3, 1}, kChannelsFirst{0, 3, 1, 2};

ValueId permuted(Graph& g, ValueId v, const Ints& dims) {
    return g.emit(Prim::Permute, {v}, {{"dims", dims}});
}

ValueId reshaped(Graph& g, ValueId v, const Sizes& sizes) {
    return g.emit(Prim::Reshape, {v}, {{"sizes", sizes}});
}

/// The windows that `a` says, of images of these sizes and type; nothing where they are too many.
std::optional<ImageWindows> windows_of(const Attrs& a, const Type& image, const Type& result,
                                       bool gpu) {
    if (image.rank() != 4 || result.rank() != 4 || !is_gathered_type(image.dtype, gpu))
        return std::nullopt;
    ImageWindows w{a.get<Ints>("kernel"), a.get<Ints>("stride"), a.get<Ints>("padding"), {}, {}};
    for (std::size_t d : {2U, 3U}) {
        if (!image.sizes[d].is_constant() || !result.sizes[d].is_constant()) return std::nullopt;
        w.image.push_back(image.sizes[d].constant());
        w.result.push_back(result.sizes[d].constant());
    }
    if (!few_windows(w.kernel, w.stride) || w.image[0] * w.image[1] > kLargestImage)
        return std::nullopt;
    return w;
}

/// The sum over the windows that an element may lie in, of what `term` makes of each, given how far
/// back the window is: the first window's first, as eager adds them. The result has memory, with
/// channels innermost.
template <class Term>
ValueId sum_of_windows(Graph& g, std::vector<ValueId>& in_memory, const ImageWindows& w, DType type,
                       const Term& term) {
    std::optional<ValueId> sum;
    for (std::int64_t row = w.reach(0); row-- > 0;)
        for (std::int64_t column = w.reach(1); column-- > 0;) {
            const ValueId one = term(Ints{row, column});
            sum = sum ? g.emit(Prim::Add, {*sum, one}) : one;
        }
    const ValueId whole = convert(g, *sum, type);
    in_memory.push_back(whole);
    return permuted(g, whole, kChannelsFirst);
}

/// Each element's place in its image: row * columns + column.
ValueId places(Graph& g, const Sizes& sizes) {
    const auto counting = [&](std::int64_t dim, const Expr step) {
        return g.emit(Prim::Iota, {},
                      {{"dtype", DType::I32},
                       {"sizes", sizes},
                       {"dim", dim},
                       {"start", Scalar(0)},
                       {"step", Scalar(step.constant())}});
    };
    return g.emit(Prim::Add, {counting(1, sizes[2]), counting(2, 1)});
}

// An element gets the gradients of those windows that name its place.
ValueId pooling(Graph& g, std::vector<ValueId>& in_memory, const ImageWindows& w, ValueId grad,
                ValueId indices) {
    const DType type = g.type(grad).dtype, sum = compute_type(type);
    grad = permuted(g, grad, kChannelsLast);
    indices = convert(g, permuted(g, indices, kChannelsLast), DType::I32);
    const Sizes sizes{g.type(grad).sizes[0], w.image[0], w.image[1], g.type(grad).sizes[3]};
    const ValueId here = places(g, sizes);
    const ValueId nothing =
        g.emit(Prim::Full, {}, {{"dtype", sum}, {"sizes", sizes}, {"value", Scalar(0.0)}});
    return sum_of_windows(g, in_memory, w, type, [&](const Ints& back) {
        const ValueId named = from_image(g, indices, w, back, Scalar(-1));
        const ValueId of_window = convert(g, from_image(g, grad, w, back, 0.0), sum);
        return g.emit(Prim::Select, {g.emit(Prim::Eq, {named, here}), of_window, nothing});
    });
}

// The tap that the window so far back has at each element, as wide as the images: taps (row +
// padding) % stride + back * stride, zero where the window has none.
ValueId taps(Graph& g, const ImageWindows& w, ValueId weight, const Ints& back,
             const Sizes& sizes) {
    Sizes high(3, Expr(0)), starts(3, Expr(0)), ends = g.type(weight).sizes;
    Sizes apart, joined, from(3, Expr(0)), to;
    for (std::size_t d = 0; d < 2; ++d) {
        high[d] = w.reach(d) * w.stride[d] - w.kernel[d];
        starts[d] = back[d] * w.stride[d];
        ends[d] = (back[d] + 1) * w.stride[d];
        const std::int64_t times = (w.image[d] + w.padding[d] + w.stride[d] - 1) / w.stride[d];
        apart.insert(apart.end(), {Expr(times), Expr(w.stride[d])});
        joined.emplace_back(times * w.stride[d]);
        from[d] = w.padding[d];
        to.emplace_back(w.padding[d] + w.image[d]);
    }
    for (Sizes* list : {&apart, &joined, &to}) list->push_back(sizes[3]);
    weight = g.emit(Prim::Pad, {weight},
                    {{"low", Sizes(3, Expr(0))}, {"high", high}, {"value", Scalar(0.0)}});
    const Ints ones(3, 1);
    weight = g.emit(Prim::Slice, {weight}, {{"starts", starts}, {"ends", ends}, {"steps", ones}});
    weight = g.emit(Prim::Broadcast, {weight}, {{"sizes", apart}, {"dims", Ints{1, 3, 4}}});
    weight = reshaped(g, weight, joined);
    weight = g.emit(Prim::Slice, {weight}, {{"starts", from}, {"ends", to}, {"steps", ones}});
    return g.emit(Prim::Broadcast, {weight}, {{"sizes", sizes}, {"dims", Ints{1, 2, 3}}});
}

ValueId depthwise(Graph& g, std::vector<ValueId>& in_memory, const ImageWindows& w, ValueId grad,
                  ValueId weight) {
    const DType type = g.type(grad).dtype, sum = compute_type(type);
    const Sizes of_weight = g.type(weight).sizes;
    grad = permuted(g, grad, kChannelsLast);
    const Sizes sizes{g.type(grad).sizes[0], w.image[0], w.image[1], of_weight[0]};
    weight = reshaped(g, weight, {of_weight[0], of_weight[2], of_weight[3]});
    weight = permuted(g, weight, {1, 2, 0});
    in_memory.push_back(weight);
    return sum_of_windows(g, in_memory, w, type, [&](const Ints& back) {
        const ValueId tap = convert(g, taps(g, w, weight, back, sizes), sum);
        const ValueId of_window = convert(g, from_image(g, grad, w, back, 0.0), sum);
        return g.emit(Prim::Mul, {of_window, tap});
    });
}

/// What `windows_of` asks for, of a depthwise convolution of images that is plain.
std::optional<Attrs> depthwise_windows(const Graph& g, const Node& n) {
    const Type &weight = g.type(n.operands[1]), &image = g.type(n.results[0]);
    const std::int64_t groups = n.attrs.get<std::int64_t>("groups");
    if (weight.rank() != 4 || !is_depthwise_weight(weight.sizes, groups) ||
        !image.sizes[1].is(groups) || n.attrs.get<bool>("transposed") ||
        n.attrs.get<Ints>("dilation") != Ints{1, 1})
        return std::nullopt;
    Ints kernel, padding;
    for (std::size_t d = 0; d < 2; ++d) {
        const Expr border = n.attrs.get<Sizes>("padding")[d];
        if (!weight.sizes[d + 2].is_constant() || !border.is_constant()) return std::nullopt;
        kernel.push_back(weight.sizes[d + 2].constant());
        padding.push_back(border.constant());
    }
    return Attrs{{"kernel", kernel}, {"stride", n.attrs.get<Ints>("stride")}, {"padding", padding}};
}

}  // namespace

bool is_gathered_type(DType type, bool gpu) {
    return gpu ? is_reduced_float(type) : type == DType::F32 || type == DType::F64;
}

bool few_windows(const Ints& kernel, const Ints& stride) {
    if (kernel.size() != 2 || stride.size() != 2) return false;
    const ImageWindows w{kernel, stride, {}, {}, {}};
    return w.reach(0) * w.reach(1) <= kWindows;
}

bool is_depthwise_weight(const Sizes& weight, std::int64_t groups) {
    return groups > 1 && weight[0].is(groups) && weight[1].is(1);
}

bool gathered_gradient(Rewriter& r, const Graph& old, const Node& n,
                       std::vector<ValueId>& in_memory, bool gpu) {
    const bool pools = n.prim == Prim::MaxPoolGrad;
    std::optional<Attrs> attrs;
    if (!pools)
        attrs = depthwise_windows(old, n);
    else if (n.attrs.has("kernel"))
        attrs = n.attrs;
    if (!attrs) return false;
    const auto windows = windows_of(*attrs, old.type(n.results[0]), old.type(n.operands[0]), gpu);
    if (!windows) return false;
    const auto make = pools ? pooling : depthwise;
    r.map(n.results[0], make(r.out(), in_memory, *windows, r(n.operands[0]), r(n.operands[1])));
    return true;
}

}  // namespace ingot::sched
