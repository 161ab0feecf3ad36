// See partition.h. The cut: a value has two vertices, `made` and `there`. The edge between them is
// cut when the value is saved; a value whose `made` lies on the sink's side is computed again in
// the backward, so the operands of its node must be there too.
#include "passes/partition.h"

#include <algorithm>
#include <cmath>

#include "passes/facts.h"
#include "passes/max_flow.h"

namespace ingot {

namespace {

constexpr double kUnknownSize = 4096;  // stands for a symbolic size

double count(const Sizes& sizes) {
    double n = 1;
    for (Expr e : sizes) n *= e.is_constant() ? static_cast<double>(e.constant()) : kUnknownSize;
    return n;
}
double bytes_of(const Type& type) { return count(type.sizes) * bytes(type.dtype); }

/// Computing such a node a second time costs about as much as reading a saved result.
bool is_cheap(const Node& n) {
    switch (kind(n.prim)) {
        case PrimKind::Pointwise:
        case PrimKind::Movement:
        case PrimKind::Creation:
        case PrimKind::Complex:
            return n.prim != Prim::Empty;
        case PrimKind::Indexing:
            return n.prim == Prim::Gather || n.prim == Prim::Take;
        default:
            return false;
    }
}
bool is_repeatable(const Node& n) { return is_pure(n) && n.prim != Prim::Empty; }

/// Whether a kernel of another node can compute this one on the way.
bool fuses(const Node& n) {
    return is_pointwise(n.prim) || is_movement(n.prim) || is_reduction(n.prim);
}

/// About how many operations computing the node again takes.
double work_of(const Graph& g, const Node& n) {
    double results = 0, operands = 0;
    for (ValueId v : n.results) results += count(g.type(v).sizes);
    for (ValueId v : n.operands) operands += count(g.type(v).sizes);
    if (n.prim == Prim::Matmul) {
        Expr k = g.type(n.operands[0]).sizes.back();
        return 2 * results * (k.is_constant() ? static_cast<double>(k.constant()) : kUnknownSize);
    }
    if (kind(n.prim) == PrimKind::Contraction) return 2 * results * std::sqrt(operands);
    return kind(n.prim) == PrimKind::Reduction ? operands : 8 * (operands + results);
}

class Partitioner {
  public:
    Partitioner(const Graph& joint, const PartitionQuery& query) : g_(joint), query_(query) {}

    Partition run() {
        classify();
        measure_distances();
        choose();
        Partition out{Graph(g_.shared_pool()), Graph(g_.shared_pool()), {}, 0};
        emit_forward(out);
        emit_backward(out);
        return out;
    }

  private:
    bool of_backward(ValueId v) const { return tangent_[v]; }

    /// Which values depend on tangents, which the forward must compute, what the backward reads.
    void classify() {
        tangent_.assign(g_.values().size(), false);
        needed_.assign(g_.values().size(), false);
        read_.assign(g_.values().size(), false);
        for (std::int32_t t : query_.tangents) tangent_[g_.inputs()[t].value] = true;
        for (const Node& n : g_.nodes()) {
            bool depends = std::any_of(n.operands.begin(), n.operands.end(),
                                       [&](ValueId v) { return tangent_[v]; });
            for (ValueId v : n.results) tangent_[v] = depends;
        }
        for (std::size_t i = 0; i < query_.forward_outputs; ++i) {
            ValueId v = g_.outputs()[i].value;
            if (tangent_[v])
                throw NotSupported("an output of the forward needs a gradient's value");
            needed_[v] = true;
        }
        for (NodeId id = static_cast<NodeId>(g_.nodes().size()); id-- > 0;) {
            const Node& n = g_.node(id);
            if (n.results.empty() ? false : tangent_[n.results[0]]) continue;
            bool used = has_effect(n);
            for (ValueId v : n.results) used = used || needed_[v];
            if (used)
                for (ValueId v : n.operands) needed_[v] = true;
        }
        for (const Node& n : g_.nodes())
            if (!n.results.empty() && tangent_[n.results[0]])
                for (ValueId v : n.operands)
                    if (!tangent_[v]) read_[v] = true;
        for (std::size_t i = query_.forward_outputs; i < g_.outputs().size(); ++i) {
            ValueId v = g_.outputs()[i].value;
            if (g_.outputs()[i].writes_input >= 0)
                throw NotSupported("the backward writes an input");
            if (!tangent_[v]) read_[v] = true;
        }
    }

