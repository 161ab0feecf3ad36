// A convolution, the batch norm behind it, a residual and a ReLU become one prim where the vendor's
// library does all of it in its kernel: what a GPU's program leaves to cuDNN, in 16 bits.
//
//     relu(norm(conv(x, w)) [+ z])          becomes   conv_relu(x, w * scale, shift [, z])
//
// The norm's scale goes into the frozen weight before that is rounded, its shift becomes the bias,
// and the sums are rounded once, not after each step: closer to the exact result than eager, but
// not to its bits, so not where the graph rounds intermediates. Where the residual is itself a
// convolution and its norm, as at the beginning of a residual network's stages, its scale goes into
// its own weight and its shift into the same bias. Only what nobody else reads. Linear.
#include <optional>

#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

/// A convolution of 16 bits and the frozen numbers of its channels: scale * (conv + bias) + shift.
struct Normed {
    NodeId conv;
    ValueId bias = kNone, scale = kNone, shift = kNone;
};

struct Fused {
    Normed main;
    ValueId residual = kNone;
    std::optional<Normed> side;  // what the residual is
};

class ConvolutionFuser {
  public:
    explicit ConvolutionFuser(const Graph& g)
        : old_(g), frozen_(frozen_values(g)), uses_(use_counts(g)), rewriter_(g) {}

