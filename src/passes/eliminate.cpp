// Dead code and common subexpressions: both one walk over the graph.
//
// Dead: a node stays when it has an effect or something that stays uses a result. Common: nodes of
// the same prim, operands and attributes are one, found by hash; prims with effects and random
// numbers are never merged.
#include <unordered_map>

#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

Graph eliminate_dead(const Graph& graph, const PassContext&) {
    std::vector<bool> live(graph.values().size(), false);
    for (const Output& o : graph.outputs()) live[o.value] = true;
    std::vector<bool> stays(graph.nodes().size(), false);
    for (NodeId id = static_cast<NodeId>(graph.nodes().size()); id-- > 0;) {
        const Node& n = graph.node(id);
        bool used = has_effect(n);
        for (ValueId v : n.results) used = used || live[v];
        stays[id] = used;
        if (used)
            for (ValueId v : n.operands) live[v] = true;
    }
    Rewriter rewriter(graph);
    for (NodeId id = 0; id < graph.nodes().size(); ++id)
        if (stays[id]) rewriter.copy(id);
    return rewriter.finish();
}

namespace {

void mix(std::size_t& h, std::size_t v) { h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2); }

std::size_t hash_of(Expr e) {
    return e.is_constant() ? std::hash<std::int64_t>()(e.constant())
                           : std::hash<const void*>()(e.node());
}

struct AttrHash {
    std::size_t operator()(bool v) const { return v; }
    std::size_t operator()(std::int64_t v) const { return std::hash<std::int64_t>()(v); }
    std::size_t operator()(double v) const { return std::hash<double>()(v); }
    std::size_t operator()(Expr v) const { return hash_of(v); }
    std::size_t operator()(const Sizes& v) const {
        std::size_t h = v.size();
        for (Expr e : v) mix(h, hash_of(e));
        return h;
    }
    std::size_t operator()(const Ints& v) const {
        std::size_t h = v.size();
        for (std::int64_t i : v) mix(h, static_cast<std::size_t>(i));
        return h;
    }
    std::size_t operator()(DType v) const { return static_cast<std::size_t>(v); }
    // A NaN equals itself here (Scalar's ==), so it must hash by what it is, not what it equals.
    std::size_t operator()(const Scalar& v) const {
        double d = v.to_double();
        return d == d ? std::hash<double>()(d) : 7;
    }
    std::size_t operator()(const std::string& v) const { return std::hash<std::string>()(v); }
    std::size_t operator()(const std::shared_ptr<const std::vector<std::uint8_t>>& v) const {
        return std::hash<std::string_view>()({reinterpret_cast<const char*>(v->data()), v->size()});
    }
};

std::size_t hash_of(Prim prim, const std::vector<ValueId>& operands, const Attrs& attrs) {
    std::size_t h = static_cast<std::size_t>(prim);
    for (ValueId v : operands) mix(h, v);
    for (const Attr& a : attrs.list()) mix(h, std::visit(AttrHash{}, a.value));
    return h;
}

}  // namespace

Graph eliminate_common(const Graph& graph, const PassContext&) {
    Rewriter rewriter(graph);
    std::unordered_multimap<std::size_t, NodeId> seen;  // nodes of the new graph
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
        const Node& n = graph.node(id);
        if (!is_pure(n) || n.prim == Prim::Empty) {
            rewriter.copy(id);
            continue;
        }
        std::vector<ValueId> operands;
        for (ValueId v : n.operands) operands.push_back(rewriter(v));
        std::size_t h = hash_of(n.prim, operands, n.attrs);
        const Node* twin = nullptr;
        auto [first, last] = seen.equal_range(h);
        for (auto it = first; it != last && twin == nullptr; ++it) {
            const Node& m = rewriter.out().node(it->second);
            bool equal = m.prim == n.prim && m.operands == operands && m.attrs == n.attrs &&
                         m.results.size() == n.results.size();
            for (std::size_t i = 0; equal && i < n.results.size(); ++i)
                equal = rewriter.out().type(m.results[i]) == graph.type(n.results[i]);
            if (equal) twin = &m;
        }
        if (twin != nullptr) {
            for (std::size_t i = 0; i < n.results.size(); ++i)
                rewriter.map(n.results[i], twin->results[i]);
            continue;
        }
        rewriter.copy(id);
        seen.emplace(h, static_cast<NodeId>(rewriter.out().nodes().size() - 1));
    }
    return rewriter.finish();
}

}  // namespace ingot