    /// How many steps a value is away from its nearest reader in the backward, and whether the
    /// forward has it in memory anyway.
    void measure_distances() {
        distance_.assign(g_.values().size(), 100);
        in_memory_.assign(g_.values().size(), false);
        for (std::size_t v = 0; v < read_.size(); ++v)
            if (read_[v]) distance_[v] = 0;
        for (NodeId id = static_cast<NodeId>(g_.nodes().size()); id-- > 0;) {
            const Node& n = g_.node(id);
            int nearest = 100;
            const int step = query_.views_are_free && is_movement(n.prim) ? 0 : 1;
            for (ValueId v : n.results) nearest = std::min(nearest, distance_[v] + step);
            for (ValueId v : n.operands) {
                distance_[v] = std::min(distance_[v], nearest);
                if (!fuses(n)) in_memory_[v] = true;
            }
            if (!is_pointwise(n.prim) && !is_movement(n.prim))
                for (ValueId v : n.results) in_memory_[v] = true;
            // Who reads a view of it reads its memory.
            if (query_.views_are_free && is_movement(n.prim) && in_memory_[n.results[0]])
                for (ValueId v : n.operands) in_memory_[v] = true;
        }
        for (std::size_t i = 0; i < query_.forward_outputs; ++i)
            in_memory_[g_.outputs()[i].value] = true;
    }

    double weight(ValueId v) const {
        const Value& value = g_.values()[v];
        if (value.producer == kNone)
            return query_.readable_in_backward[value.position] ? 1 : MaxFlow::kInfinite;
        double w = bytes_of(value.type) * std::pow(1.02, distance_[v]);
        if (query_.views_are_free && is_movement(g_.node(value.producer).prim)) w *= 1.01;
        return in_memory_[v] ? w + 1 : 2 * w + 1;
    }

    /// The cut when the nodes in `again` may be computed twice besides the cheap ones. Returns the
    /// bytes saved, or infinity.
    double cut(const std::vector<bool>& again) {
        const std::size_t n = g_.values().size(), source = 2 * n, sink = 2 * n + 1;
        MaxFlow flow(2 * n + 2);
        for (ValueId v = 0; v < n; ++v) {
            if (of_backward(v)) continue;
            flow.add_edge(2 * v, 2 * v + 1, weight(v));
            const NodeId producer = g_.values()[v].producer;
            if (producer == kNone || !again[producer])
                flow.add_edge(source, 2 * v, MaxFlow::kInfinite);
            else
                for (ValueId o : g_.node(producer).operands)
                    flow.add_edge(2 * o + 1, 2 * v, MaxFlow::kInfinite);
            if (read_[v]) flow.add_edge(2 * v + 1, sink, MaxFlow::kInfinite);
        }
        if (flow.run(source, sink) >= MaxFlow::kInfinite) return MaxFlow::kInfinite;
        saved_.assign(n, false);
        recomputed_.assign(n, false);
        double total = 0;
        for (ValueId v = 0; v < n; ++v) {
            if (of_backward(v)) continue;
            saved_[v] = flow.source_side(2 * v) && !flow.source_side(2 * v + 1);
            recomputed_[v] = !flow.source_side(2 * v);
            if (saved_[v] && g_.values()[v].producer != kNone) total += bytes_of(g_.type(v));
        }
        return total;
    }