    Graph run() {
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            const Node& n = old_.node(id);
            if (const auto fused = match(n))
                rewriter_.map(n.results[0], emit(*fused, n));
            else
                rewriter_.copy(id);  // what is fused now is dead, and goes in a later pass
        }
        return rewriter_.finish();
    }

  private:
    bool is_narrow(ValueId v) const {
        const DType t = old_.type(v).dtype;
        return is_float(t) && bytes(t) == 2;
    }

    /// The node behind conversions that makes `v`, where nothing else reads any of it.
    const Node* maker(ValueId v) const {
        while (uses_[v] == 1) {
            const Node* n = old_.producer(v);
            if (n == nullptr || n->prim != Prim::Convert) return n;
            if (!is_float(old_.type(n->operands[0]).dtype)) return nullptr;
            v = n->operands[0];
        }
        return nullptr;
    }
    /// The frozen numbers [c] that `v` has for each channel of images, or kNone.
    ValueId per_channel(ValueId v) const {
        const Node* n = old_.producer(v);
        while (n != nullptr && n->prim == Prim::Convert && is_float(old_.type(v).dtype))
            n = old_.producer(n->operands[0]);
        if (n == nullptr || n->prim != Prim::Broadcast || !frozen_[n->operands[0]] ||
            n->attrs.get<Ints>("dims") != Ints{1} || !is_float(old_.type(n->operands[0]).dtype))
            return kNone;
        const Type &spread = old_.type(n->results[0]), &numbers = old_.type(n->operands[0]);
        return numbers.sizes[0] == spread.sizes[1] ? n->operands[0] : kNone;
    }
    bool serves(const Node& n) const {
        if (n.prim != Prim::Conv || !is_narrow(n.results[0]) || !frozen_[n.operands[1]])
            return false;
        const Type& image = old_.type(n.operands[0]);
        if (image.rank() != 4 || n.attrs.get<bool>("transposed") ||
            n.attrs.get<std::int64_t>("groups") != 1)
            return false;
        // Patches of few channels become rows of a product (few_channels).
        const Sizes& weight = old_.type(n.operands[1]).sizes;
        const Ints& stride = n.attrs.get<Ints>("stride");
        return known_le(Expr(8), image.sizes[1]) == true ||
               known_lt(Expr(stride[0]), weight[2]) == true;
    }

    /// What `of` finds in one operand of the `prim` that makes `v`, and the numbers of channels
    /// that are the other.
    template <class Of>
    std::optional<std::pair<Normed, ValueId>> step(ValueId v, Prim prim, const Of& of) const {
        const Node* n = maker(v);
        if (n == nullptr || n->prim != prim) return std::nullopt;
        for (std::size_t k = 0; k < 2; ++k) {
            const ValueId numbers = per_channel(n->operands[1 - k]);
            if (numbers == kNone) continue;
            if (const auto found = of(n->operands[k])) return std::pair{*found, numbers};
        }
        return std::nullopt;
    }
    std::optional<Normed> bare(ValueId v) const {
        const Node* n = maker(v);
        if (n == nullptr || !serves(*n)) return std::nullopt;
        return Normed{old_.values()[n->results[0]].producer};
    }
    std::optional<Normed> biased(ValueId v) const {
        auto found = step(v, Prim::Add, [&](ValueId x) { return bare(x); });
        if (!found) return bare(v);
        found->first.bias = found->second;
        return found->first;
    }
    std::optional<Normed> scaled(ValueId v) const {
        auto found = step(v, Prim::Mul, [&](ValueId x) { return biased(x); });
        if (!found) return bare(v);
        found->first.scale = found->second;
        return found->first;
    }
    std::optional<Normed> normed(ValueId v) const {
        auto found = step(v, Prim::Add, [&](ValueId x) { return scaled(x); });
        if (!found) return std::nullopt;
        found->first.shift = found->second;
        return found->first;
    }
    /// The value of 16 bits that the sum's operand is, or kNone.
    ValueId narrow_source(ValueId v, const Type& wanted) const {
        const Node* n = old_.producer(v);
        if (!is_narrow(v) && n != nullptr && n->prim == Prim::Convert) v = n->operands[0];
        const Type& t = old_.type(v);
        return t.dtype == wanted.dtype && t.sizes == wanted.sizes ? v : kNone;
    }

    std::optional<Fused> match(const Node& n) const {
        if (n.prim != Prim::Relu || !is_narrow(n.results[0])) return std::nullopt;
        if (auto main = normed(n.operands[0])) return Fused{*main};
        const Node* sum = maker(n.operands[0]);
        if (sum == nullptr || sum->prim != Prim::Add) return std::nullopt;
        for (std::size_t k = 0; k < 2; ++k) {
            const auto main = normed(sum->operands[k]);
            if (!main) continue;
            Fused f{*main};
            f.side = normed(sum->operands[1 - k]);
            const Type& result = old_.type(n.results[0]);
            if (!f.side) f.residual = narrow_source(sum->operands[1 - k], result);
            if (f.side && !(old_.type(old_.node(f.side->conv).results[0]) == result)) continue;
            if (f.side || f.residual != kNone) return f;
        }
        return std::nullopt;
    }

    // ---- emitting ----

    ValueId op(Prim prim, std::vector<ValueId> operands, Attrs attrs = {}) {
        return rewriter_.out().emit(prim, std::move(operands), std::move(attrs), origin_);
    }
    ValueId converted(ValueId v, DType dtype) {
        return rewriter_.out().type(v).dtype == dtype ? v
                                                      : op(Prim::Convert, {v}, {{"dtype", dtype}});
    }
    /// The weight with the scale in it, rounded behind that.
    ValueId weight(const Normed& c, DType dtype) {
        ValueId w = old_.node(c.conv).operands[1];
        if (c.scale == kNone) return rewriter_(w);
        const Node* n = old_.producer(w);
        if (n != nullptr && n->prim == Prim::Convert && is_float(old_.type(n->operands[0]).dtype))
            w = n->operands[0];
        const Sizes sizes = old_.type(w).sizes;
        const ValueId scale = op(Prim::Broadcast, {converted(rewriter_(c.scale), DType::F32)},
                                 {{"sizes", sizes}, {"dims", Ints{0}}});
        return converted(op(Prim::Mul, {converted(rewriter_(w), DType::F32), scale}), dtype);
    }
    /// What is added to each channel in the end.
    ValueId shift(const Normed& c) {
        const auto wide = [&](ValueId v) { return converted(rewriter_(v), DType::F32); };
        if (c.bias == kNone) return rewriter_(c.shift);
        return op(Prim::Add, {op(Prim::Mul, {wide(c.bias), wide(c.scale)}), wide(c.shift)});
    }
    ValueId emit(const Fused& f, const Node& relu) {
        const Node& conv = old_.node(f.main.conv);
        origin_ = conv.origin;
        const DType dtype = old_.type(relu.results[0]).dtype;
        std::vector<ValueId> operands{rewriter_(conv.operands[0]), weight(f.main, dtype)};
        ValueId sum = shift(f.main);
        if (f.side)
            sum =
                op(Prim::Add, {converted(sum, DType::F32), converted(shift(*f.side), DType::F32)});
        operands.push_back(converted(sum, dtype));
        if (f.side) {
            const Node& side = old_.node(f.side->conv);
            operands.push_back(
                op(Prim::Conv, {rewriter_(side.operands[0]), weight(*f.side, dtype)}, side.attrs));
        } else if (f.residual != kNone) {
            operands.push_back(rewriter_(f.residual));
        }
        return op(Prim::ConvRelu, std::move(operands),
                  {{"stride", conv.attrs.get<Ints>("stride")},
                   {"padding", conv.attrs.get<Sizes>("padding")},
                   {"dilation", conv.attrs.get<Ints>("dilation")},
                   {"groups", std::int64_t{1}}});
    }

    const Graph& old_;
    const std::vector<bool> frozen_;
    const std::vector<int> uses_;
    std::string origin_;
    Rewriter rewriter_;
};

}  // namespace

Graph fuse_convolution(const Graph& graph, const PassContext& context) {
    if (!context.vendor_epilogues || !context.fold_frozen || graph.round_intermediates)
        return graph;
    return ConvolutionFuser(graph).run();
}

}  // namespace ingot
