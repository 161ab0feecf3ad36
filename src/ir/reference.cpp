// The driver of the reference evaluator; see reference.h.
#include "ir/reference.h"

#include <unordered_map>

#include "ir/print.h"
#include "ir/reference_call.h"

namespace ingot {

bool carried_out_by_host(Prim p) {
    switch (p) {
        case Prim::RandState:
        case Prim::RandUniform:
        case Prim::RandNormal:
        case Prim::RandInt:
        case Prim::RandBernoulli:
        case Prim::RandExponential:
        case Prim::RandPerm:
        case Prim::Multinomial:
        case Prim::FftC2C:
        case Prim::FftR2C:
        case Prim::FftC2R:
        case Prim::Cholesky:
        case Prim::TriangularSolve:
        case Prim::Inverse:
        case Prim::Det:
        case Prim::Interpolate:
        case Prim::InterpolateGrad:
        case Prim::GridSample:
        case Prim::ExternCall:
        case Prim::AllReduce:
        case Prim::AllGather:
        case Prim::ReduceScatter:
        case Prim::AllToAll:
        case Prim::Send:
            return true;
        default:
            return false;
    }
}

namespace {

void pointwise(const reference::Call& c) {
    const DType dtype = c.x[c.prim == Prim::Select ? 1 : 0].dtype;
    std::int64_t imm = c.prim == Prim::Round2      ? c.integer("decimals")
                       : c.prim == Prim::Polygamma ? c.integer("order")
                       : c.prim == Prim::Philox    ? c.integer("layout")
                                                   : 0;
    std::vector<Num> operands(c.x.size());
    Tensor& out = c.out[0];
    for (std::int64_t i = 0; i < out.numel(); ++i) {
        for (std::size_t k = 0; k < operands.size(); ++k) operands[k] = c.x[k].get(i);
        out.set(i, evaluate_pointwise(c.prim, dtype, out.dtype, operands, imm));
    }
}

void effect(const reference::Call& c) {
    c.out[0] = c.x[0];
    if (c.prim != Prim::Assert) return;
    for (std::int64_t i = 0; i < c.x[0].numel(); ++i)
        if (!is_nonzero(c.x[0].get(i), c.x[0].dtype))
            throw UserError(c.attr<std::string>("message"));
}

// Symbols that stand alone as a size of an input.
std::unordered_map<const ExprNode*, std::int64_t> sizes_of_inputs(const Graph& g,
                                                                  std::span<const Tensor> inputs) {
    check(inputs.size() == g.inputs().size(), "a graph got another number of inputs");
    std::unordered_map<const ExprNode*, std::int64_t> known;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const Type& type = g.type(g.inputs()[i].value);
        check(type.dtype == inputs[i].dtype && type.rank() == inputs[i].rank(),
              "input " + std::to_string(i) + " does not fit " + to_string(type));
        for (std::size_t d = 0; d < type.sizes.size(); ++d)
            if (type.sizes[d].is_symbol()) known.emplace(type.sizes[d].node(), inputs[i].sizes[d]);
    }
    return known;
}

}  // namespace

std::vector<Tensor> evaluate(Prim prim, std::span<const Tensor> operands, const Attrs& attrs,
                             std::span<const Type> results, const SymbolValues& symbols) {
    if (carried_out_by_host(prim))
        throw NotSupported(std::string(name(prim)) + " is carried out by the host");
    std::vector<Tensor> out;
    reference::Call c{prim, operands, attrs, out, symbols};
    for (const Type& t : results) out.emplace_back(t.dtype, c.values(t.sizes));
    switch (kind(prim)) {
        case PrimKind::Pointwise:
            pointwise(c);
            break;
        case PrimKind::Reduction:
            reference::reduction(c);
            break;
        case PrimKind::Scan:
            reference::scan(c);
            break;
        case PrimKind::Movement:
            reference::movement(c);
            break;
        case PrimKind::Indexing:
            reference::indexing(c);
            break;
        case PrimKind::Contraction:
            reference::contraction(c);
            break;
        case PrimKind::Sorting:
            reference::sorting(c);
            break;
        case PrimKind::Creation:
            reference::creation(c);
            break;
        case PrimKind::Complex:
            reference::complex_view(c);
            break;
        case PrimKind::Stencil:
            reference::stencil(c);
            break;
        case PrimKind::Linalg:  // trace
            reference::reduction(c);
            break;
        case PrimKind::Effect:
            effect(c);
            break;
        case PrimKind::Random:
            throw InternalError("random prims are the host's");
    }
    return out;
}

std::vector<Tensor> evaluate(const Graph& graph, std::span<const Tensor> inputs,
                             const SymbolValues& symbols) {
    auto known = sizes_of_inputs(graph, inputs);
    SymbolValues value = [&](Expr symbol) {
        if (auto it = known.find(symbol.node()); it != known.end()) return it->second;
        if (symbols) return symbols(symbol);
        throw InternalError("no value for the symbol " + to_string(symbol));
    };
    std::vector<Tensor> values(graph.values().size());
    for (std::size_t i = 0; i < inputs.size(); ++i) values[graph.inputs()[i].value] = inputs[i];
    for (const Node& n : graph.nodes()) {
        std::vector<Tensor> operands;
        for (ValueId v : n.operands) operands.push_back(values[v]);
        std::vector<Type> types;
        for (ValueId v : n.results) types.push_back(graph.type(v));
        std::vector<Tensor> results = evaluate(n.prim, operands, n.attrs, types, value);
        for (std::size_t i = 0; i < results.size(); ++i)
            values[n.results[i]] = std::move(results[i]);
    }
    std::vector<Tensor> outputs;
    for (const Output& o : graph.outputs()) outputs.push_back(values[o.value]);
    return outputs;
}

}  // namespace ingot
