// Products with a size that suits no tensor core (a vocabulary of 50257 words) get a few zeros
// more: the vendor's kernels for odd numbers are several times slower than the copies.
//
// - A frozen right side gets columns, once; what they give is cut off behind the product.
// - Otherwise (training) every size along which an operand or the result lies in memory: the
//   columns of the result, the length of the sums, the rows of a transposed left side. The zeros
//   are written by whoever makes the operand, or a copy; both gradients share theirs.
//
// Products whose result is handed out as it is and that generated code writes to rows at odd places
// (context.generated_odd_product) are left alone: nothing is cut off behind them.
//
// Only for vendors' products on GPUs, of types of two bytes. Linear.
#include <map>
#include <tuple>

#include "passes/epilogues.h"
#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

constexpr std::int64_t kColumns = 8;  // of two bytes: what tensor cores load at once
constexpr std::int64_t kWorth = 64;   // columns from which on it pays
// A copy of a matrix costs its bytes, a slow product the flops: their ratio is the third size.
constexpr std::int64_t kWorthCopy = 256;

class Aligner {
  public:
    Aligner(const Graph& g, const PassContext& context)
        : old_(g), context_(context), epilogues_(g), frozen_(frozen_values(g)), rewriter_(g) {}

    Graph run() {
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            const Node& n = old_.node(id);
            const Missing missing = missing_from(n);
            if (missing.any() && !is_generated(id, missing))
                emit(n, missing);
            else
                rewriter_.copy(id);
        }
        return rewriter_.finish();
    }

  private:
    /// Of a product [rows, length] x [length, columns].
    struct Missing {
        std::int64_t rows = 0, length = 0, columns = 0;
        bool any() const { return rows != 0 || length != 0 || columns != 0; }
    };

    static std::int64_t missing(const Expr& size) {
        if (!size.is_constant() || size.constant() < kWorth) return 0;
        return (kColumns - size.constant() % kColumns) % kColumns;
    }
    static bool is_large(const Expr& size) { return known_le(Expr(kWorthCopy), size) == true; }

    bool is_transposed(ValueId v) const {
        const Node* n = old_.producer(v);
        return n != nullptr && n->prim == Prim::Permute && old_.type(v).rank() == 2;
    }

    Missing missing_from(const Node& n) const {
        if (n.prim != Prim::Matmul && n.prim != Prim::MatmulBias) return {};
        const Type &left = old_.type(n.operands[0]), &right = old_.type(n.operands[1]);
        if (right.rank() != 2 || left.rank() != 2 || bytes(right.dtype) != 2) return {};
        const Expr rows = left.sizes[0], length = left.sizes[1], columns = right.sizes[1];
        if (frozen_[n.operands[1]] && (n.operands.size() == 2 || frozen_[n.operands[2]]))
            return {0, 0, missing(columns)};
        if (n.operands.size() != 2) return {};
        Missing m;
        if (is_large(rows) && is_large(length)) m.columns = missing(columns);
        if (is_large(rows) && is_large(columns) &&
            (!is_transposed(n.operands[0]) || is_transposed(n.operands[1])))
            m.length = missing(length);
        if (is_large(length) && is_large(columns) && is_transposed(n.operands[0]))
            m.rows = missing(rows);
        return m;
    }

    /// Whether generated code takes the product as it is.
    bool is_generated(NodeId id, const Missing& missing) const {
        const Node& n = old_.node(id);
        if (!context_.generated_odd_product) return false;
        if (n.prim != Prim::Matmul || missing.rows != 0 || missing.length != 0) return false;
        // Both sides' rows must run along the sum, sixteen bytes at a time.
        if (is_transposed(n.operands[0]) || !is_transposed(n.operands[1])) return false;
        const Type& left = old_.type(n.operands[0]);
        if (!left.sizes[1].is_constant() || left.sizes[1].constant() % kColumns != 0) return false;
        if (!epilogues_.only_handed_out(id)) return false;
        return context_.generated_odd_product(
            {left.sizes[0], old_.type(n.results[0]).sizes[1], left.sizes[1], left.dtype});
    }

    /// `v` with zeros behind its last two dims. A transposed matrix is filled up as it lies.
    ValueId padded(ValueId v, std::int64_t rows, std::int64_t columns) {
        if (rows == 0 && columns == 0) return v;
        Graph& g = rewriter_.out();
        if (const Node* n = g.producer(v); n != nullptr && n->prim == Prim::Permute &&
                                           g.type(v).rank() == 2 &&
                                           n->attrs.get<Ints>("dims") == Ints{1, 0})
            return g.emit(Prim::Permute, {padded(n->operands[0], columns, rows)},
                          {{"dims", Ints{1, 0}}});
        const auto key = std::tuple(v, rows, columns);
        if (const auto known = made_.find(key); known != made_.end()) return known->second;
        const auto rank = static_cast<std::size_t>(g.type(v).rank());
        Sizes low(rank, Expr(0)), high(rank, Expr(0));
        high.back() = columns;
        if (rank > 1) high[rank - 2] = rows;
        const ValueId made =
            g.emit(Prim::Pad, {v}, {{"low", low}, {"high", high}, {"value", Scalar(0.0)}});
        made_.emplace(key, made);
        return made;
    }

    void emit(const Node& n, const Missing& missing) {
        std::vector<ValueId> operands{
            padded(rewriter_(n.operands[0]), missing.rows, missing.length),
            padded(rewriter_(n.operands[1]), missing.length, missing.columns)};
        if (n.operands.size() > 2)
            operands.push_back(padded(rewriter_(n.operands[2]), 0, missing.columns));
        Graph& g = rewriter_.out();
        ValueId result = g.emit(n.prim, std::move(operands), n.attrs, n.origin);
        if (missing.rows != 0 || missing.columns != 0) {
            const Type& type = old_.type(n.results[0]);
            const NodeId part = g.add_with_types(
                Prim::Slice, {result},
                {{"starts", Sizes{0, 0}}, {"ends", type.sizes}, {"steps", Ints{1, 1}}}, {type},
                n.origin);
            result = g.node(part).results[0];
        }
        rewriter_.map(n.results[0], result);
    }

    const Graph& old_;
    const PassContext& context_;
    const Epilogues epilogues_;
    std::vector<bool> frozen_;
    std::map<std::tuple<ValueId, std::int64_t, std::int64_t>, ValueId> made_;
    Rewriter rewriter_;
};

}  // namespace

Graph align_columns(const Graph& graph, const PassContext& context) {
    if (!context.vendor_epilogues) return graph;
    return Aligner(graph, context).run();
}

}  // namespace ingot
