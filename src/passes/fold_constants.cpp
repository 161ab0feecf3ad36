// Computes small nodes without inputs now, through the reference evaluator: what only depends on
// constants becomes a constant, of one value a `full`. Linear; each folded node costs its elements.
#include <cstring>

#include "ir/reference.h"
#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

using Data = std::shared_ptr<const std::vector<std::uint8_t>>;

std::optional<std::int64_t> constant_count(const Type& t) {
    Expr n = t.numel();
    for (Expr e : t.sizes)
        if (!e.is_constant()) return std::nullopt;
    return n.constant();
}

Ints constant_sizes(const Type& t) {
    Ints out;
    for (Expr e : t.sizes) out.push_back(e.constant());
    return out;
}

// The elements of a constant value, if it is a small one.
std::optional<Tensor> constant_tensor(const Graph& g, ValueId v, std::int64_t limit) {
    const Node* n = g.producer(v);
    auto count = constant_count(g.type(v));
    if (n == nullptr || !count || *count > limit) return std::nullopt;
    if (n->prim != Prim::Full && n->prim != Prim::Constant && n->prim != Prim::Iota)
        return std::nullopt;
    return evaluate(n->prim, {}, n->attrs, std::span(&g.type(v), 1))[0];
}

bool all_equal(const Tensor& t) {
    std::size_t step = static_cast<std::size_t>(bytes(t.dtype));
    for (std::size_t i = step; i < t.data.size(); i += step)
        if (std::memcmp(t.data.data(), t.data.data() + i, step) != 0) return false;
    return !t.data.empty();
}

ValueId emit_constant(Graph& g, const Type& type, Tensor value, const std::string& origin) {
    if (all_equal(value)) {
        Num first = value.get(0);
        // A NaN's payload is no part of a number; such a constant stays bytes.
        Tensor again(type.dtype, constant_sizes(type));
        if (again.numel() > 0) again.set(0, to_num(to_scalar(first, type.dtype), type.dtype));
        if (std::memcmp(again.data.data(), value.data.data(),
                        static_cast<std::size_t>(bytes(type.dtype))) == 0)
            return emit_full(g, type, to_scalar(first, type.dtype), origin);
    }
    Data data = std::make_shared<const std::vector<std::uint8_t>>(std::move(value.data));
    NodeId id = g.add_with_types(Prim::Constant, {},
                                 {{"dtype", type.dtype}, {"sizes", type.sizes}, {"data", data}},
                                 {type}, origin);
    return g.node(id).results[0];
}

bool divides_by_zero(Prim prim, std::span<const Tensor> operands) {
    if (operands.size() != 2) return false;
    const Tensor& divisor = operands[1];
    for (std::int64_t i = 0; i < divisor.numel(); ++i)
        if (divides_by_zero(prim, divisor.dtype, divisor.get(i))) return true;
    return false;
}

// The results of a node over constants; nothing when it is not one or too large.
std::optional<std::vector<Tensor>> folded(const Graph& old, const Node& n, const Rewriter& map,
                                          const Graph& out, std::int64_t limit) {
    if (!is_pure(n) || n.prim == Prim::ExternCall || carried_out_by_host(n.prim) ||
        n.operands.empty())
        return std::nullopt;
    std::vector<Type> types;
    for (ValueId v : n.results) {
        auto count = constant_count(old.type(v));
        if (!count || *count > limit) return std::nullopt;
        types.push_back(old.type(v));
    }
    std::vector<Tensor> operands;
    for (ValueId v : n.operands) {
        auto t = constant_tensor(out, map(v), limit);
        if (!t) return std::nullopt;
        operands.push_back(std::move(*t));
    }
    if (divides_by_zero(n.prim, operands)) return std::nullopt;
    try {
        return evaluate(n.prim, operands, n.attrs, types,
                        [](Expr) -> std::int64_t { throw NotSupported("a symbolic attribute"); });
    } catch (const Error&) {
        return std::nullopt;  // an error of the program happens where it would in eager
    }
}

}  // namespace

Graph fold_constants(const Graph& graph, const PassContext& context) {
    Rewriter rewriter(graph);
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
        const Node& n = graph.node(id);
        auto values = folded(graph, n, rewriter, rewriter.out(), context.constant_elements);
        if (!values) {
            rewriter.copy(id);
            continue;
        }
        for (std::size_t i = 0; i < n.results.size(); ++i)
            rewriter.map(n.results[i], emit_constant(rewriter.out(), graph.type(n.results[i]),
                                                     std::move((*values)[i]), n.origin));
    }
    return rewriter.finish();
}

}  // namespace ingot