    void choose() {
        std::vector<bool> cheap(g_.nodes().size());
        std::vector<NodeId> costly;  // that may be computed again under a budget
        for (NodeId id = 0; id < g_.nodes().size(); ++id) {
            cheap[id] = is_cheap(g_.node(id));
            bool forward = g_.node(id).results.empty() || !tangent_[g_.node(id).results[0]];
            if (!cheap[id] && forward && is_repeatable(g_.node(id))) costly.push_back(id);
        }
        const double all = cut(cheap);
        if (all >= MaxFlow::kInfinite)
            throw NotSupported("the backward needs an input that has changed");
        if (query_.memory_budget >= 1 || all == 0) return;
        // The least work for a byte first.
        auto price = [&](NodeId id) {
            double size = 0;
            for (ValueId v : g_.node(id).results) size += bytes_of(g_.type(v));
            return work_of(g_, g_.node(id)) / std::max(size, 1.0);
        };
        std::stable_sort(costly.begin(), costly.end(),
                         [&](NodeId a, NodeId b) { return price(a) < price(b); });
        std::size_t low = 0, high = costly.size();
        auto with = [&](std::size_t n) {
            std::vector<bool> again = cheap;
            for (std::size_t i = 0; i < n; ++i) again[costly[i]] = true;
            return cut(again);
        };
        const double wanted = std::max(query_.memory_budget, 0.0) * all;
        while (low < high) {
            std::size_t middle = (low + high) / 2;
            if (with(middle) <= wanted)
                high = middle;
            else
                low = middle + 1;
        }
        with(low);
    }

    // ---- the two graphs ----

    struct Emission {
        Graph& graph;
        std::vector<ValueId> map;
    };

    void copy(Emission& e, const Node& n) const {
        std::vector<ValueId> operands;
        for (ValueId v : n.operands) {
            check(e.map[v] != kNone, "partition: an operand is on the other side");
            operands.push_back(e.map[v]);
        }
        std::vector<Type> types;
        for (ValueId v : n.results) types.push_back(g_.type(v));
        NodeId id = e.graph.add_with_types(n.prim, std::move(operands), n.attrs, std::move(types),
                                           n.origin);
        // A result that was saved stays what was saved.
        for (std::size_t i = 0; i < n.results.size(); ++i)
            if (e.map[n.results[i]] == kNone) e.map[n.results[i]] = e.graph.node(id).results[i];
    }

    Sizes strides_of(ValueId v) const {
        Sizes strides = query_.strides_of ? query_.strides_of(g_, v) : Sizes{};
        return strides.size() == g_.type(v).sizes.size() ? strides
                                                         : contiguous_strides(g_.type(v).sizes);
    }

    void emit_forward(Partition& out) const {
        Emission e{out.forward, std::vector<ValueId>(g_.values().size(), kNone)};
        e.graph.round_intermediates = g_.round_intermediates;
        std::vector<std::int32_t> position(g_.inputs().size(), -1);
        for (std::size_t i = 0; i < g_.inputs().size(); ++i) {
            const Input& in = g_.inputs()[i];
            if (tangent_[in.value]) continue;
            position[i] = static_cast<std::int32_t>(e.graph.inputs().size());
            e.map[in.value] = e.graph.add_input(g_.type(in.value), in.name, in.strides, in.frozen);
        }
        std::vector<bool> wanted = needed_;
        for (std::size_t v = 0; v < saved_.size(); ++v)
            if (saved_[v]) wanted[v] = true;
        std::vector<bool> stays(g_.nodes().size(), false);
        for (NodeId id = static_cast<NodeId>(g_.nodes().size()); id-- > 0;) {
            const Node& n = g_.node(id);
            if (!n.results.empty() && tangent_[n.results[0]]) continue;
            bool used = has_effect(n);
            for (ValueId v : n.results) used = used || wanted[v];
            stays[id] = used;
            if (used)
                for (ValueId v : n.operands) wanted[v] = true;
        }
        for (NodeId id = 0; id < g_.nodes().size(); ++id)
            if (stays[id]) copy(e, g_.node(id));
        for (std::size_t i = 0; i < query_.forward_outputs; ++i) {
            const Output& o = g_.outputs()[i];
            const std::int32_t written = o.writes_input >= 0 ? position[o.writes_input] : -1;
            e.graph.add_output(e.map[o.value], o.strides, written);
        }
        for (const SizeGuard& guard : g_.guards()) e.graph.add_guard(guard);
        for (ValueId v = 0; v < saved_.size(); ++v)
            if (saved_[v]) out.saved.push_back(source_of(v, e, out));
    }

