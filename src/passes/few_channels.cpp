// Convolutions of images of few channels (the three of a photograph): tensor cores load at least
// eight numbers at once, so that vendors' kernels fill the channels up with zeros, copy by copy,
// and then multiply mostly by zeros.
//
// - Windows that do not overlap (a transformer's patches) are written side by side: the convolution
//   is a product of matrices, and so is its weight's gradient.
// - Others with steps are convolutions of blocks: the step's pixels of each block become channels,
//   the window counts blocks, and what it has too many is zero in the weight.
//
// Forward and gradient read the same gathered image. Only of types of two bytes, for vendors'
// kernels on GPUs. Linear.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

constexpr std::int64_t kAtOnce = 8;  // numbers of two bytes that tensor cores load together

std::int64_t rounded_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// A convolution over the two dims of images, in numbers.
struct Stem {
    Expr images;
    std::int64_t channels, filters;
    Ints size, window, step, border, count;  // by spatial dim; count: of windows

    std::int64_t numbers() const { return channels * window[0] * window[1]; }
    bool as_product() const {
        return step[0] >= window[0] && step[1] >= window[1] && border == Ints{0, 0};
    }
    bool as_blocks() const { return step[0] * step[1] > 1; }

    // Blocks before the first pixel, pixels that stand before it in its block, blocks that a window
    // meets.
    std::int64_t before(std::size_t d) const { return (border[d] + step[d] - 1) / step[d]; }
    std::int64_t shift(std::size_t d) const { return before(d) * step[d] - border[d]; }
    std::int64_t blocks(std::size_t d) const {
        return (window[d] + shift(d) + step[d] - 1) / step[d];
    }
    std::int64_t block_channels() const { return channels * step[0] * step[1]; }
    std::int64_t filled_channels() const { return rounded_up(block_channels(), kAtOnce); }
};

Sizes to_sizes(const Ints& v) { return {v.begin(), v.end()}; }

class Rebuilder {
  public:
    explicit Rebuilder(const Graph& g) : old_(g), rewriter_(g) {}

