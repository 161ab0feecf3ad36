// See epilogues.h.
#include "passes/epilogues.h"

#include <algorithm>

#include "passes/facts.h"

namespace ingot {

namespace {

constexpr std::size_t kFarthest = 24;  // prims behind a product that are looked at

bool is_costly(Prim p) {
    return p == Prim::Erf || p == Prim::Erfc || p == Prim::Exp || p == Prim::Tanh ||
           p == Prim::Sigmoid;
}

}  // namespace

Epilogues::Epilogues(const Graph& graph)
    : graph_(graph),
      frozen_(frozen_values(graph)),
      is_output_(graph.values().size(), false),
      readers_(graph.values().size()) {
    for (const Output& o : graph.outputs()) is_output_[o.value] = true;
    for (NodeId id = 0; id < graph.nodes().size(); ++id)
        for (ValueId v : graph.node(id).operands)
            if (readers_[v].empty() || readers_[v].back() != id) readers_[v].push_back(id);
}

// A product's result, with its bias, in another shape or type.
bool Epilogues::hands_out(ValueId v) const {
    if (is_output_[v]) return true;
    return std::ranges::any_of(readers_[v], [&](NodeId reader) {
        const Node& n = graph_.node(reader);
        const auto is_spread = [&](ValueId o) {
            const Node* p = graph_.producer(o);
            return p != nullptr && p->prim == Prim::Broadcast;
        };
        const bool biased = n.prim == Prim::Add && std::ranges::any_of(n.operands, is_spread);
        return (biased || n.prim == Prim::Reshape || n.prim == Prim::Convert) &&
               hands_out(n.results[0]);
    });
}

bool Epilogues::only_handed_out(NodeId product) const {
    ValueId v = graph_.node(product).results[0];
    while (!is_output_[v]) {
        if (readers_[v].size() != 1) return false;
        const Node& n = graph_.node(readers_[v][0]);
        if (n.prim != Prim::Reshape) return false;
        v = n.results[0];
    }
    return readers_[v].empty();
}

ValueId Epilogues::own_copy(NodeId product) const {
    const ValueId right = graph_.node(product).operands[1];
    const Node* made = graph_.producer(right);
    if (made == nullptr || made->prim != Prim::Convert || !frozen_[right]) return kNone;
    if (graph_.type(right).rank() != 2 || is_output_[right] || readers_[right].size() != 1)
        return kNone;
    return right;
}

bool Epilogues::costly(NodeId product) const {
    const ValueId result = graph_.node(product).results[0];
    if (hands_out(result)) return false;
    const Sizes& sizes = graph_.type(result).sizes;
    std::vector<NodeId> seen;
    std::vector<ValueId> open{result};
    while (!open.empty() && seen.size() < kFarthest) {
        const ValueId v = open.back();
        open.pop_back();
        for (const NodeId reader : readers_[v]) {
            const Node& n = graph_.node(reader);
            // A linear layer's rows may have several dims again.
            const bool view = n.prim == Prim::Reshape;
            if (!view && kind(n.prim) != PrimKind::Pointwise) continue;
            if (!view && v == result && !same_sizes(graph_.type(n.results[0]).sizes, sizes))
                continue;
            if (std::ranges::find(seen, reader) != seen.end()) continue;
            if (is_costly(n.prim)) return true;
            seen.push_back(reader);
            open.push_back(n.results[0]);
        }
    }
    return false;
}

}  // namespace ingot
