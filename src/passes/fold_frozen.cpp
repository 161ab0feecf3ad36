// Folds per-channel scales behind a contraction into its frozen weight: batch norm behind a
// convolution, layer scale behind a linear.
//
//     (conv(x, w) - mean) * scale + shift   becomes   conv(x, w * scale) + (shift - mean * scale)
//
// where w and all per-channel values depend on frozen inputs alone. The folded values stay in the
// graph as nodes, so a changed parameter changes them at the next call. Results differ from eager's
// by rounding only, as with batch norm folding everywhere; reduced floats, where that would be
// visible, are left alone as long as the graph rounds them. Linear.
#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

// One step behind the contraction.
struct Step {
    NodeId node;
    bool movement = false;
    ValueId other = kNone;     // the per-channel operand
    bool other_first = false;  // sub: other - chain
    std::size_t channel_dim;   // of the step's result
};

struct Chain {
    NodeId contraction;
    std::vector<Step> steps;
};

class FrozenFolder {
  public:
    explicit FrozenFolder(const Graph& g)
        : old_(g),
          frozen_(frozen_values(g)),
          uses_(use_counts(g)),
          user_(g.values().size(), kNone),
          skip_(g.nodes().size(), false),
          rewriter_(g) {
        for (NodeId id = 0; id < g.nodes().size(); ++id)
            for (ValueId v : g.node(id).operands) user_[v] = id;
        for (const Output& o : g.outputs()) user_[o.value] = kNone;
    }

