// See legalize.h.
#include "schedule/legalize.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "passes/facts.h"
#include "schedule/convert.h"
#include "schedule/legalize_convolution.h"
#include "schedule/legalize_windows.h"
#include "schedule/reduction_stages.h"
#include "schedule/row_distances.h"

namespace ingot::sched {

namespace {

using Limits = std::numeric_limits<double>;

ValueId norm2(Graph& g, const Node& n, ValueId operand) {
    DType dtype = g.type(operand).dtype;
    ValueId x = convert(g, operand, compute_type(dtype));
    ValueId sum =
        g.emit(Prim::Sum, {g.emit(Prim::Mul, {x, x})}, {{"dims", n.attrs.get<Ints>("dims")}});
    return convert(g, g.emit(Prim::Sqrt, {sum}), dtype);
}

Scalar smallest(DType t) {
    if (is_float(t)) return Scalar(-Limits::infinity());
    if (!is_signed_int(t)) return Scalar(std::int64_t{0});
    int bits = 8 * bytes(t);
    return Scalar(bits == 64 ? std::numeric_limits<std::int64_t>::min()
                             : -(std::int64_t{1} << (bits - 1)));
}

struct Pool {
    Ints kernel, stride, padding, dilation;
    std::size_t first;  // spatial dim
};

// The windows of a max pooling, padded so that windows may stick out at the end (ceil mode).
ValueId pool_windows(Graph& g, const Pool& p, ValueId x, const Sizes& result) {
    const Sizes sizes = g.type(x).sizes;
    Sizes low(sizes.size(), Expr(0)), high(sizes.size(), Expr(0)), inside;
    Ints dims;
    bool pads = false;
    for (std::size_t i = 0; i < p.kernel.size(); ++i) {
        std::size_t d = p.first + i;
        dims.push_back(static_cast<std::int64_t>(d));
        inside.push_back(p.kernel[i]);
        low[d] = p.padding[i];
        Expr needed =
            (result[d] - Expr(1)) * Expr(p.stride[i]) + Expr((p.kernel[i] - 1) * p.dilation[i] + 1);
        // A symbolic size leaves out windows that stick out: what is behind the last one may stay.
        high[d] = sizes[d].is_constant() ? needed - sizes[d] - low[d] : low[d];
        pads = pads || !low[d].is(0) || !high[d].is(0);
    }
    if (pads)
        x = g.emit(Prim::Pad, {x},
                   {{"low", low}, {"high", high}, {"value", smallest(g.type(x).dtype)}});
    return g.emit(
        Prim::Window, {x},
        {{"dims", dims}, {"sizes", inside}, {"steps", p.stride}, {"dilations", p.dilation}});
}

// Turns the position inside the window into a flat spatial index.
ValueId flat_index(Graph& g, const Pool& p, ValueId position, const Sizes& sizes) {
    const Sizes result = g.type(position).sizes;
    ValueId flat = full_like(g, position, Scalar(0));
    for (std::size_t i = 0; i < p.kernel.size(); ++i) {
        std::int64_t inner = 1;
        for (std::size_t j = i + 1; j < p.kernel.size(); ++j) inner *= p.kernel[j];
        ValueId k = g.emit(Prim::FloorDiv, {position, full_like(g, position, Scalar(inner))});
        k = g.emit(Prim::Remainder, {k, full_like(g, k, Scalar(p.kernel[i]))});
        k = g.emit(Prim::Mul, {k, full_like(g, k, Scalar(p.dilation[i]))});
        ValueId origin = g.emit(Prim::Iota, {},
                                {{"dtype", DType::I64},
                                 {"sizes", result},
                                 {"dim", static_cast<std::int64_t>(p.first + i)},
                                 {"start", Scalar(-p.padding[i])},
                                 {"step", Scalar(p.stride[i])}});
        flat = g.emit(Prim::Mul, {flat, size_like(g, flat, sizes[p.first + i])});
        flat = g.emit(Prim::Add, {flat, g.emit(Prim::Add, {origin, k})});
    }
    return flat;
}

void max_pool(Rewriter& r, const Graph& old, const Node& n, const std::vector<int>& uses) {
    Graph& g = r.out();
    ValueId x = r(n.operands[0]);
    const Sizes result = old.type(n.results[0]).sizes;
    Pool p{n.attrs.get<Ints>("kernel"), n.attrs.get<Ints>("stride"), n.attrs.get<Ints>("padding"),
           n.attrs.get<Ints>("dilation"), 0};
    p.first = result.size() - p.kernel.size();
    Ints dims;
    for (std::size_t i = 0; i < p.kernel.size(); ++i)
        dims.push_back(static_cast<std::int64_t>(result.size() + i));
    ValueId windows = pool_windows(g, p, x, result);
    r.map(n.results[0], g.emit(Prim::Amax, {windows}, {{"dims", dims}}));
    if (uses[n.results[1]] == 0) return;
    ValueId position = g.emit(Prim::Argmax, {windows}, {{"dims", dims}});
    r.map(n.results[1], flat_index(g, p, position, old.type(n.operands[0]).sizes));
}

// Nodes an output or an effect needs.
std::vector<bool> live_nodes(const Graph& g) {
    std::vector<bool> live(g.nodes().size(), false);
    std::vector<bool> wanted(g.values().size(), false);
    for (const Output& o : g.outputs()) wanted[o.value] = true;
    for (std::size_t i = g.nodes().size(); i-- > 0;) {
        const Node& n = g.nodes()[i];
        live[i] = has_effect(n) || std::any_of(n.results.begin(), n.results.end(),
                                               [&](ValueId v) { return wanted[v]; });
        if (live[i])
            for (ValueId v : n.operands) wanted[v] = true;
    }
    return live;
}

bool is_empty(const Type& t) {
    return std::any_of(t.sizes.begin(), t.sizes.end(), [](Expr e) { return e.is(0); });
}

ValueId full(Graph& g, const Type& t, const Scalar& value) {
    NodeId id = g.add_with_types(Prim::Full, {},
                                 {{"dtype", t.dtype}, {"sizes", t.sizes}, {"value", value}}, {t});
    return g.node(id).results[0];
}

// A probability for all elements is read from one place.
void one_probability(Rewriter& r, const Graph& old, const Node& n) {
    const Type& type = old.type(n.operands[0]);
    ValueId p = r(n.operands[0]);
    if (const auto value = full_value(old, n.operands[0]))
        p = r.out().emit(Prim::Broadcast, {full(r.out(), {type.dtype, {}, type.device}, *value)},
                         {{"sizes", type.sizes}, {"dims", Ints{}}});
    r.map(n.results[0], r.out().emit(n.prim, {p}, n.attrs, n.origin));
}

// Values without elements, and reductions of nothing: index arithmetic has no answer for them.
// True when the node was one.
bool replace_empty(Rewriter& r, const Graph& old, const Node& n) {
    if (kind(n.prim) == PrimKind::Effect || n.results.empty()) return false;
    const bool nothing = std::all_of(n.results.begin(), n.results.end(),
                                     [&](ValueId v) { return is_empty(old.type(v)); });
    if (nothing) {
        for (ValueId v : n.results) r.map(v, full(r.out(), old.type(v), Scalar(0)));
        return true;
    }
    if (!is_reduction(n.prim) || !is_empty(old.type(n.operands[0]))) return false;
    switch (n.prim) {
        case Prim::Sum:
        case Prim::XorSum:
        case Prim::Any:
        case Prim::Norm2:
            r.map(n.results[0], full(r.out(), old.type(n.results[0]), Scalar(0)));
            return true;
        case Prim::Prod:
        case Prim::All:
            r.map(n.results[0], full(r.out(), old.type(n.results[0]), Scalar(1)));
            return true;
        default:
            throw NotSupported(std::string(name(n.prim)) + " of no elements");
    }
}

void legalize_node(Rewriter& r, const Graph& old, NodeId id, const std::vector<int>& uses,
                   const LegalizeOptions& options, const WalkedRows* rows, Sums& sums,
                   const RowsOfDistances& of_distances, std::vector<ValueId>& in_memory) {
    const Node& n = old.node(id);
    Graph& g = r.out();
    if (replace_empty(r, old, n)) return;
    switch (n.prim) {
        case Prim::Var:
            if (is_complex(old.type(n.operands[0]).dtype)) break;
            r.map(n.results[0],
                  variance(g, sums, n, r(n.operands[0]), options.gpu,
                           of_distances.contains({n.operands[0], n.attrs.get<Ints>("dims")})));
            return;
        case Prim::Norm2:
            if (is_complex(old.type(n.operands[0]).dtype)) break;
            r.map(n.results[0], norm2(g, n, r(n.operands[0])));
            return;
        case Prim::RandBernoulli:
            one_probability(r, old, n);
            return;
        case Prim::MaxPoolIndices:
            // With positions, which training wants, a GPU's library reads each image once.
            if (options.gpu && uses[n.results[1]] != 0 &&
                is_reduced_float(old.type(n.results[0]).dtype))
                break;
            max_pool(r, old, n, uses);
            return;
        case Prim::MaxPoolGrad:
            if (options.gpu && gathered_gradient(r, old, n, in_memory)) return;
            break;
        case Prim::Conv:
        case Prim::PackedConv:
        case Prim::ConvGradInput:
        case Prim::ConvGradWeight:
            if (legalize_convolution(r, old, n, in_memory, options)) return;
            break;
        default:
            if (!is_reduction(n.prim)) break;
            if (auto v = two_stages(g, n, r(n.operands[0]), old.type(n.results[0]).sizes,
                                    options.cores)) {
                r.map(n.results[0], *v);
                return;
            }
            if (n.prim == Prim::Sum) {
                const ValueId x = r(n.operands[0]);
                const DType type = g.type(x).dtype;
                if (rows != nullptr && is_float(type) && compute_type(type) == DType::F32 &&
                    rows->walked(n.operands[0]))
                    if (auto v = in_runs(g, x, n.attrs.get<Ints>("dims"))) {
                        r.map(n.results[0], convert(g, *v, type));
                        return;
                    }
                if (options.gpu && type != compute_type(type)) {  // partial sums are not rounded
                    const ValueId wide = convert(g, x, compute_type(type));
                    if (auto v = over_columns(g, n.prim, wide, n.attrs.get<Ints>("dims"))) {
                        r.map(n.results[0], convert(g, *v, type));
                        return;
                    }
                }
                const Ints dims = n.attrs.get<Ints>("dims");
                if (options.gpu)
                    if (auto v = sum_of_distances(g, sums, x, dims)) {
                        r.map(n.results[0], *v);
                        return;
                    }
                r.map(n.results[0], sum_over(g, sums, x, dims, options.gpu));
                return;
            }
    }
    r.copy(id);
}

// An output that must be copied because its value is an input or a constant, has been given
// already, or is written into an input's memory.
void make_outputs_distinct(Graph& g) {
    std::vector<bool> taken(g.values().size(), false);
    for (const Input& in : g.inputs()) taken[in.value] = true;
    for (Output& o : g.mutable_outputs()) {
        const Node* producer = g.producer(o.value);
        bool constant = producer != nullptr && producer->prim == Prim::Constant;
        bool copy = o.writes_input >= 0 || taken[o.value] || constant;
        taken[o.value] = true;
        if (!copy) continue;
        const Sizes sizes = g.type(o.value).sizes;
        // What is written into an input is complete in memory of its own before any input changes.
        if (o.writes_input >= 0 && (producer == nullptr || constant))
            o.value = g.emit(Prim::Reshape, {o.value}, {{"sizes", sizes}});
        o.value = g.emit(Prim::Reshape, {o.value}, {{"sizes", sizes}});
    }
}

}  // namespace

Legalized legalize(const Graph& graph, const LegalizeOptions& options) {
    std::vector<int> uses = use_counts(graph);
    std::vector<bool> live = live_nodes(graph);
    Rewriter r(graph);
    Sums sums;
    std::vector<ValueId> in_memory;
    std::optional<WalkedRows> rows;
    if (options.gpu) rows.emplace(graph);
    const RowsOfDistances of_distances = options.gpu ? rows_of_distances(graph) : RowsOfDistances{};
    for (NodeId id = 0; id < graph.nodes().size(); ++id)
        if (live[id])
            legalize_node(r, graph, id, uses, options, rows ? &*rows : nullptr, sums, of_distances,
                          in_memory);
    Graph g = r.finish();
    make_outputs_distinct(g);
    return {std::move(g), std::move(in_memory)};
}

}  // namespace ingot::sched
