// A product of matrices, the bias behind it and a ReLU become one prim, where the vendor's library
// does all three in its kernel: what a GPU's program leaves to cuBLAS.
//
// The sum is then rounded once, as eager's own linear rounds it. Only products that nothing else
// reads, and not those that generated code takes with more of what follows them. Linear.
#include <algorithm>

#include "passes/epilogues.h"
#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

class LinearFuser {
  public:
    LinearFuser(const Graph& g, const PassContext& context)
        : old_(g),
          context_(context),
          epilogues_(g),
          uses_(use_counts(g)),
          skip_(g.nodes().size(), false),
          rewriter_(g) {}

    Graph run() {
        find();
        if (found_.empty()) return old_;
        std::size_t next = 0;
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            if (next < found_.size() && found_[next].last == id)
                emit(found_[next++]);
            else if (!skip_[id])
                rewriter_.copy(id);
        }
        return rewriter_.finish();
    }

  private:
    struct Linear {
        NodeId product, last;
        ValueId bias;
        bool relu = false;
    };

    // The operand of `n` that is a product nobody else reads, or kNone.
    NodeId product_of(const Node& n, std::size_t k) const {
        const ValueId v = n.operands[k];
        if (uses_[v] != 1) return kNone;
        const Node* p = old_.producer(v);
        if (p == nullptr || p->prim != Prim::Matmul || !is_float(old_.type(v).dtype)) return kNone;
        if (old_.type(v).rank() != 2) return kNone;
        const NodeId product = old_.values()[v].producer;
        return is_generated(product) ? kNone : product;
    }
    bool is_generated(NodeId product) const {
        if (!context_.generated_product || !epilogues_.costly(product)) return false;
        const Node& n = old_.node(product);
        // Weights as Linear stores them, whose rows run along the sum, or that can be laid so.
        const Node* weight = old_.producer(n.operands[1]);
        if ((weight == nullptr || weight->prim != Prim::Permute) &&
            epilogues_.own_copy(product) == kNone)
            return false;
        const Type& left = old_.type(n.operands[0]);
        return context_.generated_product(
            {left.sizes[0], old_.type(n.results[0]).sizes[1], left.sizes[1], left.dtype});
    }
    ValueId bias_of(const Node& n, std::size_t k) const {
        const Node* spread = old_.producer(n.operands[k]);
        if (spread == nullptr || spread->prim != Prim::Broadcast) return kNone;
        const ValueId bias = spread->operands[0];
        const Type& type = old_.type(n.operands[k]);
        if (spread->attrs.get<Ints>("dims") != Ints{1} ||
            !(old_.type(bias).sizes[0] == type.sizes[1]))
            return kNone;
        return bias;
    }

    void find() {
        std::vector<std::uint32_t> by_last(old_.nodes().size(), kNone);
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            const Node& n = old_.node(id);
            if (n.prim == Prim::Relu && uses_[n.operands[0]] == 1) {
                const NodeId before = old_.values()[n.operands[0]].producer;
                if (before == kNone || by_last[before] == kNone) continue;
                Linear& l = found_[by_last[before]];
                by_last[id] = by_last[before];
                skip_[before] = true;
                l.last = id;
                l.relu = true;
                continue;
            }
            if (n.prim != Prim::Add) continue;
            for (std::size_t k = 0; k < 2; ++k) {
                const NodeId product = product_of(n, k);
                const ValueId bias = product == kNone ? kNone : bias_of(n, 1 - k);
                if (bias == kNone) continue;
                by_last[id] = static_cast<std::uint32_t>(found_.size());
                found_.push_back({product, id, bias});
                skip_[product] = true;
                break;
            }
        }
        std::sort(found_.begin(), found_.end(),
                  [](const Linear& a, const Linear& b) { return a.last < b.last; });
    }

    void emit(const Linear& l) {
        const Node& product = old_.node(l.product);
        const ValueId out = rewriter_.out().emit(
            Prim::MatmulBias,
            {rewriter_(product.operands[0]), rewriter_(product.operands[1]), rewriter_(l.bias)},
            {{"activation", std::string(l.relu ? "relu" : "none")}}, product.origin);
        rewriter_.map(old_.node(l.last).results[0], out);
    }

    const Graph& old_;
    const PassContext& context_;
    const Epilogues epilogues_;
    std::vector<int> uses_;
    std::vector<bool> skip_;
    std::vector<Linear> found_;
    Rewriter rewriter_;
};

}  // namespace

Graph fuse_linear(const Graph& graph, const PassContext& context) {
    if (!context.vendor_epilogues) return graph;
    return LinearFuser(graph, context).run();
}

}  // namespace ingot
