// Gradients of weights whose product is widened to fp32 for the caller become products with a
// result of fp32: the library has the sums in fp32 anyway, so that neither a rounding nor a kernel
// that reads and writes them again is needed.
//
// Only where the graph does not round intermediate results as eager does, and what nobody else
// reads. Linear.
#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

// A product of matrices of 16 bits whose sums a library hands over in fp32.
bool is_product(const Graph& g, const Node& n) {
    const Type& type = g.type(n.results[0]);
    return n.prim == Prim::Matmul && type.rank() == 2 && is_reduced_float(type.dtype) &&
           !n.attrs.has("dtype");
}

// What the caller is given, also in another shape or order.
std::vector<bool> given(const Graph& g) {
    std::vector<bool> all(g.values().size(), false);
    for (const Output& o : g.outputs()) {
        all[o.value] = true;
        for (const Node* n = g.producer(o.value);
             n != nullptr && (n->prim == Prim::Reshape || n->prim == Prim::Permute);
             n = g.producer(n->operands[0]))
            all[n->operands[0]] = true;
    }
    return all;
}

}  // namespace

Graph widen_products(const Graph& graph, const PassContext& context) {
    if (!context.vendor_widens || graph.round_intermediates) return graph;
    const std::vector<int> uses = use_counts(graph);
    const std::vector<bool> outside = given(graph);
    // By product: the Convert that reads it.
    std::vector<NodeId> widened(graph.nodes().size(), kNone);
    std::vector<bool> skip(graph.nodes().size(), false);
    bool any = false;
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
        const Node& n = graph.node(id);
        if (n.prim != Prim::Convert || graph.type(n.results[0]).dtype != DType::F32 ||
            !outside[n.results[0]] || uses[n.operands[0]] != 1)
            continue;
        const NodeId product = graph.values()[n.operands[0]].producer;
        if (product == kNone || outside[n.operands[0]] || !is_product(graph, graph.node(product)))
            continue;
        widened[product] = id;
        skip[id] = any = true;
    }
    if (!any) return graph;
    Rewriter rewriter(graph);
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
        if (skip[id]) continue;
        if (widened[id] == kNone) {
            rewriter.copy(id);
            continue;
        }
        const Node& n = graph.node(id);
        Attrs attrs = n.attrs;
        attrs.set("dtype", DType::F32);
        rewriter.map(graph.node(widened[id]).results[0],
                     rewriter.out().emit(n.prim, {rewriter(n.operands[0]), rewriter(n.operands[1])},
                                         std::move(attrs), n.origin));
    }
    return rewriter.finish();
}

}  // namespace ingot
