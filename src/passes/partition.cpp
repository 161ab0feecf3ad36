// See partition.h. The cut: a value has two vertices, `made` and `there`. The edge between them is
// cut when the value is saved; a value whose `made` lies on the sink's side is computed again in
// the backward, so the operands of its node must be there too. `recompute` does the same to a
// program that holds both: there the second computations are copies marked "again".
#include "passes/partition.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <unordered_set>

#include "passes/facts.h"
#include "passes/max_flow.h"
#include "passes/passes.h"
#include "passes/regions.h"

namespace ingot {

namespace {

constexpr double kUnknownSize = 4096;  // stands for a symbolic size
constexpr double kHidden = 1e9;        // times the bytes of what a region does not keep
constexpr double kDropped = 0.2;       // of the images that convolutions read
constexpr int kCarriedFrom = 3;        // terms of a sum: a branch with its bias has fewer

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
        find_regions();
        measure_distances();
        if (!query_.parameters.empty() && query_.memory_budget >= 1) find_kept();
        choose();
        Partition out{Graph(g_.shared_pool()), Graph(g_.shared_pool()), {}, 0};
        emit_forward(out);
        emit_backward(out);
        return out;
    }

    /// The joint graph as one program, in which what lies before the fullest moment is forward.
    Graph run_whole() {
        classify_by_time(fullest_moment());
        find_regions();
        measure_distances();
        choose();
        return emit_whole();
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

    /// Before which node the most bytes wait for a reader. Views and what fills memory with one
    /// number have no bytes of their own; results of the program are there anyway.
    NodeId fullest_moment() const {
        const std::size_t count = g_.nodes().size();
        std::vector<NodeId> last(g_.values().size(), 0);
        std::vector<bool> output(g_.values().size(), false);
        for (const Output& o : g_.outputs()) output[o.value] = true;
        std::vector<double> change(count + 1, 0);
        for (NodeId id = static_cast<NodeId>(count); id-- > 0;) {
            const Node& n = g_.node(id);
            const bool view = is_movement(n.prim) && n.results.size() == 1;
            for (ValueId v : n.operands)
                last[v] = std::max(last[v], view ? std::max(id, last[n.results[0]]) : id);
            if (view || kind(n.prim) == PrimKind::Creation) continue;
            for (ValueId v : n.results) {
                if (output[v] || last[v] <= id) continue;
                change[id + 1] += bytes_of(g_.type(v));
                change[last[v]] -= bytes_of(g_.type(v));
            }
        }
        double now = 0, most = 0;
        NodeId fullest = 0;
        for (NodeId id = 0; id < count; ++id) {
            now += change[id];
            if (now > most) fullest = id;
            most = std::max(most, now);
        }
        return fullest;
    }

    void classify_by_time(NodeId split) {
        tangent_.assign(g_.values().size(), false);
        needed_.assign(g_.values().size(), false);
        read_.assign(g_.values().size(), false);
        split_ = split;
        for (NodeId id = 0; id < split; ++id)
            for (ValueId v : g_.node(id).results) needed_[v] = true;
        for (NodeId id = split; id < g_.nodes().size(); ++id) {
            for (ValueId v : g_.node(id).results) tangent_[v] = true;
            for (ValueId v : g_.node(id).operands)
                if (g_.values()[v].producer == kNone || g_.values()[v].producer < split)
                    read_[v] = true;
        }
    }

    /// What only the backward needs, of whatever it is made, is no reader outside of a region.
    void find_regions() {
        std::vector<bool> later(needed_);
        later.flip();
        regions_.emplace(g_, later);
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

    /// The forward's values that its calls and products read, by themselves or as views.
    void find_kept() {
        kept_.assign(g_.values().size(), false);
        std::vector<bool> of_data(g_.values().size(), false);
        for (std::size_t i = 0; i < g_.inputs().size(); ++i)
            of_data[g_.inputs()[i].value] = !query_.parameters[i];
        for (const Node& n : g_.nodes()) {
            const bool any = std::ranges::any_of(n.operands, [&](ValueId v) { return of_data[v]; });
            for (ValueId v : n.results) of_data[v] = any;
        }
        for (NodeId id = static_cast<NodeId>(g_.nodes().size()); id-- > 0;) {
            const Node& n = g_.node(id);
            if (n.results.empty() || tangent_[n.results[0]] || !needed_[n.results[0]]) continue;
            const bool seen = fuses(n) ? is_movement(n.prim) && kept_[n.results[0]] : !is_cheap(n);
            if (seen)
                for (ValueId v : n.operands) kept_[v] = of_data[v];
        }
        keep_carried_sums();
        drop_largest_images();
    }
    /// A sum that is carried from layer to layer, each adding to it, is written for the next one.
    /// Were it computed again, the backward would begin with all of them at once.
    void keep_carried_sums() {
        std::vector<int> terms(g_.values().size(), 0);
        const auto source = [&](ValueId v) {
            for (NodeId p = g_.values()[v].producer; p != kNone; p = g_.values()[v].producer) {
                const Node& n = g_.node(p);
                if (n.prim != Prim::Convert && !is_movement(n.prim)) break;
                v = n.operands[0];
            }
            return v;
        };
        for (const Node& n : g_.nodes()) {
            if (n.prim != Prim::Add || tangent_[n.results[0]] || !needed_[n.results[0]]) continue;
            int most = 0;
            ValueId carried = kNone;
            for (ValueId o : n.operands) {
                const ValueId v = source(o);
                if (terms[v] <= most || g_.type(v).sizes != g_.type(n.results[0]).sizes) continue;
                most = terms[v];
                carried = v;
            }
            terms[n.results[0]] = most + 1;
            if (most >= kCarriedFrom) kept_[carried] = in_memory_[carried] = true;
        }
    }
    /// Images are most of a convolutional network's memory: the largest that convolutions read,
    /// kDropped of all those bytes, are computed again after all.
    void drop_largest_images() {
        std::vector<ValueId> images;
        double total = 0, dropped = 0;
        for (const Node& n : g_.nodes()) {
            if (n.prim != Prim::Conv || tangent_[n.results[0]]) continue;
            const ValueId v = n.operands[0];
            const NodeId made = g_.values()[v].producer;
            if (!kept_[v] || made == kNone || !is_pointwise(g_.node(made).prim)) continue;
            if (std::ranges::find(images, v) != images.end()) continue;
            images.push_back(v);
            total += bytes_of(g_.type(v));
        }
        std::ranges::stable_sort(images, std::greater<>{},
                                 [&](ValueId v) { return bytes_of(g_.type(v)); });
        std::vector<bool> needed(g_.values().size(), false);  // by a dropped one
        dropped_.assign(g_.values().size(), false);
        for (ValueId v : images) {
            if (dropped >= kDropped * total) return;
            // One that takes part in another's computation would be there as long as that one.
            if (needed[v]) continue;
            std::vector<ValueId> path;
            if (!ends_at_kept(v, path)) continue;
            for (ValueId p : path) needed[p] = true;
            kept_[v] = false;
            dropped_[v] = true;
            dropped += bytes_of(g_.type(v));
        }
    }
    /// Whether `v` can be computed again without another image that is: then with the kept values
    /// that are read for it in `path`.
    bool ends_at_kept(ValueId v, std::vector<ValueId>& path) const {
        std::unordered_set<ValueId> seen;
        std::vector<ValueId> stack{v};
        while (!stack.empty()) {
            const ValueId at = stack.back();
            stack.pop_back();
            const NodeId made = g_.values()[at].producer;
            if (made == kNone || !is_cheap(g_.node(made))) continue;
            for (ValueId o : g_.node(made).operands) {
                if (!seen.insert(o).second) continue;
                if (dropped_[o]) return false;
                if (kept_[o])
                    path.push_back(o);
                else
                    stack.push_back(o);
            }
        }
        return true;
    }
    bool keeps(const Node& n) const {
        return !kept_.empty() && !is_movement(n.prim) && n.results.size() == 1 &&
               kept_[n.results[0]] && !regions_->hides(n.results[0]);
    }
    /// Whether the backward computes the node again rather than keep its results, and whether it
    /// does not, though that would be cheap: what a region does not keep, and what it gives.
    bool is_hidden(const Node& n) const {
        return is_repeatable(n) &&
               std::ranges::any_of(n.results, [&](ValueId v) { return regions_->hides(v); });
    }
    bool is_given(const Node& n) const {
        return std::ranges::any_of(n.results, [&](ValueId v) { return regions_->gives(v); });
    }

    double weight(ValueId v) const {
        const Value& value = g_.values()[v];
        if (value.producer == kNone)
            return query_.readable_in_backward[value.position] ? 1 : MaxFlow::kInfinite;
        if (is_hidden(g_.node(value.producer))) return kHidden * (1 + bytes_of(value.type));
        if (!border_.empty() && border_[v]) return 1;
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
            if (producer == kNone || !again[producer] || keeps(g_.node(producer)))
                flow.add_edge(source, 2 * v, MaxFlow::kInfinite);
            else
                for (ValueId o : g_.node(producer).operands)
                    flow.add_edge(2 * o + 1, 2 * v, MaxFlow::kInfinite);
            if (read_[v]) flow.add_edge(2 * v + 1, sink, MaxFlow::kInfinite);
        }
        if (flow.run(source, sink) >= MaxFlow::kInfinite) return MaxFlow::kInfinite;
        saved_.assign(n, false);
        recomputed_.assign(n, false);
        for (ValueId v = 0; v < n; ++v) {
            if (of_backward(v)) continue;
            saved_[v] = flow.source_side(2 * v) && !flow.source_side(2 * v + 1);
            recomputed_[v] = !flow.source_side(2 * v);
        }
        return saved_bytes();
    }

    void choose() {
        std::vector<bool> cheap(g_.nodes().size());
        std::vector<NodeId> costly;  // that may be computed again under a budget
        for (NodeId id = 0; id < g_.nodes().size(); ++id) {
            const Node& n = g_.node(id);
            cheap[id] = is_hidden(n) || (is_cheap(n) && !is_given(n));
            bool forward = g_.node(id).results.empty() || !tangent_[g_.node(id).results[0]];
            if (!cheap[id] && forward && is_repeatable(g_.node(id))) costly.push_back(id);
        }
        const double all = cut(cheap);
        if (all >= MaxFlow::kInfinite)
            throw NotSupported("the backward needs an input that has changed");
        if (query_.memory_budget >= 1 || all == 0) return;
        if (query_.memory_budget <= 0) return choose_borders(cheap);
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

    // ---- as little memory as possible ----

    /// What a view looks into.
    ValueId root(ValueId v) const {
        while (g_.values()[v].producer != kNone && is_view(g_.node(g_.values()[v].producer)))
            v = g_.node(g_.values()[v].producer).operands[0];
        return v;
    }
    static bool is_view(const Node& n) { return is_movement(n.prim) && n.operands.size() == 1; }
    bool is_forward(const Node& n) const { return n.results.empty() || !tangent_[n.results[0]]; }

    /// The forward is divided into segments; what is alive between them is kept, and each segment
    /// is computed again when the backward comes to it. Were only the inputs kept, all of the
    /// forward would be alive again at the backward's first step. The number of segments with
    /// the lowest peak is taken; what is kept counts a little more, as it waits from the forward
    /// on.
    void choose_borders(const std::vector<bool>& cheap) {
        const std::vector<bool> plain = saved_;
        const auto cost = [&] { return peak_of_backward() + 0.05 * saved_bytes(); };
        double best = cost();
        std::vector<bool> saved = saved_, recomputed = recomputed_;
        find_life();
        for (int segments : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24}) {
            saved_ = plain;
            mark_borders(segments);
            std::vector<bool> again = cheap;
            for (NodeId id = 0; id < g_.nodes().size(); ++id) {
                const Node& n = g_.node(id);
                if (is_forward(n) && is_repeatable(n)) again[id] = true;
                for (ValueId v : n.results)
                    if (border_[v] && !is_hidden(n)) again[id] = false;
            }
            if (cut(again) >= MaxFlow::kInfinite) continue;
            if (const double now = cost(); now < best) {
                best = now;
                saved = saved_;
                recomputed = recomputed_;
            }
        }
        saved_ = std::move(saved);
        recomputed_ = std::move(recomputed);
    }

    double saved_bytes() const {
        double sum = 0;
        for (ValueId v = 0; v < saved_.size(); ++v)
            if (saved_[v] && g_.values()[v].producer != kNone) sum += bytes_of(g_.type(v));
        return sum;
    }

    /// The last node that the forward needs of those that read each value, through views.
    void find_life() {
        last_.assign(g_.values().size(), 0);
        for (NodeId id = static_cast<NodeId>(g_.nodes().size()); id-- > 0;) {
            const Node& n = g_.node(id);
            if (!is_forward(n) || n.results.empty() || !needed_[n.results[0]]) continue;
            for (ValueId v : n.operands)
                last_[v] = std::max(last_[v], is_view(n) ? last_[n.results[0]] : id);
        }
    }

    /// Marks what is alive at `segments - 1` places of the forward, each the narrowest one around
    /// where an equal part of what is saved (`saved_`) has been made.
    void mark_borders(int segments) {
        const std::size_t count = g_.nodes().size();
        std::vector<double> alive(count + 1, 0), made(count + 1, 0);
        for (ValueId v = 0; v < g_.values().size(); ++v) {
            const NodeId from = g_.values()[v].producer;
            if (from == kNone || !needed_[v] || is_view(g_.node(from))) continue;
            if (saved_[v]) made[from + 1] += bytes_of(g_.type(v));
            if (last_[v] <= from) continue;
            alive[from + 1] += bytes_of(g_.type(v));
            alive[last_[v] + 1] -= bytes_of(g_.type(v));
        }
        for (std::size_t i = 1; i <= count; ++i) {
            alive[i] += alive[i - 1];
            made[i] += made[i - 1];
        }
        border_.assign(g_.values().size(), false);
        const double step = made[count] / segments;
        for (int k = 1; k < segments; ++k) {
            std::size_t place = 0;
            for (std::size_t i = 1; i < count; ++i) {
                if (std::abs(made[i] - k * step) > 0.4 * step) continue;
                if (place == 0 || alive[i] < alive[place]) place = i;
            }
            if (place == 0) continue;
            for (ValueId v = 0; v < g_.values().size(); ++v) {
                const NodeId from = g_.values()[v].producer;
                if (from != kNone && from < place && last_[v] >= place && needed_[v])
                    border_[root(v)] = true;
            }
        }
    }

    /// The most bytes alive at once while the backward runs as it is going to be emitted.
    double peak_of_backward() const {
        std::vector<NodeId> steps;
        std::vector<std::size_t> born(g_.values().size(), 0), last(g_.values().size(), 0);
        std::vector<bool> have(g_.values().size(), false);
        const auto emit = [&](const Node& n, NodeId id) {
            steps.push_back(id);
            for (ValueId v : n.operands) last[root(v)] = steps.size();
            for (ValueId v : n.results) {
                born[v] = steps.size();
                have[v] = true;
            }
        };
        std::vector<ValueId> stack;
        const auto need = [&](ValueId wanted) {
            stack.push_back(wanted);
            while (!stack.empty()) {
                const ValueId v = stack.back();
                const bool there = have[v] || !recomputed_[v];
                bool ready = true;
                if (!there)
                    for (ValueId o : g_.node(g_.values()[v].producer).operands)
                        if (!have[o] && recomputed_[o]) {
                            stack.push_back(o);
                            ready = false;
                        }
                if (!ready) continue;
                stack.pop_back();
                if (!there) emit(g_.node(g_.values()[v].producer), g_.values()[v].producer);
            }
        };
        for (NodeId id = 0; id < g_.nodes().size(); ++id) {
            const Node& n = g_.node(id);
            if (is_forward(n)) continue;
            for (ValueId v : n.operands) need(v);
            emit(n, id);
        }
        for (const Output& o : g_.outputs())
            if (tangent_[o.value]) last[root(o.value)] = steps.size() + 1;
        std::vector<double> change(steps.size() + 3, 0);
        for (ValueId v = 0; v < g_.values().size(); ++v) {
            const NodeId from = g_.values()[v].producer;
            if (from == kNone || last[v] == 0 || is_view(g_.node(from)) ||
                kind(g_.node(from).prim) == PrimKind::Creation)
                continue;
            change[born[v]] += bytes_of(g_.type(v));
            change[last[v] + 1] -= bytes_of(g_.type(v));
        }
        double now = 0, most = 0;
        for (double c : change) most = std::max(most, now += c);
        return most;
    }

    // ---- the two graphs ----

    struct Emission {
        Graph& graph;
        std::vector<ValueId> map;
    };

    /// `again`: marks the copy as one that must not be merged with the first.
    void copy(Emission& e, const Node& n, bool again = false) const {
        std::vector<ValueId> operands;
        for (ValueId v : n.operands) {
            check(e.map[v] != kNone, "partition: an operand is on the other side");
            operands.push_back(e.map[v]);
        }
        std::vector<Type> types;
        for (ValueId v : n.results) types.push_back(g_.type(v));
        Attrs attrs = is_of_region(n) ? without_region(n.attrs) : n.attrs;
        if (again) attrs.set("again", true);
        NodeId id = e.graph.add_with_types(n.prim, std::move(operands), std::move(attrs),
                                           std::move(types), n.origin);
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
    void recompute(Emission& e, ValueId wanted, bool again = false) const {
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
            copy(e, n, again);
            stack.pop_back();
        }
    }

    Graph emit_whole() const {
        Graph out(g_.shared_pool());
        out.round_intermediates = g_.round_intermediates;
        Emission early{out, std::vector<ValueId>(g_.values().size(), kNone)};
        for (const Input& in : g_.inputs())
            early.map[in.value] = out.add_input(g_.type(in.value), in.name, in.strides, in.frozen);
        for (NodeId id = 0; id < split_; ++id) copy(early, g_.node(id));
        Emission late{out, early.map};
        for (ValueId v = 0; v < recomputed_.size(); ++v)
            if (recomputed_[v]) late.map[v] = kNone;
        for (NodeId id = split_; id < g_.nodes().size(); ++id) {
            for (ValueId v : g_.node(id).operands) recompute(late, v, true);
            copy(late, g_.node(id));
        }
        for (const Output& o : g_.outputs()) {
            const ValueId v = tangent_[o.value] ? late.map[o.value] : early.map[o.value];
            out.add_output(v, o.strides, o.writes_input);
        }
        for (const SizeGuard& guard : g_.guards()) out.add_guard(guard);
        return out;
    }

    const Graph& g_;
    const PartitionQuery& query_;
    NodeId split_ = 0;  // of a whole program
    std::optional<Regions> regions_;
    // By value:
    std::vector<bool> tangent_;    // depends on a tangent
    std::vector<bool> needed_;     // the forward's outputs and effects depend on it
    std::vector<bool> read_;       // a node of the backward reads it
    std::vector<bool> kept_;       // saved rather than computed again; empty: none
    std::vector<bool> dropped_;    // of the kept: computed again after all
    std::vector<bool> in_memory_;  // the forward writes it to memory anyway
    std::vector<int> distance_;
    std::vector<bool> saved_, recomputed_;
    std::vector<bool> border_;  // kept between segments; empty: there are none
    std::vector<NodeId> last_;  // the forward's last reader
};

}  // namespace

Partition partition(const Graph& joint, const PartitionQuery& query) {
    return Partitioner(joint, query).run();
}

namespace {

/// Where there is no backward, all that is alike is computed once.
Graph without_regions(const Graph& graph) {
    if (std::ranges::none_of(graph.nodes(), is_of_region)) return graph;
    Rewriter rewriter(graph);
    for (NodeId id = 0; id < graph.nodes().size(); ++id) rewriter.copy(id);
    Graph out = rewriter.finish();
    for (NodeId id = 0; id < out.nodes().size(); ++id)
        out.node(id).attrs = without_region(out.node(id).attrs);
    return out;
}

}  // namespace

Graph recompute(const Graph& graph, const PassContext& context) {
    if (!context.memory_budget || graph.nodes().empty()) return without_regions(graph);
    PartitionQuery query;
    query.memory_budget = *context.memory_budget;
    query.readable_in_backward.assign(graph.inputs().size(), true);
    return eliminate_dead(Partitioner(graph, query).run_whole(), context);
}

}  // namespace ingot