    SavedValue source_of(ValueId v, Emission& e, Partition& out) const {
        const Value& value = g_.values()[v];
        if (value.producer == kNone)
            return {SavedValue::From::Input, static_cast<std::int32_t>(value.position)};
        for (std::size_t i = 0; i < query_.forward_outputs; ++i)
            if (g_.outputs()[i].value == v && g_.outputs()[i].writes_input < 0)
                return {SavedValue::From::Output, static_cast<std::int32_t>(i)};
        const auto index = static_cast<std::int32_t>(e.graph.outputs().size());
        e.graph.add_output(e.map[v], strides_of(v));
        out.saved_bytes += static_cast<std::int64_t>(bytes_of(value.type));
        return {SavedValue::From::Output, index};
    }

    void emit_backward(Partition& out) const {
        Emission e{out.backward, std::vector<ValueId>(g_.values().size(), kNone)};
        for (const SizeGuard& guard : g_.guards()) e.graph.add_guard(guard);
        e.graph.round_intermediates = g_.round_intermediates;
        std::size_t next = 0;
        for (ValueId v = 0; v < saved_.size(); ++v) {
            if (!saved_[v]) continue;
            const SavedValue& s = out.saved[next++];
            Sizes strides = s.from == SavedValue::From::Input
                                ? g_.inputs()[s.index].strides
                                : out.forward.outputs()[s.index].strides;
            e.map[v] = e.graph.add_input(g_.type(v), "saved" + std::to_string(next - 1),
                                         std::move(strides));
        }
        for (std::int32_t t : query_.tangents) {
            const Input& in = g_.inputs()[t];
            e.map[in.value] = e.graph.add_input(g_.type(in.value), in.name, in.strides);
        }
        for (const Node& n : g_.nodes()) {
            if (n.results.empty() || !tangent_[n.results[0]]) continue;
            if (has_effect(n) && n.prim != Prim::ExternCall)
                throw NotSupported("an effect in the backward");
            for (ValueId v : n.operands) recompute(e, v);
            copy(e, n);
        }
        for (std::size_t i = query_.forward_outputs; i < g_.outputs().size(); ++i) {
            recompute(e, g_.outputs()[i].value);
            e.graph.add_output(e.map[g_.outputs()[i].value], g_.outputs()[i].strides);
        }
    }

    /// Emits what computes `wanted` again, right before its first use; deep chains need a stack.
    void recompute(Emission& e, ValueId wanted) const {
        std::vector<ValueId> stack{wanted};
        while (!stack.empty()) {
            ValueId v = stack.back();
            if (e.map[v] != kNone) {
                stack.pop_back();
                continue;
            }
            check(g_.values()[v].producer != kNone && recomputed_[v],
                  "partition: the backward reads a value that was not saved");
            const Node& n = g_.node(g_.values()[v].producer);
            bool ready = true;
            for (ValueId o : n.operands)
                if (e.map[o] == kNone) {
                    stack.push_back(o);
                    ready = false;
                }
            if (!ready) continue;
            copy(e, n);
            stack.pop_back();
        }
    }

    const Graph& g_;
    const PartitionQuery& query_;
    // By value:
    std::vector<bool> tangent_;    // depends on a tangent
    std::vector<bool> needed_;     // the forward's outputs and effects depend on it
    std::vector<bool> read_;       // a node of the backward reads it
    std::vector<bool> in_memory_;  // the forward writes it to memory anyway
    std::vector<int> distance_;
    std::vector<bool> saved_, recomputed_;
};

}  // namespace

Partition partition(const Graph& joint, const PartitionQuery& query) {
    return Partitioner(joint, query).run();
}

}  // namespace ingot
