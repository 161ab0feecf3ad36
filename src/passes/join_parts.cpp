// A sum of parts that zeros fill up to the same sizes, each at its own place, is a concatenation:
// what autograd makes of a tensor that was split (queries, keys and values out of one projection).
//
// Views of it move into its parts, so that each part is written where it belongs and nobody chooses
// between them element by element. Only for GPUs, where such choices keep loads narrow. Linear.
#include <optional>
#include <unordered_map>

#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

/// Zeros along `dim`, the parts one behind another, zeros.
struct Joined {
    std::vector<ValueId> parts;  // of the new graph
    std::size_t dim = 0;
    std::int64_t low = 0, high = 0;
    DType seen_as{};  // a type that holds the parts' values exactly
    bool is_whole() const { return low == 0 && high == 0 && parts.size() > 1; }
};

std::optional<std::int64_t> count(const Sizes& sizes, std::size_t from, std::size_t to) {
    std::int64_t n = 1;
    for (std::size_t i = from; i < to; ++i) {
        if (!sizes[i].is_constant()) return std::nullopt;
        n *= sizes[i].constant();
    }
    return n;
}

class Joiner {
  public:
    explicit Joiner(const Graph& g) : old_(g), rewriter_(g) {}

    Graph run() {
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            const Node& n = old_.node(id);
            std::optional<Joined> joined;
            if (n.prim == Prim::Reshape) {
                // Another shape of what one reshape has joined already: a view of that.
                if (const auto it = reshaped_.find(n.operands[0]); it != reshaped_.end()) {
                    rewriter_.map(n.results[0],
                                  rewriter_.out().emit(Prim::Reshape, {rewriter_(it->second)},
                                                       n.attrs, n.origin));
                    continue;
                }
            }
            if (n.results.size() == 1) joined = join(n);
            if (joined && n.prim == Prim::Reshape) reshaped_.emplace(n.operands[0], n.results[0]);
            if (joined && joined->is_whole())
                rewriter_.map(n.results[0], whole(*joined, n.origin));
            else
                rewriter_.copy(id);
            if (joined) joined_.emplace(n.results[0], std::move(*joined));
        }
        return rewriter_.finish();
    }

  private:
    const Joined* known(ValueId v) const {
        const auto it = joined_.find(v);
        return it == joined_.end() ? nullptr : &it->second;
    }
    DType part_type(const Joined& j) { return rewriter_.out().type(j.parts[0]).dtype; }

    std::optional<Joined> join(const Node& n) {
        switch (n.prim) {
            case Prim::Pad:
                return padded(n);
            case Prim::Convert:
                return converted(n);
            case Prim::Add:
                return added(n);
            case Prim::Reshape:
            case Prim::Permute:
                if (const Joined* j = known(n.operands[0]); j != nullptr && j->is_whole())
                    return n.prim == Prim::Reshape ? reshaped(n, *j) : permuted(n, *j);
                return std::nullopt;
            default:
                return std::nullopt;
        }
    }

    std::optional<Joined> padded(const Node& n) {
        const Type& type = old_.type(n.results[0]);
        if (!is_float(type.dtype) || !count(type.sizes, 0, type.sizes.size())) return std::nullopt;
        if (to_num(n.attrs.get<Scalar>("value"), type.dtype).re != 0) return std::nullopt;
        const Sizes &low = n.attrs.get<Sizes>("low"), &high = n.attrs.get<Sizes>("high");
        std::optional<Joined> j;
        for (std::size_t d = 0; d < low.size(); ++d) {
            if (low[d].is(0) && high[d].is(0)) continue;
            if (j || !low[d].is_constant() || !high[d].is_constant() || low[d].constant() < 0 ||
                high[d].constant() < 0)
                return std::nullopt;
            j = {{rewriter_(n.operands[0])}, d, low[d].constant(), high[d].constant(), type.dtype};
        }
        return j;
    }

    std::optional<Joined> converted(const Node& n) {
        const Joined* from = known(n.operands[0]);
        if (from == nullptr) return std::nullopt;
        const DType to = old_.type(n.results[0]).dtype, parts = part_type(*from);
        const bool exact = to == parts || (is_float(to) && bytes(to) > bytes(parts));
        if (!exact) return std::nullopt;
        Joined j = *from;
        j.seen_as = to;
        return j;
    }

    std::optional<Joined> added(const Node& n) {
        const Joined *a = known(n.operands[0]), *b = known(n.operands[1]);
        if (a == nullptr || b == nullptr || a->dim != b->dim || a->seen_as != b->seen_as ||
            part_type(*a) != part_type(*b) ||
            !same_sizes(old_.type(n.operands[0]).sizes, old_.type(n.operands[1]).sizes))
            return std::nullopt;
        const std::int64_t size = old_.type(n.results[0]).sizes[a->dim].constant();
        if (size - b->high == a->low) std::swap(a, b);
        if (size - a->high != b->low) return std::nullopt;
        Joined j = *a;
        j.parts.insert(j.parts.end(), b->parts.begin(), b->parts.end());
        j.high = b->high;
        return j;
    }

    // Where the dim's elements stay whole pieces of one dim.
    std::optional<Joined> reshaped(const Node& n, const Joined& from) {
        const Sizes &before = old_.type(n.operands[0]).sizes,
                    &after = old_.type(n.results[0]).sizes;
        const auto outside = count(before, 0, from.dim);
        const auto all = count(after, 0, after.size());
        if (!outside || !all || *all == 0) return std::nullopt;
        const std::int64_t size = before[from.dim].constant();
        for (std::size_t d = 0; d < after.size(); ++d) {
            if (*count(after, 0, d) != *outside || after[d].constant() % size != 0) continue;
            Joined j = from;
            j.dim = d;
            for (ValueId& part : j.parts) {
                Sizes sizes = after;
                const Expr own = rewriter_.out().type(part).sizes[from.dim];
                sizes[d] = own * Expr(after[d].constant() / size);
                part = rewriter_.out().emit(Prim::Reshape, {part}, {{"sizes", sizes}}, n.origin);
            }
            return j;
        }
        return std::nullopt;
    }

    std::optional<Joined> permuted(const Node& n, const Joined& from) {
        const Ints& dims = n.attrs.get<Ints>("dims");
        if (dims.size() <= 2) return std::nullopt;  // a product reads a matrix either way
        Joined j = from;
        for (std::size_t d = 0; d < dims.size(); ++d)
            if (dims[d] == static_cast<std::int64_t>(from.dim)) j.dim = d;
        for (ValueId& part : j.parts)
            part = rewriter_.out().emit(Prim::Permute, {part}, {{"dims", dims}}, n.origin);
        return j;
    }

    ValueId whole(const Joined& j, const std::string& origin) {
        Graph& g = rewriter_.out();
        const ValueId v =
            g.emit(Prim::Concat, j.parts, {{"dim", static_cast<std::int64_t>(j.dim)}}, origin);
        if (g.type(v).dtype == j.seen_as) return v;
        return g.emit(Prim::Convert, {v}, {{"dtype", j.seen_as}}, origin);
    }

    const Graph& old_;
    std::unordered_map<ValueId, Joined> joined_;     // by value of the old graph
    std::unordered_map<ValueId, ValueId> reshaped_;  // a joined value to its first reshape
    Rewriter rewriter_;
};

}  // namespace

Graph join_parts(const Graph& graph, const PassContext& context) {
    if (!context.vendor_epilogues) return graph;
    return Joiner(graph).run();
}

}  // namespace ingot
