// See backward_part.h.
#include "passes/backward_part.h"

#include <algorithm>

#include "passes/facts.h"

namespace ingot {
namespace {

/// Takes out what depends on missing tangents alone.
class WithoutMissing {
  public:
    WithoutMissing(const Graph& g, const BackwardQuery& query)
        : g_(g),
          rewriter_(g),
          depends_(g.values().size(), false),
          missing_(g.values().size(), false) {
        for (std::size_t i = 0; i < g.inputs().size(); ++i) {
            depends_[g.inputs()[i].value] = query.tangents[i];
            missing_[g.inputs()[i].value] = query.missing[i];
        }
    }

    Graph run() {
        for (NodeId id = 0; id < g_.nodes().size(); ++id) visit(id);
        for (const Output& o : g_.outputs())  // one that eager gives all the same
            if (missing_[o.value]) rewriter_.map(o.value, zeros(o.value));
        return rewriter_.finish();
    }

  private:
    void visit(NodeId id) {
        const Node& n = g_.node(id);
        bool any = false, all = true, some = false;
        for (const ValueId v : n.operands) {
            if (!depends_[v]) continue;
            any = true;
            all = all && missing_[v];
            some = some || missing_[v];
        }
        for (const ValueId v : n.results) {
            depends_[v] = any;
            missing_[v] = any && all;
        }
        if (any && all) return;
        if (some) {
            if (const ValueId term = other_term(n); term != kNone)
                return rewriter_.map(n.results[0], term);
            for (const ValueId v : n.operands)
                if (missing_[v]) rewriter_.map(v, zeros(v));
        }
        rewriter_.copy(id);
    }

    /// What a sum is without the terms that are not there; kNone: it is none.
    ValueId other_term(const Node& n) {
        const auto gone = [&](std::size_t k) { return missing_[n.operands[k]]; };
        const auto emit = [&](Prim prim, std::vector<ValueId> operands) {
            return rewriter_.out().emit(prim, std::move(operands), {}, n.origin);
        };
        switch (n.prim) {
            case Prim::Add:
                return rewriter_(n.operands[gone(0) ? 1 : 0]);
            case Prim::Sub:
                if (gone(1)) return rewriter_(n.operands[0]);
                return emit(Prim::Neg, {rewriter_(n.operands[1])});
            case Prim::Fma:
                if (!gone(2)) return rewriter_(n.operands[2]);
                return emit(Prim::Mul, {rewriter_(n.operands[0]), rewriter_(n.operands[1])});
            default:
                return kNone;
        }
    }

    ValueId zeros(ValueId v) {
        const Type& type = g_.type(v);
        return emit_full(rewriter_.out(), type, to_scalar(Num{}, type.dtype));
    }

    const Graph& g_;
    Rewriter rewriter_;
    std::vector<bool> depends_, missing_;  // by value: on some tangent; on missing ones alone
};

/// What the wanted outputs need.
BackwardPart pruned(const Graph& g, const BackwardQuery& query) {
    std::vector<bool> live(g.values().size(), false), stays(g.nodes().size(), false);
    for (std::size_t i = 0; i < g.outputs().size(); ++i)
        if (query.wanted[i]) live[g.outputs()[i].value] = true;
    for (NodeId id = static_cast<NodeId>(g.nodes().size()); id-- > 0;) {
        const Node& n = g.node(id);
        // A backward writes nothing: of its calls those matter whose results do.
        stays[id] = std::ranges::any_of(n.results, [&](ValueId v) { return live[v]; });
        if (stays[id])
            for (const ValueId v : n.operands) live[v] = true;
    }
    BackwardPart part{Graph(g.shared_pool()), {}, {}};
    Graph& out = part.graph;
    out.round_intermediates = g.round_intermediates;
    std::vector<ValueId> map(g.values().size(), kNone);
    for (std::size_t i = 0; i < g.inputs().size(); ++i) {
        const Input& in = g.inputs()[i];
        if (!live[in.value] && !query.kept[i]) continue;
        map[in.value] = out.add_input(g.type(in.value), in.name, in.strides, in.frozen);
        part.inputs.push_back(static_cast<std::int32_t>(i));
    }
    for (NodeId id = 0; id < g.nodes().size(); ++id) {
        if (!stays[id]) continue;
        const Node& n = g.node(id);
        std::vector<ValueId> operands;
        std::vector<Type> types;
        for (const ValueId v : n.operands) operands.push_back(map[v]);
        for (const ValueId v : n.results) types.push_back(g.type(v));
        const NodeId made =
            out.add_with_types(n.prim, std::move(operands), n.attrs, std::move(types), n.origin);
        for (std::size_t r = 0; r < n.results.size(); ++r)
            map[n.results[r]] = out.node(made).results[r];
    }
    for (std::size_t i = 0; i < g.outputs().size(); ++i) {
        if (!query.wanted[i]) continue;
        out.add_output(map[g.outputs()[i].value], g.outputs()[i].strides);
        part.outputs.push_back(static_cast<std::int32_t>(i));
    }
    for (const SizeGuard& guard : g.guards()) out.add_guard(guard);
    return part;
}

}  // namespace

BackwardPart backward_part(const Graph& backward, const BackwardQuery& query) {
    return pruned(WithoutMissing(backward, query).run(), query);
}

}  // namespace ingot
