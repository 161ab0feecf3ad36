// See legalize_convolution.h.
#include "schedule/legalize_convolution.h"

#include <algorithm>
#include <optional>

#include "schedule/contraction_model.h"
#include "schedule/convert.h"
#include "schedule/legalize_windows.h"
#include "schedule/reduction_stages.h"

namespace ingot::sched {

namespace {

bool has_taps(const Sizes& weight) {
    return !product(Sizes(weight.begin() + 2, weight.end())).is(1);
}

constexpr std::int64_t kFewChannels = 16;
constexpr std::int64_t kFewPoints = 1024;
constexpr std::int64_t kFewRows = 128;  // of a product: matrix units bring columns into order

// On a GPU, of a depthwise weight's gradient: sums of parts of the images, in all; columns that are
// worth a sum of their own for each tap; taps that a thread's registers hold the sums of.
constexpr std::int64_t kPartPoints = 20000 * 8, kPartColumns = 24, kLongestTap = 7;

bool constant_sizes(const Sizes& sizes) {
    return std::all_of(sizes.begin(), sizes.end(), [](Expr e) { return e.is_constant(); });
}

Ints spatial_dims(std::size_t first, std::size_t count) {
    Ints dims;
    for (std::size_t d = 0; d < count; ++d) dims.push_back(static_cast<std::int64_t>(first + d));
    return dims;
}

// `v` as before, its memory a copy with the dims in this order, outermost first.
ValueId copied_in_order(Graph& g, std::vector<ValueId>& in_memory, ValueId v, const Ints& order) {
    v = g.emit(Prim::Permute, {v}, {{"dims", order}});
    in_memory.push_back(v);
    Ints back(order.size());
    for (std::size_t d = 0; d < order.size(); ++d)
        back[static_cast<std::size_t>(order[d])] = static_cast<std::int64_t>(d);
    return g.emit(Prim::Permute, {v}, {{"dims", back}});
}

bool has_border(const Attrs& attrs) {
    const Sizes& padding = attrs.get<Sizes>("padding");
    return std::any_of(padding.begin(), padding.end(), [](Expr e) { return !e.is(0); });
}

// The operand of a convolution with its border of zeros.
ValueId padded(Graph& g, const Attrs& attrs, ValueId x) {
    const Sizes& padding = attrs.get<Sizes>("padding");
    Sizes border{0, 0};
    border.insert(border.end(), padding.begin(), padding.end());
    return g.emit(Prim::Pad, {x},
                  {{"low", border},
                   {"high", border},
                   {"value", is_integral(g.type(x).dtype) ? Scalar(0) : Scalar(0.0)}});
}

bool is_depthwise(const Graph& g, const Node& n) {
    if (n.prim != Prim::Conv || n.attrs.get<bool>("transposed")) return false;
    const Sizes& x = g.type(n.operands[0]).sizes;
    const Sizes& w = g.type(n.operands[1]).sizes;
    return x.size() > 2 && x[1].is_constant() && x[1].constant() > 1 && w[0] == x[1] &&
           w[1].is(1) && Expr(n.attrs.get<std::int64_t>("groups")) == x[1] && constant_sizes(w);
}

// An image that is given with its channels apart: on a GPU the library has kernels for these that
// need no compiling.
bool given_by_channels(const Graph& g, ValueId v) {
    return std::ranges::any_of(
        g.inputs(), [&](const Input& in) { return in.value == v && !in.strides[1].is(1); });
}

// sum over the window of window times weight; the weight gets a copy with channels innermost.
ValueId depthwise_sum(Graph& g, std::vector<ValueId>& in_memory, const Attrs& attrs, ValueId x,
                      ValueId w) {
    if (has_border(attrs)) x = padded(g, attrs, x);
    const Sizes weight = g.type(w).sizes;
    auto spatial = static_cast<std::int64_t>(weight.size()) - 2;
    Ints dims, sums, places{1};
    Sizes inside;
    for (std::int64_t i = 0; i < spatial; ++i) {
        dims.push_back(2 + i);
        sums.push_back(2 + spatial + i);
        inside.push_back(weight[static_cast<std::size_t>(2 + i)]);
    }
    ValueId windows = g.emit(Prim::Window, {x},
                             {{"dims", dims},
                              {"sizes", inside},
                              {"steps", attrs.get<Ints>("stride")},
                              {"dilations", attrs.get<Ints>("dilation")}});
    Expr taps = product(inside);
    w = g.emit(Prim::Reshape, {w}, {{"sizes", Sizes{weight[0], taps}}});
    w = copied_in_order(g, in_memory, w, {1, 0});
    Sizes split{weight[0]};
    split.insert(split.end(), inside.begin(), inside.end());
    w = g.emit(Prim::Reshape, {w}, {{"sizes", split}});
    places.insert(places.end(), sums.begin(), sums.end());
    const Sizes all = g.type(windows).sizes;
    w = g.emit(Prim::Broadcast, {w}, {{"sizes", all}, {"dims", places}});
    DType t = g.type(windows).dtype;
    ValueId terms =
        g.emit(Prim::Mul, {convert(g, windows, compute_type(t)), convert(g, w, compute_type(t))});
    return convert(g, g.emit(Prim::Sum, {terms}, {{"dims", sums}}), t);
}

// A plain f32 convolution of several taps with enough channels for products on matrix units.
bool suits_matrix_units(const Sizes& weight, DType dtype, std::int64_t groups) {
    constexpr std::int64_t kFewest = 32;
    return dtype == DType::F32 && groups == 1 && weight.size() > 3 && constant_sizes(weight) &&
           has_taps(weight) && weight[0].constant() >= kFewest && weight[1].constant() >= kFewest;
}

// The points of an image or of its gradient, of all images.
Expr points_of(const Type& type) { return floor_div(type.numel(), type.sizes[1]); }

// Groups of channels, and weights that matrix units read: the weight gets a copy with channels
// innermost, as the input has them.
bool wants_turned_weight(const Graph& g, const Node& n, bool matrix_units) {
    if (n.prim != Prim::Conv || n.attrs.get<bool>("transposed")) return false;
    const Type& weight = g.type(n.operands[1]);
    const std::int64_t groups = n.attrs.get<std::int64_t>("groups");
    if (groups > 1) return weight.rank() > 2 && constant_sizes(weight.sizes);
    return matrix_units && suits_matrix_units(weight.sizes, weight.dtype, groups);
}

void turned_weight(Rewriter& r, const Graph& old, std::vector<ValueId>& in_memory, const Node& n) {
    Graph& g = r.out();
    Ints order = spatial_dims(2, static_cast<std::size_t>(old.type(n.operands[1]).rank()) - 2);
    order.insert(order.begin(), 0);
    order.push_back(1);
    const ValueId w = copied_in_order(g, in_memory, r(n.operands[1]), order);
    NodeId id = g.add_with_types(n.prim, {r(n.operands[0]), w}, n.attrs, {old.type(n.results[0])},
                                 n.origin);
    r.map(n.results[0], g.node(id).results[0]);
}

// Whether generated code does a convolution with results of type `result`, of points with so many
// channels, with fewer products than there are taps.
bool is_filtered(const LegalizeOptions& options, const Attrs& attrs, const Sizes& weight,
                 const Sizes& padding, const Type& result, Expr channels, bool gradient = false) {
    const auto all = [](const auto& list, std::int64_t v) {
        return std::ranges::all_of(list, [&](const auto& e) { return Expr(e).is(v); });
    };
    if (!options.filters || result.dtype != DType::F32 || result.rank() != 4 ||
        !constant_sizes(result.sizes) || !channels.is_constant() ||
        !all(Sizes(weight.begin() + 2, weight.end()), 3) || !all(attrs.get<Ints>("stride"), 1) ||
        !all(attrs.get<Ints>("dilation"), 1) || attrs.get<bool>("transposed") ||
        attrs.get<std::int64_t>("groups") != 1)
        return false;
    return options.filters({result.sizes[0].constant(), result.sizes[2].constant(),
                            result.sizes[3].constant(), channels.constant(),
                            result.sizes[1].constant(), !all(padding, 0), gradient});
}

// The distance of two channels where the caller gives the value.
std::optional<Expr> given_channel_stride(const Graph& g, ValueId v) {
    if (g.producer(v) != nullptr) return std::nullopt;
    const Sizes& strides = g.inputs()[g.values()[v].position].strides;
    return strides.size() > 1 ? std::optional(strides[1]) : std::nullopt;
}
bool comes_channels_last(const Graph& g, ValueId v) {
    return given_channel_stride(g, v).value_or(Expr(0)).is(1);
}
// Others are read where they lie, or get the layout that convolutions like.
bool comes_row_major(const Graph& g, ValueId v) {
    return !given_channel_stride(g, v).value_or(Expr(1)).is(1);
}

// A weight that is not packed ahead: its copy has results side by side, and is a matrix turned.
bool filtered_convolution(Rewriter& r, const Graph& old, std::vector<ValueId>& in_memory,
                          const Node& n, const LegalizeOptions& options) {
    if (n.prim != Prim::Conv) return false;
    const Sizes weight = old.type(n.operands[1]).sizes;
    const Type result = old.type(n.results[0]);
    if (comes_row_major(old, n.operands[0]) ||
        !is_filtered(options, n.attrs, weight, n.attrs.get<Sizes>("padding"), result, weight[1]))
        return false;
    const Ints order =
        comes_channels_last(old, n.operands[1]) ? Ints{2, 3, 1, 0} : Ints{1, 2, 3, 0};
    Graph& g = r.out();
    const ValueId w = copied_in_order(g, in_memory, r(n.operands[1]), order);
    const NodeId id = g.add_with_types(n.prim, {r(n.operands[0]), w}, n.attrs, {result}, n.origin);
    r.map(n.results[0], g.node(id).results[0]);
    return true;
}

// Few channels, row-major: the padded copy has whole rows of a window side by side.
bool wants_padded_copy(const Graph& g, const Node& n) {
    if (n.prim != Prim::Conv && n.prim != Prim::PackedConv) return false;
    if (n.attrs.has("transposed") && n.attrs.get<bool>("transposed")) return false;
    const Sizes& x = g.type(n.operands[0]).sizes;
    return x.size() > 2 && g.producer(n.operands[0]) == nullptr &&
           known_lt(x[1], kFewChannels) == true && n.attrs.get<std::int64_t>("groups") == 1;
}

void padded_convolution(Rewriter& r, const Graph& old, std::vector<ValueId>& in_memory,
                        const Node& n) {
    Graph& g = r.out();
    ValueId x = padded(g, n.attrs, r(n.operands[0]));
    in_memory.push_back(x);
    Attrs attrs = n.attrs;
    attrs.set("padding", Sizes(n.attrs.get<Sizes>("padding").size(), Expr(0)));
    NodeId id = g.add_with_types(n.prim, {x, r(n.operands[1])}, std::move(attrs),
                                 {old.type(n.results[0])}, n.origin);
    r.map(n.results[0], g.node(id).results[0]);
}

// ---- gradients ----

// A gradient of a plain convolution of images in a type that sums are kept in.
bool has_plain_gradient(const Graph& g, const Node& n) {
    const DType t = g.type(n.results[0]).dtype;
    return (t == DType::F32 || t == DType::F64) && !n.attrs.get<bool>("transposed") &&
           constant_sizes(g.type(n.results[0]).sizes) && g.type(n.results[0]).rank() > 2;
}

// The border that the result's gradient has where its convolution with the turned weight is the
// gradient of the input; nothing where that is none, as it steps.
std::optional<Sizes> border_of_gradient(const Node& n, const Sizes& weight) {
    const Ints dilation = n.attrs.get<Ints>("dilation");
    Sizes padding = n.attrs.get<Sizes>("padding");
    for (std::size_t d = 0; d < padding.size(); ++d) {
        if (n.attrs.get<Ints>("stride")[d] != 1) return std::nullopt;
        padding[d] = Expr(dilation[d]) * (weight[d + 2] - Expr(1)) - padding[d];
        if (known_le(0, padding[d]) != true) return std::nullopt;
    }
    return padding;
}

Attrs attrs_of_gradient(const Node& n, const Sizes& padding) {
    return {{"stride", n.attrs.get<Ints>("stride")},
            {"padding", padding},
            {"dilation", n.attrs.get<Ints>("dilation")},
            {"groups", n.attrs.get<std::int64_t>("groups")},
            {"transposed", false},
            {"output_padding", Ints(padding.size(), 0)}};
}

// On a GPU, of 16 bits.
bool turned_depthwise(Rewriter& r, const Graph& old, const Node& n,
                      std::vector<ValueId>& in_memory) {
    const Type& type = old.type(n.results[0]);
    const Sizes weight = old.type(n.operands[1]).sizes;
    if (given_by_channels(old, n.operands[0])) return false;
    if (weight.size() != 4 || !constant_sizes(weight) || n.attrs.get<bool>("transposed") ||
        !is_reduced_float(type.dtype) ||
        !is_depthwise_weight(weight, n.attrs.get<std::int64_t>("groups")))
        return false;
    const auto padding = border_of_gradient(n, weight);
    if (!padding) return false;
    Graph& g = r.out();
    const ValueId w =
        g.emit(Prim::Flip, {r(n.operands[1])}, {{"dims", spatial_dims(2, weight.size() - 2)}});
    r.map(n.results[0],
          depthwise_sum(g, in_memory, attrs_of_gradient(n, *padding), r(n.operands[0]), w));
    return true;
}

// The same where generated code does with fewer products than there are taps, which it reads where
// they lie.
bool filtered_gradient(Rewriter& r, const Graph& old, const Node& n,
                       const LegalizeOptions& options) {
    const Sizes weight = old.type(n.operands[1]).sizes;
    const Type result = old.type(n.results[0]);
    const auto padding = border_of_gradient(n, weight);
    if (!padding || comes_row_major(old, n.operands[0]) ||
        !is_filtered(options, n.attrs, weight, *padding, result, weight[0]))
        return false;
    Graph& g = r.out();
    ValueId w = g.emit(Prim::Flip, {r(n.operands[1])}, {{"dims", Ints{2, 3}}});
    w = g.emit(Prim::Permute, {w}, {{"dims", Ints{1, 0, 2, 3}}});
    const NodeId id = g.add_with_types(Prim::Conv, {r(n.operands[0]), w},
                                       attrs_of_gradient(n, *padding), {result}, n.origin);
    r.map(n.results[0], g.node(id).results[0]);
    return true;
}

// With steps of one the gradient is a convolution too: of the result's gradient with the weight
// turned round and its channels exchanged. Without matrix units only where the weight is one tap or
// one channel: turning others costs what the generated code gains over the library, which is good
// at these.
bool gradient_of_input(Rewriter& r, const Graph& old, const Node& n,
                       std::vector<ValueId>& in_memory, const LegalizeOptions& options) {
    if (!has_plain_gradient(old, n)) return false;
    if (filtered_gradient(r, old, n, options)) return true;
    const bool matrix_units = options.matrix_units;
    const std::int64_t groups = n.attrs.get<std::int64_t>("groups");
    const Sizes weight = old.type(n.operands[1]).sizes;
    if (!constant_sizes(weight)) return false;
    const bool depthwise = is_depthwise_weight(weight, groups);
    const bool taps = !depthwise && has_taps(weight);
    if (!depthwise && groups != 1) return false;
    const Type& type = old.type(n.results[0]);
    if (taps && !(matrix_units && suits_matrix_units(weight, type.dtype, groups))) return false;
    const auto padding = border_of_gradient(n, weight);
    if (!padding) return false;
    Graph& g = r.out();
    ValueId w = r(n.operands[1]);
    const Ints dims = spatial_dims(2, weight.size() - 2);
    if (depthwise || taps) w = g.emit(Prim::Flip, {w}, {{"dims", dims}});
    if (taps) {
        // Rows of (tap.., result's channel), in which the channels that are asked for lie side by
        // side.
        Ints order = dims;
        order.insert(order.end(), {0, 1});
        w = copied_in_order(g, in_memory, w, order);
    }
    if (!depthwise) {
        Ints exchanged{1, 0};
        exchanged.insert(exchanged.end(), dims.begin(), dims.end());
        w = g.emit(Prim::Permute, {w}, {{"dims", exchanged}});
    }
    const ValueId grad = r(n.operands[0]);
    Attrs attrs = attrs_of_gradient(n, *padding);
    if (depthwise) {
        r.map(n.results[0], depthwise_sum(g, in_memory, attrs, grad, w));
        return true;
    }
    const NodeId id = g.add_with_types(Prim::Conv, {grad, w}, std::move(attrs),
                                       {old.type(n.results[0])}, n.origin);
    r.map(n.results[0], g.node(id).results[0]);
    return true;
}

// One channel each: products of the gradient and of the window's elements, summed over the image,
// with channels innermost in all of them.
ValueId depthwise_gradient(Graph& g, std::vector<ValueId>& in_memory, const Node& n, ValueId grad,
                           ValueId x, const Sizes& weight) {
    const std::size_t spatial = weight.size() - 2;
    const auto rank = static_cast<std::int64_t>(weight.size());
    const auto channels_last = [&](ValueId v) {
        Ints dims{0};
        for (std::int64_t d = 2; d < g.type(v).rank(); ++d) dims.push_back(d);
        dims.push_back(1);
        return g.emit(Prim::Permute, {v}, {{"dims", dims}});
    };
    const ValueId windows =
        channels_last(g.emit(Prim::Window, {x},
                             {{"dims", spatial_dims(2, spatial)},
                              {"sizes", Sizes(weight.begin() + 2, weight.end())},
                              {"steps", n.attrs.get<Ints>("stride")},
                              {"dilations", n.attrs.get<Ints>("dilation")}}));
    Ints places = spatial_dims(0, spatial + 1);
    const Ints summed = places;
    places.push_back(g.type(windows).rank() - 1);
    const ValueId spread = g.emit(Prim::Broadcast, {channels_last(grad)},
                                  {{"sizes", g.type(windows).sizes}, {"dims", places}});
    const ValueId terms = g.emit(Prim::Mul, {windows, spread});
    ValueId sums = g.emit(Prim::Sum, {terms}, {{"dims", summed}});
    in_memory.push_back(sums);
    Ints first{rank - 2};
    for (std::int64_t d = 0; d + 2 < rank; ++d) first.push_back(d);
    sums = g.emit(Prim::Permute, {sums}, {{"dims", first}});
    return g.emit(Prim::Reshape, {sums}, {{"sizes", weight}});
}

// Of images on a GPU, whose channels are innermost: each part of the images first has a sum of its
// own for each tap, which one thread keeps for some channels (window_blocks.h).
bool depthwise_gradient_in_parts(Rewriter& r, const Graph& old, const Node& n) {
    const Type& type = old.type(n.results[0]);
    const Sizes &weight = type.sizes, &image = old.type(n.operands[1]).sizes;
    const Sizes result = old.type(n.operands[0]).sizes;
    const DType read = old.type(n.operands[0]).dtype;
    if (given_by_channels(old, n.operands[0]) || given_by_channels(old, n.operands[1]))
        return false;
    if (weight.size() != 4 || n.attrs.get<bool>("transposed") || !constant_sizes(weight) ||
        !constant_sizes(image) || !constant_sizes(result) || !is_reduced_float(read) ||
        !is_depthwise_weight(weight, n.attrs.get<std::int64_t>("groups")) ||
        weight[2].constant() > kLongestTap || weight[3].constant() > kLongestTap)
        return false;
    const std::int64_t channels = weight[0].constant(), images = result[0].constant();
    const std::int64_t rows = result[2].constant(), columns = result[3].constant();
    if (images * rows * columns == 0) return false;
    const std::int64_t wanted = std::max<std::int64_t>(kPartPoints / channels, 1);
    const std::int64_t least =
        std::max<std::int64_t>(kPartColumns, 2 * weight[2].constant() * weight[3].constant());
    std::int64_t of_images = images, of_rows = 1;
    while (of_images > 1 && (of_images > wanted || images % of_images != 0 ||
                             images / of_images * rows * columns < least))
        --of_images;
    if (of_images == images)
        for (std::int64_t d = 1; d <= rows; ++d)
            if (rows % d == 0 && rows / d * columns >= least && images * of_rows < wanted)
                of_rows = d;
    Graph& g = r.out();
    ValueId x = r(n.operands[1]);
    if (has_border(n.attrs)) x = padded(g, n.attrs, x);
    const Ints channels_last{0, 2, 3, 1};
    x = g.emit(Prim::Permute, {x}, {{"dims", channels_last}});
    x = g.emit(Prim::Window, {x},
               {{"dims", Ints{1, 2}},
                {"sizes", Sizes{weight[2], weight[3]}},
                {"steps", n.attrs.get<Ints>("stride")},
                {"dilations", n.attrs.get<Ints>("dilation")}});
    x = g.emit(Prim::Permute, {x}, {{"dims", Ints{0, 1, 2, 4, 5, 3}}});
    const ValueId grad = g.emit(Prim::Permute, {r(n.operands[0])}, {{"dims", channels_last}});
    const ValueId spread =
        g.emit(Prim::Broadcast, {grad}, {{"sizes", g.type(x).sizes}, {"dims", Ints{0, 1, 2, 5}}});
    const ValueId terms =
        g.emit(Prim::Mul, {convert(g, x, DType::F32), convert(g, spread, DType::F32)});
    const ValueId in_parts =
        g.emit(Prim::Reshape, {terms},
               {{"sizes", Sizes{of_images, images / of_images, of_rows, rows / of_rows, columns,
                                weight[2], weight[3], weight[0]}}});
    const ValueId parts = g.emit(Prim::Sum, {in_parts}, {{"dims", Ints{1, 3, 4}}});
    std::optional<ValueId> sums = over_columns(g, Prim::Sum, parts, Ints{0, 1});
    if (!sums) sums = g.emit(Prim::Sum, {parts}, {{"dims", Ints{0, 1}}});
    ValueId v = g.emit(Prim::Permute, {*sums}, {{"dims", Ints{2, 0, 1}}});
    v = g.emit(Prim::Reshape, {v}, {{"sizes", weight}});
    r.map(n.results[0], convert(g, v, type.dtype));
    return true;
}

// Whether the caller takes the value as an output whose channels are innermost.
bool leaves_channels_last(const Graph& g, ValueId v) {
    return std::ranges::any_of(g.outputs(), [&](const Output& o) {
        return o.value == v && o.strides.size() > 1 && o.strides[1].is(1);
    });
}

// An operand whose points' channels shall be neighbours. What a graph computes mostly has them so.
ValueId with_channels_last(Graph& g, std::vector<ValueId>& in_memory, ValueId v, bool comes_so) {
    return comes_so ? v : copied_in_order(g, in_memory, v, {0, 2, 3, 1});
}

// A product of the gradient, turned, with the windows of the input; with its border of zeros the
// input has them at even distances. The product gives channels innermost, the copy the order of
// weights.
bool gradient_of_weight(Rewriter& r, const Graph& old, const Node& n,
                        std::vector<ValueId>& in_memory, const LegalizeOptions& options) {
    if (!has_plain_gradient(old, n)) return false;
    const std::int64_t groups = n.attrs.get<std::int64_t>("groups");
    const Sizes weight = old.type(n.results[0]).sizes;
    const bool depthwise = is_depthwise_weight(weight, groups);
    if (groups != 1 && !depthwise) return false;
    Graph& g = r.out();
    ValueId grad = r(n.operands[0]);
    // Where few points are summed the library takes up to four times as long as the products do.
    // It is good at large images, and few channels make short rows.
    const Expr points = points_of(g.type(grad));
    const bool units = options.matrix_units && mod(weight[1], Expr(kMatrixColumns)).is(0) &&
                       known_le(kFewRows, weight[0]) == true &&
                       suits_matrix_units(weight, old.type(n.results[0]).dtype, groups);
    const bool filtered = is_filtered(options, n.attrs, weight, n.attrs.get<Sizes>("padding"),
                                      old.type(n.operands[0]), weight[1], true);
    if (has_taps(weight) && !units && !filtered && known_le(points, kFewPoints) != true)
        return false;
    if (!depthwise && known_le(kFewChannels, weight[1]) != true) return false;
    ValueId x = r(n.operands[1]);
    if (filtered) {
        const ValueId of_result = n.operands[0];
        const bool computed = old.producer(of_result) != nullptr;
        grad =
            with_channels_last(g, in_memory, grad, computed || comes_channels_last(old, of_result));
        if (has_border(n.attrs)) x = padded(g, n.attrs, x);
        x = with_channels_last(g, in_memory, x,
                               !has_border(n.attrs) && comes_channels_last(old, n.operands[1]));
    } else if (has_border(n.attrs)) {
        x = padded(g, n.attrs, x);
        in_memory.push_back(x);
    }
    if (depthwise) {
        r.map(n.results[0], depthwise_gradient(g, in_memory, n, grad, x, weight));
        return true;
    }
    Attrs attrs = n.attrs;
    attrs.set("padding", Sizes(weight.size() - 2, Expr(0)));
    const NodeId id =
        g.add_with_types(n.prim, {grad, x}, std::move(attrs), {old.type(n.results[0])}, n.origin);
    ValueId v = g.node(id).results[0];
    if (has_taps(weight) && !leaves_channels_last(old, n.results[0])) {
        in_memory.push_back(v);
        v = g.emit(Prim::Reshape, {v}, {{"sizes", weight}});
    }
    r.map(n.results[0], v);
    return true;
}

}  // namespace

bool legalize_convolution(Rewriter& r, const Graph& old, const Node& n,
                          std::vector<ValueId>& in_memory, const LegalizeOptions& options) {
    const bool gpu = options.gpu;
    if (n.prim == Prim::ConvGradInput && gpu)
        return turned_depthwise(r, old, n, in_memory) ||
               gathered_gradient(r, old, n, in_memory, gpu);
    if (n.prim == Prim::ConvGradInput) return gradient_of_input(r, old, n, in_memory, options);
    if (n.prim == Prim::ConvGradWeight)
        return gpu ? depthwise_gradient_in_parts(r, old, n)
                   : gradient_of_weight(r, old, n, in_memory, options);
    const bool librarys = gpu && is_reduced_float(old.type(n.operands[0]).dtype) &&
                          given_by_channels(old, n.operands[0]);
    if (is_depthwise(old, n) && !librarys) {
        const ValueId x = r(n.operands[0]), w = r(n.operands[1]);
        r.map(n.results[0], depthwise_sum(r.out(), in_memory, n.attrs, x, w));
        return true;
    }
    if (filtered_convolution(r, old, in_memory, n, options)) return true;
    if (wants_turned_weight(old, n, options.matrix_units)) {
        turned_weight(r, old, in_memory, n);
        return true;
    }
    // A GPU's library takes few channels that are given apart as they are: see layout.cpp.
    if (!wants_padded_copy(old, n) ||
        (gpu && old.type(n.operands[0]).dtype == DType::F32 && old.type(n.operands[0]).rank() > 3))
        return false;
    padded_convolution(r, old, in_memory, n);
    return true;
}

}  // namespace ingot::sched
