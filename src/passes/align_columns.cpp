// Products whose number of columns suits no tensor core (a vocabulary of 50257 words) get a few
// columns of zeros more, in the frozen right side, where that is done once; what they give is cut
// off behind the product. The vendor's kernels for odd numbers are several times slower than the
// copy. Only for vendors' products on GPUs, of types of two bytes. Linear.
#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

constexpr std::int64_t kColumns = 8;  // of two bytes: what tensor cores load at once
constexpr std::int64_t kWorth = 64;   // columns from which on it pays

class Aligner {
  public:
    explicit Aligner(const Graph& g) : old_(g), frozen_(frozen_values(g)), rewriter_(g) {}

    Graph run() {
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            const std::int64_t missing = missing_columns(old_.node(id));
            if (missing == 0)
                rewriter_.copy(id);
            else
                emit(old_.node(id), missing);
        }
        return rewriter_.finish();
    }

  private:
    std::int64_t missing_columns(const Node& n) const {
        if (n.prim != Prim::Matmul && n.prim != Prim::MatmulBias) return 0;
        const Type& right = old_.type(n.operands[1]);
        if (right.rank() != 2 || bytes(right.dtype) != 2 || !frozen_[n.operands[1]]) return 0;
        if (n.operands.size() > 2 && !frozen_[n.operands[2]]) return 0;
        const Expr columns = right.sizes[1];
        if (!columns.is_constant() || columns.constant() < kWorth) return 0;
        return (kColumns - columns.constant() % kColumns) % kColumns;
    }

    ValueId padded(ValueId v, std::int64_t missing) {
        const auto rank = static_cast<std::size_t>(rewriter_.out().type(v).rank());
        Sizes low(rank, Expr(0)), high(rank, Expr(0));
        high.back() = missing;
        return rewriter_.out().emit(Prim::Pad, {v},
                                    {{"low", low}, {"high", high}, {"value", Scalar(0.0)}});
    }

    void emit(const Node& n, std::int64_t missing) {
        std::vector<ValueId> operands{rewriter_(n.operands[0])};
        for (std::size_t i = 1; i < n.operands.size(); ++i)
            operands.push_back(padded(rewriter_(n.operands[i]), missing));
        Graph& g = rewriter_.out();
        const ValueId wide = g.emit(n.prim, std::move(operands), n.attrs, n.origin);
        const Type& type = old_.type(n.results[0]);
        const NodeId part =
            g.add_with_types(Prim::Slice, {wide},
                             {{"starts", Sizes{0, 0}}, {"ends", type.sizes}, {"steps", Ints{1, 1}}},
                             {type}, n.origin);
        rewriter_.map(n.results[0], g.node(part).results[0]);
    }

    const Graph& old_;
    std::vector<bool> frozen_;
    Rewriter rewriter_;
};

}  // namespace

Graph align_columns(const Graph& graph, const PassContext& context) {
    if (!context.vendor_epilogues) return graph;
    return Aligner(graph).run();
}

}  // namespace ingot
