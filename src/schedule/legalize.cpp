// See legalize.h.
#include "schedule/legalize.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "passes/facts.h"
#include "schedule/convert.h"
#include "schedule/convolution_layout.h"
#include "schedule/legalize_convolution.h"
#include "schedule/legalize_pooling.h"
#include "schedule/legalize_windows.h"
#include "schedule/reduction_stages.h"
#include "schedule/row_distances.h"
#include "schedule/split_rows.h"

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

// On a GPU: rows in pieces; true where the node was such.
bool reduce_pieces(Rewriter& r, const Graph& old, const Node& n, SplitRows& split) {
    Graph& g = r.out();
    const Ints dims = n.attrs.get<Ints>("dims");
    std::optional<ValueId> v;
    if (const ValueId x = exponentials_of(old, n); x != kNone)
        v = split.exponentials(g, r(x), dims);
    if (!v) {
        ValueId x = r(n.operands[0]);
        if (n.prim == Prim::Sum || n.prim == Prim::Prod)
            x = convert(g, x, compute_type(g.type(x).dtype));
        v = split.reduce(g, n.prim, x, dims, n.operands[0], n.results[0]);
        // Sums of columns have more forms, below.
        if (!v && n.prim != Prim::Sum) v = split.reduce_columns(g, n.prim, x, dims);
    }
    if (!v) return false;
    r.map(n.results[0], convert(g, *v, old.type(n.results[0]).dtype));
    return true;
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
            legalize_max_pool(r, old, n, uses[n.results[1]] != 0);
            return;
        case Prim::MaxPoolGrad:
            if (gathered_gradient(r, old, n, in_memory, options.gpu)) return;
            break;
        case Prim::Conv:
        case Prim::PackedConv:
        case Prim::ConvGradInput:
        case Prim::ConvGradWeight:
            if (legalize_convolution(r, old, n, in_memory, options)) return;
            break;
        default:
            if (!is_reduction(n.prim)) break;
            if (options.gpu && reduce_pieces(r, old, n, *sums.split)) return;
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
    std::optional<Layouts> layouts;
    if (options.gpu) layouts.emplace(graph, true);
    SplitRows split(graph, layouts ? &*layouts : nullptr, options.cores);
    Sums sums;
    sums.split = &split;
    std::vector<ValueId> in_memory;
    std::optional<WalkedRows> rows;
    if (options.gpu) rows.emplace(graph);
    const RowsOfDistances of_distances = options.gpu ? rows_of_distances(graph) : RowsOfDistances{};
    for (NodeId id = 0; id < graph.nodes().size(); ++id)
        if (live[id] &&
            !(layouts && convolve_channels_last(r, graph, graph.node(id), *layouts, in_memory)))
            legalize_node(r, graph, id, uses, options, rows ? &*rows : nullptr, sums, of_distances,
                          in_memory);
    Graph g = r.finish();
    make_outputs_distinct(g);
    return {std::move(g), std::move(in_memory)};
}

}  // namespace ingot::sched