    Graph run() {
        std::vector<Chain> ends(old_.nodes().size());
        for (NodeId id = 0; id < old_.nodes().size(); ++id)
            if (auto chain = find_chain(id)) {
                skip_[id] = true;
                for (const Step& s : chain->steps) skip_[s.node] = true;
                NodeId last = chain->steps.back().node;
                ends[last] = std::move(*chain);
            }
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            if (!ends[id].steps.empty())
                rewriter_.map(old_.node(id).results[0], emit(ends[id]));
            else if (!skip_[id])
                rewriter_.copy(id);
        }
        return rewriter_.finish();
    }

  private:
    bool is_candidate(NodeId id) const {
        const Node& n = old_.node(id);
        if (n.prim != Prim::Matmul && n.prim != Prim::Conv) return false;
        if (n.prim == Prim::Conv && n.attrs.get<bool>("transposed")) return false;
        DType t = old_.type(n.results[0]).dtype;
        if (t != DType::F32 && t != DType::F64) return false;
        return frozen_[n.operands[1]] && !frozen_[n.operands[0]];
    }

    // Where the channel dim goes in a reshape or permute, if it stays a dim.
    std::optional<std::size_t> moved_dim(const Node& n, std::size_t dim) const {
        if (n.prim == Prim::Permute) {
            const Ints& dims = n.attrs.get<Ints>("dims");
            for (std::size_t i = 0; i < dims.size(); ++i)
                if (dims[i] == static_cast<std::int64_t>(dim)) return i;
            return std::nullopt;
        }
        if (n.prim != Prim::Reshape) return std::nullopt;
        const Sizes &from = old_.type(n.operands[0]).sizes, &to = old_.type(n.results[0]).sizes;
        Expr before = product(std::span(from).first(dim)), so_far = 1;
        for (std::size_t i = 0; i < to.size(); ++i) {
            if (known_eq(so_far, before) == true && to[i] == from[dim]) return i;
            so_far = so_far * to[i];
        }
        return std::nullopt;
    }

    // Whether `v`, of the chain's sizes, has one frozen number a channel (or one for all).
    bool is_per_channel(ValueId v, std::size_t channel_dim) const {
        if (!frozen_[v]) return false;
        // Nothing but channels: whatever made it.
        bool others_are_one = true;
        const Sizes& sizes = old_.type(v).sizes;
        for (std::size_t i = 0; i < sizes.size(); ++i)
            others_are_one = others_are_one && (i == channel_dim || sizes[i].is(1));
        if (others_are_one) return true;
        const Node* n = old_.producer(v);
        if (n == nullptr) return false;
        if (n->prim == Prim::Full) return true;
        if (n->prim != Prim::Broadcast) return false;
        const Sizes& from = old_.type(n->operands[0]).sizes;
        const Ints& dims = n->attrs.get<Ints>("dims");
        for (std::size_t i = 0; i < from.size(); ++i)
            if (!from[i].is(1) && dims[i] != static_cast<std::int64_t>(channel_dim)) return false;
        return true;
    }
    bool is_full(ValueId v) const { return full_value(old_, v).has_value(); }

    std::optional<Chain> find_chain(NodeId id) const {
        if (!is_candidate(id)) return std::nullopt;
        const Node& c = old_.node(id);
        ValueId v = c.results[0];
        std::size_t dim = c.prim == Prim::Conv ? 1 : old_.type(v).sizes.size() - 1;
        Chain chain{id, {}};
        std::size_t keep = 0;  // steps up to the last one worth folding
        while (uses_[v] == 1 && user_[v] != kNone) {
            NodeId at = user_[v];
            const Node& n = old_.node(at);
            Step step{at, is_movement(n.prim), kNone, false, dim};
            if (step.movement) {
                auto moved = moved_dim(n, dim);
                if (!moved) break;
                step.channel_dim = dim = *moved;
            } else if (n.prim == Prim::Mul || n.prim == Prim::Add || n.prim == Prim::Sub ||
                       n.prim == Prim::Div) {
                step.other_first = n.operands[1] == v;
                step.other = n.operands[step.other_first ? 0 : 1];
                if (!is_per_channel(step.other, dim)) break;
                if (n.prim == Prim::Div && step.other_first) break;
            } else {
                break;
            }
            chain.steps.push_back(step);
            bool scales = n.prim == Prim::Mul || n.prim == Prim::Div;
            // A scale that is one constant is no work in an epilogue, and folding it would round.
            // Shifts behind a scale join the shift that it makes.
            bool joins = keep > 0 && step.other != kNone;
            if ((scales && !is_full(step.other)) || joins) keep = chain.steps.size();
            v = n.results[0];
        }
        if (keep == 0) return std::nullopt;
        chain.steps.resize(keep);
        return chain;
    }

    // The per-channel operand as a vector of one number a channel.
    ValueId vector_of(ValueId v, const Type& type) {
        Graph& g = rewriter_.out();
        if (auto value = full_value(old_, v)) return emit_full(g, type, *value);
        const Node* n = old_.producer(v);
        ValueId small = rewriter_(n && n->prim == Prim::Broadcast ? n->operands[0] : v);
        if (g.type(small).numel().is(1) && !type.sizes[0].is(1)) {
            ValueId scalar = g.emit(Prim::Reshape, {small}, {{"sizes", Sizes{}}});
            return g.emit(Prim::Broadcast, {scalar}, {{"sizes", type.sizes}, {"dims", Ints{}}});
        }
        return g.emit(Prim::Reshape, {small}, {{"sizes", type.sizes}});
    }

    struct Affine {
        ValueId scale = kNone, shift = kNone;  // kNone: 1 and 0
    };
    void apply(const Step& s, const Type& type, Affine& f) {
        Graph& g = rewriter_.out();
        ValueId o = vector_of(s.other, type);
        auto both = [&](Prim p, ValueId a, ValueId b) { return g.emit(p, {a, b}); };
        switch (old_.node(s.node).prim) {
            case Prim::Mul:
                f.scale = f.scale == kNone ? o : both(Prim::Mul, f.scale, o);
                if (f.shift != kNone) f.shift = both(Prim::Mul, f.shift, o);
                return;
            case Prim::Div: {
                ValueId one = f.scale == kNone ? emit_full(g, type, 1.0) : f.scale;
                f.scale = both(Prim::Div, one, o);
                if (f.shift != kNone) f.shift = both(Prim::Div, f.shift, o);
                return;
            }
            case Prim::Add:
                f.shift = f.shift == kNone ? o : both(Prim::Add, f.shift, o);
                return;
            default:
                if (!s.other_first) {
                    f.shift =
                        f.shift == kNone ? g.emit(Prim::Neg, {o}) : both(Prim::Sub, f.shift, o);
                    return;
                }
                f.scale =
                    f.scale == kNone ? emit_full(g, type, -1.0) : g.emit(Prim::Neg, {f.scale});
                f.shift = f.shift == kNone ? o : both(Prim::Sub, o, f.shift);
        }
    }

    ValueId emit(const Chain& chain) {
        Graph& g = rewriter_.out();
        const Node& c = old_.node(chain.contraction);
        const bool conv = c.prim == Prim::Conv;
        const Type weight = old_.type(c.operands[1]);
        const std::size_t weight_dim = conv ? 0 : weight.sizes.size() - 1;
        const Type vector{weight.dtype, {weight.sizes[weight_dim]}, weight.device};
        Affine f;
        for (const Step& s : chain.steps)
            if (!s.movement) apply(s, vector, f);
        ValueId scale = g.emit(
            Prim::Broadcast, {f.scale},
            {{"sizes", weight.sizes}, {"dims", Ints{static_cast<std::int64_t>(weight_dim)}}});
        ValueId scaled = g.emit(Prim::Mul, {rewriter_(c.operands[1]), scale});
        NodeId fresh = g.add_with_types(c.prim, {rewriter_(c.operands[0]), scaled}, c.attrs,
                                        {old_.type(c.results[0])}, c.origin);
        ValueId v = g.node(fresh).results[0];
        for (const Step& s : chain.steps) {
            if (!s.movement) continue;
            const Node& n = old_.node(s.node);
            fresh = g.add_with_types(n.prim, {v}, n.attrs, {old_.type(n.results[0])}, n.origin);
            v = g.node(fresh).results[0];
        }
        if (f.shift == kNone) return v;
        const Step& last = chain.steps.back();
        Attrs how{{"sizes", g.type(v).sizes},
                  {"dims", Ints{static_cast<std::int64_t>(last.channel_dim)}}};
        ValueId shift = g.emit(Prim::Broadcast, {f.shift}, how);
        return g.emit(Prim::Add, {v, shift}, {}, old_.node(last.node).origin);
    }

    const Graph& old_;
    std::vector<bool> frozen_;
    std::vector<int> uses_;
    std::vector<NodeId> user_;
    std::vector<bool> skip_;
    Rewriter rewriter_;
};

}  // namespace

Graph fold_frozen(const Graph& graph, const PassContext& context) {
    if (!context.fold_frozen) return graph;
    return FrozenFolder(graph).run();
}

}  // namespace ingot
