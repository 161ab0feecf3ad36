// Packs frozen right sides into panels, so that the generated kernels read them front to back.
//
//     matmul(x, w)   packed_matmul(x, p): p[b.., n / P, k, P] holds w[b.., k, n], zeros past n
//     conv(x, w)     packed_conv(x, p):   p[o / P, kernel * c, P] holds w[o, c, kernel..], the
//                    channel fastest behind the kernel's position
//
// The packing is written in movement prims over the frozen weight: the plan runs it once per
// version of the parameter. Whether and how wide is asked of the context, which knows the machine
// and the kernels it has. Linear.
#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

class Packer {
  public:
    Packer(const Graph& g, const PassContext& context)
        : old_(g), context_(context), frozen_(frozen_values(g)), rewriter_(g) {}

    Graph run() {
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            const Node& n = old_.node(id);
            std::optional<ValueId> packed;
            if (n.prim == Prim::Matmul) packed = matmul(n);
            if (n.prim == Prim::Conv) packed = conv(n);
            if (packed)
                rewriter_.map(n.results[0], *packed);
            else
                rewriter_.copy(id);
        }
        return rewriter_.finish();
    }

  private:
    bool has_frozen_right_side(const Node& n) const {
        return frozen_[n.operands[1]] && !frozen_[n.operands[0]];
    }

    // `w` with zeros behind `dim` up to a multiple of the panel.
    ValueId padded(ValueId w, std::size_t dim, std::int64_t panel) {
        Graph& g = rewriter_.out();
        std::int64_t over = g.type(w).sizes[dim].constant() % panel;
        if (over == 0) return w;
        Sizes low(g.type(w).sizes.size(), 0), high = low;
        high[dim] = panel - over;
        DType t = g.type(w).dtype;
        Scalar zero = is_integral(t) ? Scalar(std::int64_t{0}) : Scalar(0.0);
        return g.emit(Prim::Pad, {w}, {{"low", low}, {"high", high}, {"value", zero}});
    }

    std::optional<ValueId> matmul(const Node& n) {
        if (!has_frozen_right_side(n)) return std::nullopt;
        const Sizes weight = old_.type(n.operands[1]).sizes;
        const Type result = old_.type(n.results[0]);
        const std::size_t rank = weight.size();
        Expr columns = weight[rank - 1], k = weight[rank - 2];
        int panel = context_.panel_width({result.sizes[rank - 2], columns, k, result.dtype, false});
        if (panel <= 0 || columns.is(0) || k.is(0)) return std::nullopt;
        Graph& g = rewriter_.out();
        ValueId w = padded(rewriter_(n.operands[1]), rank - 1, panel);
        Sizes split = g.type(w).sizes;
        Expr panels = floor_div(split.back(), panel);
        split.back() = panels;
        split.push_back(panel);
        w = g.emit(Prim::Reshape, {w}, {{"sizes", split}});
        Ints dims;
        for (std::size_t i = 0; i + 2 < rank; ++i) dims.push_back(static_cast<std::int64_t>(i));
        auto k_dim = static_cast<std::int64_t>(rank - 2);
        dims.insert(dims.end(), {k_dim + 1, k_dim, k_dim + 2});
        w = g.emit(Prim::Permute, {w}, {{"dims", dims}});
        NodeId packed =
            g.add_with_types(Prim::PackedMatmul, {rewriter_(n.operands[0]), w},
                             {{"n", columns}, {"layout", layout(panel)}}, {result}, n.origin);
        return g.node(packed).results[0];
    }

    std::optional<ValueId> conv(const Node& n) {
        if (!has_frozen_right_side(n) || n.attrs.get<bool>("transposed") ||
            n.attrs.get<std::int64_t>("groups") != 1)
            return std::nullopt;
        const Sizes weight = old_.type(n.operands[1]).sizes;
        const Type result = old_.type(n.results[0]);
        Expr k = product(std::span(weight).subspan(1));
        Expr rows = floor_div(result.numel(), weight[0]);
        if (weight[0].is(0) || k.is(0)) return std::nullopt;
        int panel = context_.panel_width({rows, weight[0], k, result.dtype, true});
        if (panel <= 0) return std::nullopt;
        Graph& g = rewriter_.out();
        ValueId w = padded(rewriter_(n.operands[1]), 0, panel);
        Sizes split = g.type(w).sizes;
        Expr panels = floor_div(split[0], panel);
        split[0] = panels;
        split.insert(split.begin() + 1, panel);
        w = g.emit(Prim::Reshape, {w}, {{"sizes", split}});
        // [o / P, P, c, kernel..] to [o / P, kernel.., c, P]
        Ints dims{0};
        for (std::size_t i = 3; i < split.size(); ++i) dims.push_back(static_cast<std::int64_t>(i));
        dims.insert(dims.end(), {2, 1});
        w = g.emit(Prim::Permute, {w}, {{"dims", dims}});
        w = g.emit(Prim::Reshape, {w}, {{"sizes", Sizes{panels, k, panel}}});
        Attrs attrs{{"stride", n.attrs.get<Ints>("stride")},
                    {"padding", n.attrs.get<Sizes>("padding")},
                    {"dilation", n.attrs.get<Ints>("dilation")},
                    {"groups", std::int64_t{1}},
                    {"weight_sizes", weight},
                    {"layout", layout(panel)}};
        NodeId packed = g.add_with_types(Prim::PackedConv, {rewriter_(n.operands[0]), w},
                                         std::move(attrs), {result}, n.origin);
        return g.node(packed).results[0];
    }

    static std::string layout(int panel) { return "panel" + std::to_string(panel); }

    const Graph& old_;
    const PassContext& context_;
    std::vector<bool> frozen_;
    Rewriter rewriter_;
};

}  // namespace

Graph pack_contractions(const Graph& graph, const PassContext& context) {
    PassContext asked = context;
    if (!asked.panel_width) asked.panel_width = [](const PackQuery&) { return 0; };
    return Packer(graph, asked).run();
}

}  // namespace ingot