    Graph run() {
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            const Node& n = old_.node(id);
            if (const auto stem = stem_of(n))
                rewriter_.map(n.results[0], rebuilt(n, *stem));
            else
                rewriter_.copy(id);
        }
        return rewriter_.finish();
    }

  private:
    std::optional<Stem> stem_of(const Node& n) const {
        const bool gradient = n.prim == Prim::ConvGradWeight;
        const bool fused = n.prim == Prim::ConvRelu;  // with what follows it
        if ((n.prim != Prim::Conv && !gradient && !fused) ||
            (!fused && n.attrs.get<bool>("transposed")) ||
            n.attrs.get<std::int64_t>("groups") != 1 || n.attrs.get<Ints>("dilation") != Ints{1, 1})
            return std::nullopt;
        const Type& image = old_.type(n.operands[gradient ? 1 : 0]);
        const Sizes& weight = old_.type(gradient ? n.results[0] : n.operands[1]).sizes;
        const Sizes& result = old_.type(gradient ? n.operands[0] : n.results[0]).sizes;
        if (bytes(image.dtype) != 2 || !is_float(image.dtype)) return std::nullopt;
        const auto numbers = [](const Sizes& sizes, std::size_t from) {
            std::optional<Ints> v{Ints{}};
            for (std::size_t d = from; d < sizes.size() && v; ++d)
                if (sizes[d].is_constant())
                    v->push_back(sizes[d].constant());
                else
                    v.reset();
            return v;
        };
        const auto i = numbers(image.sizes, 1), w = numbers(weight, 0), r = numbers(result, 1),
                   border = numbers(n.attrs.get<Sizes>("padding"), 0);
        if (!i || !w || !r || !border || (*i)[0] >= kAtOnce) return std::nullopt;
        Stem s{image.sizes[0],
               (*w)[1],
               (*w)[0],
               {(*i)[1], (*i)[2]},
               {(*w)[2], (*w)[3]},
               n.attrs.get<Ints>("stride"),
               *border,
               {(*r)[1], (*r)[2]}};
        for (std::int64_t v : {s.count[0], s.count[1], s.filters, s.numbers()})
            if (v == 0) return std::nullopt;
        if (!(s.as_product() && !fused) && !s.as_blocks()) return std::nullopt;
        return s;
    }

    ValueId rebuilt(const Node& n, const Stem& s) {
        const bool gradient = n.prim == Prim::ConvGradWeight;
        origin_ = n.origin;
        const ValueId first = rewriter_(n.operands[0]), second = rewriter_(n.operands[1]);
        const ValueId image = gathered(gradient ? second : first, s);
        if (gradient)
            return s.as_product() ? product_gradient(first, image, s)
                                  : block_gradient(first, image, s);
        if (n.prim == Prim::ConvRelu) return block_convolution(n, image, second, s);
        return s.as_product() ? product(image, second, s) : block_convolution(n, image, second, s);
    }

    // ---- emitting ----

    ValueId emit(Prim prim, std::vector<ValueId> operands, Attrs attrs = {}) {
        return rewriter_.out().emit(prim, std::move(operands), std::move(attrs), origin_);
    }
    ValueId reshaped(ValueId v, Sizes sizes) {
        return emit(Prim::Reshape, {v}, {{"sizes", std::move(sizes)}});
    }
    ValueId permuted(ValueId v, Ints dims) {
        return emit(Prim::Permute, {v}, {{"dims", std::move(dims)}});
    }
    /// Zeros around the value; negative numbers cut.
    ValueId padded(ValueId v, const Ints& low, const Ints& high) {
        const auto none = [](std::int64_t n) { return n == 0; };
        if (std::ranges::all_of(low, none) && std::ranges::all_of(high, none)) return v;
        return emit(Prim::Pad, {v},
                    {{"low", to_sizes(low)}, {"high", to_sizes(high)}, {"value", Scalar(0.0)}});
    }
    ValueId part(ValueId v, const Ints& from, const Ints& sizes) {
        Ints ends = from;
        for (std::size_t d = 0; d < ends.size(); ++d) ends[d] += sizes[d];
        if (to_sizes(sizes) == rewriter_.out().type(v).sizes) return v;
        return emit(Prim::Slice, {v},
                    {{"starts", to_sizes(from)},
                     {"ends", to_sizes(ends)},
                     {"steps", Ints(from.size(), 1)}});
    }

    /// The image as the convolution and its gradient read it.
    ValueId gathered(ValueId image, const Stem& s) {
        const auto key = std::tuple(image, s.window, s.step, s.border);
        if (const auto known = gathered_.find(key); known != gathered_.end()) return known->second;
        const ValueId v = s.as_product() ? windows(image, s) : blocks_of(image, s);
        gathered_.emplace(key, v);
        return v;
    }

    // ---- products ----

    static Expr rows(const Stem& s) { return s.images * Expr(s.count[0] * s.count[1]); }

    /// A row for each window.
    ValueId windows(ValueId image, const Stem& s) {
        Ints low{0, 0}, high{0, 0};
        for (std::size_t d = 0; d < 2; ++d) {
            low.push_back(s.border[d]);
            high.push_back((s.count[d] - 1) * s.step[d] + s.window[d] - s.size[d] - s.border[d]);
        }
        ValueId v = emit(Prim::Window, {padded(image, low, high)},
                         {{"dims", Ints{2, 3}},
                          {"sizes", to_sizes(s.window)},
                          {"steps", s.step},
                          {"dilations", Ints{1, 1}}});
        v = reshaped(permuted(v, {0, 2, 3, 1, 4, 5}), {rows(s), Expr(s.numbers())});
        return padded(v, {0, 0}, {0, rounded_up(s.numbers(), kAtOnce) - s.numbers()});
    }
    ValueId product(ValueId image, ValueId weight, const Stem& s) {
        ValueId w = reshaped(weight, {Expr(s.filters), Expr(s.numbers())});
        w = padded(w, {0, 0}, {0, rounded_up(s.numbers(), kAtOnce) - s.numbers()});
        const ValueId v = emit(Prim::Matmul, {image, permuted(w, {1, 0})});
        return permuted(reshaped(v, {s.images, s.count[0], s.count[1], s.filters}), {0, 3, 1, 2});
    }
    ValueId product_gradient(ValueId grad, ValueId image, const Stem& s) {
        const ValueId g = reshaped(permuted(grad, {0, 2, 3, 1}), {rows(s), Expr(s.filters)});
        const ValueId v = emit(Prim::Matmul, {permuted(g, {1, 0}), image});
        return reshaped(part(v, {0, 0}, {s.filters, s.numbers()}),
                        {s.filters, s.channels, s.window[0], s.window[1]});
    }

    // ---- blocks ----

    /// Pixels of a block become channels: by channel, row and column, so that places are found by
    /// shifts.
    ValueId as_channels(ValueId v, const Stem& s, Expr outermost, const Ints& counts) {
        v = reshaped(v, {outermost, s.channels, counts[0], s.step[0], counts[1], s.step[1]});
        v = reshaped(permuted(v, {0, 1, 3, 5, 2, 4}),
                     {outermost, s.block_channels(), counts[0], counts[1]});
        return padded(v, {0, 0, 0, 0}, {0, s.filled_channels() - s.block_channels(), 0, 0});
    }
    ValueId blocks_of(ValueId image, const Stem& s) {
        Ints low{0, 0}, high{0, 0}, counts;
        for (std::size_t d = 0; d < 2; ++d) {
            counts.push_back(s.count[d] + s.blocks(d) - 1);
            low.push_back(s.before(d) * s.step[d]);
            high.push_back(counts[d] * s.step[d] - s.size[d] - low.back());
        }
        return as_channels(padded(image, low, high), s, s.images, counts);
    }
    static Attrs block_attrs() {
        return {{"stride", Ints{1, 1}},   {"padding", Sizes{0, 0}},
                {"dilation", Ints{1, 1}}, {"groups", std::int64_t{1}},
                {"transposed", false},    {"output_padding", Ints{0, 0}}};
    }
    ValueId block_convolution(const Node& n, ValueId image, ValueId weight, const Stem& s) {
        Ints low{0, 0}, high{0, 0};
        for (std::size_t d = 0; d < 2; ++d) {
            low.push_back(s.shift(d));
            high.push_back(s.blocks(d) * s.step[d] - s.window[d] - s.shift(d));
        }
        const ValueId w =
            as_channels(padded(weight, low, high), s, s.filters, {s.blocks(0), s.blocks(1)});
        if (n.prim == Prim::Conv) return emit(Prim::Conv, {image, w}, block_attrs());
        std::vector<ValueId> operands{image, w};
        for (std::size_t i = 2; i < n.operands.size(); ++i)
            operands.push_back(rewriter_(n.operands[i]));
        return emit(Prim::ConvRelu, std::move(operands),
                    {{"stride", Ints{1, 1}},
                     {"padding", Sizes{0, 0}},
                     {"dilation", Ints{1, 1}},
                     {"groups", std::int64_t{1}}});
    }
    ValueId block_gradient(ValueId grad, ValueId image, const Stem& s) {
        Attrs attrs = block_attrs();
        attrs.set("sizes", Sizes{s.filters, s.filled_channels(), s.blocks(0), s.blocks(1)});
        ValueId v = emit(Prim::ConvGradWeight, {grad, image}, std::move(attrs));
        v = part(v, {0, 0, 0, 0}, {s.filters, s.block_channels(), s.blocks(0), s.blocks(1)});
        v = reshaped(v, {s.filters, s.channels, s.step[0], s.step[1], s.blocks(0), s.blocks(1)});
        v = reshaped(permuted(v, {0, 1, 4, 2, 5, 3}),
                     {s.filters, s.channels, s.blocks(0) * s.step[0], s.blocks(1) * s.step[1]});
        return part(v, {0, 0, s.shift(0), s.shift(1)},
                    {s.filters, s.channels, s.window[0], s.window[1]});
    }

    const Graph& old_;
    std::string origin_;
    std::map<std::tuple<ValueId, Ints, Ints, Ints>, ValueId>
        gathered_;  // by image of the new graph
    Rewriter rewriter_;
};

}  // namespace

Graph few_channels(const Graph& graph, const PassContext& context) {
    if (!context.vendor_epilogues) return graph;
    return Rebuilder(graph).run();
}

}  // namespace ingot
