// Local algebra: every node is matched against rules over its operands' producers.
//
// Exact means: the result is the same number, bit for bit, for every input, up to the sign and
// payload of a NaN (and of a zero that is the only number of a sum); or it is what eager itself
// computes (pow(x, 2) as x * x). Reduced floats are
// rounded after each prim, so rules that would add or drop a rounding do not apply to them.
//
// Linear: each node is looked at once, each rule looks a constant number of producers back, and a
// rule's result is smaller than what it matched.
#include "passes/passes.h"
#include "passes/simplify_rules.h"

namespace ingot {

namespace simplify_rules {

namespace {

// A mask that lets everything through.
std::optional<ValueId> contraction(const Site& s) {
    if (s.prim != Prim::Attention || s.x.size() != 4 || s.attrs.get<bool>("logsumexp"))
        return std::nullopt;
    const auto mask = full_value(s.out.graph(), s.x[3]);
    if (!mask) return std::nullopt;
    const bool open =
        s.out.type(s.x[3]).dtype == DType::Bool ? mask->to_int() != 0 : mask->to_double() == 0;
    if (!open) return std::nullopt;
    return s.out.emit(Prim::Attention, {s.x[0], s.x[1], s.x[2]}, s.attrs);
}

std::optional<ValueId> apply(const Site& s) {
    switch (kind(s.prim)) {
        case PrimKind::Pointwise:
            return pointwise(s);
        case PrimKind::Movement:
            return movement(s);
        case PrimKind::Reduction:
            return reduction(s);
        case PrimKind::Contraction:
            return contraction(s);
        default:
            return std::nullopt;
    }
}
}  // namespace

ValueId Emitter::emit(Prim prim, std::vector<ValueId> x, Attrs attrs) {
    std::vector<Type> operands;
    for (ValueId v : x) operands.push_back(g_.type(v));
    std::vector<Type> results = infer_types(prim, operands, attrs);
    if (auto v = apply({prim, x, attrs, results[0], *this})) return *v;
    NodeId id = g_.add_with_types(prim, std::move(x), std::move(attrs), std::move(results), origin);
    return g_.node(id).results[0];
}

}  // namespace simplify_rules

Graph simplify(const Graph& graph, const PassContext&) {
    Rewriter rewriter(graph);
    simplify_rules::Emitter emitter(rewriter.out());
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
        const Node& n = graph.node(id);
        std::optional<ValueId> simpler;
        if (n.results.size() == 1) {
            std::vector<ValueId> x;
            for (ValueId v : n.operands) x.push_back(rewriter(v));
            emitter.origin = n.origin;
            simpler =
                simplify_rules::apply({n.prim, x, n.attrs, graph.type(n.results[0]), emitter});
        }
        if (simpler)
            rewriter.map(n.results[0], *simpler);
        else
            rewriter.copy(id);
    }
    return rewriter.finish();
}

}  // namespace ingot
