// See mask_facts.h.
#include "passes/mask_facts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "passes/facts.h"

namespace ingot {

namespace {

constexpr int kDeepest = 200;                             // nodes, one behind the other
constexpr std::int64_t kLargest = std::int64_t{1} << 31;  // beyond it nothing is followed

/// base + the sum of steps[d] * (index along dim d); a dim of one element has no step.
struct Line {
    std::int64_t base = 0;
    Ints steps;
    bool is_constant() const {
        return std::ranges::all_of(steps, [](std::int64_t s) { return s == 0; });
    }
    friend bool operator==(const Line&, const Line&) = default;
};

/// An integer: one line. A truth: it holds where none of the lines is negative; `never` holds
/// nowhere.
struct Fact {
    std::vector<Line> lines;
    bool never = false;
};
using Known = std::optional<Fact>;

class Follower {
  public:
    explicit Follower(const Graph& g) : g_(g) {}

    Known fact(ValueId v) {
        if (const auto it = known_.find(v); it != known_.end()) return it->second;
        if (depth_ >= kDeepest) return std::nullopt;
        ++depth_;
        Known f = made(v);
        --depth_;
        if (f) tidy(*f, g_.type(v));
        if (f && !fits(*f, g_.type(v))) f.reset();
        known_.emplace(v, f);
        return f;
    }

  private:
    const Sizes& sizes(ValueId v) const { return g_.type(v).sizes; }
    bool is_truth(ValueId v) const { return g_.type(v).dtype == DType::Bool; }
    static bool is_number(DType t) { return t == DType::I64 || t == DType::I32; }
    Line constant(ValueId v, std::int64_t value) const { return {value, Ints(sizes(v).size(), 0)}; }
    static Known all() { return Fact{}; }
    static Known none() { return Fact{{}, true}; }

    /// Dims of one element lose their steps, and what always or never holds is said so.
    void tidy(Fact& f, const Type& type) const {
        for (Line& line : f.lines)
            for (std::size_t d = 0; d < line.steps.size(); ++d)
                if (type.sizes[d].is(1)) line.steps[d] = 0;
        if (type.dtype != DType::Bool) return;
        std::vector<Line> open;
        for (const Line& line : f.lines) {
            const auto [low, high] = bounds(line, type.sizes);
            f.never = f.never || (high && *high < 0);
            if (low && *low >= 0) continue;
            if (std::ranges::find(open, line) == open.end()) open.push_back(line);
        }
        f.lines = f.never ? std::vector<Line>{} : std::move(open);
    }

    /// Whether no number is so large that computing with it, here or in its type, goes wrong.
    static bool fits(const Fact& f, const Type& type) {
        const auto large = [](std::int64_t v) { return v >= kLargest || v <= -kLargest; };
        return std::ranges::none_of(f.lines, [&](const Line& line) {
            if (large(line.base) || std::ranges::any_of(line.steps, large)) return true;
            if (type.dtype != DType::I32) return false;
            const auto [low, high] = bounds(line, type.sizes);
            return !low || !high || large(*low) || large(*high);
        });
    }

    /// The smallest and the largest value, where they do not depend on a symbol.
    static std::pair<std::optional<std::int64_t>, std::optional<std::int64_t>> bounds(
        const Line& line, const Sizes& sizes) {
        std::optional<std::int64_t> low = line.base, high = line.base;
        for (std::size_t d = 0; d < sizes.size(); ++d) {
            const std::int64_t step = line.steps[d];
            if (step == 0) continue;
            auto& end = step > 0 ? high : low;
            if (!sizes[d].is_constant())
                end.reset();
            else if (end)
                *end += step * std::max<std::int64_t>(sizes[d].constant() - 1, 0);
        }
        return {low, high};
    }

    /// a + factor * b.
    static Line combined(const Line& a, const Line& b, std::int64_t factor) {
        Line line = a;
        line.base += factor * b.base;
        for (std::size_t d = 0; d < line.steps.size(); ++d) line.steps[d] += factor * b.steps[d];
        return line;
    }

    Known made(ValueId v) {
        const Node* n = g_.producer(v);
        if (n == nullptr || (!is_truth(v) && !is_number(g_.type(v).dtype))) return std::nullopt;
        if (const auto value = full_number(g_, v)) {
            if (is_truth(v)) return value->i != 0 ? all() : none();
            return Fact{{constant(v, value->i)}};
        }
        if (n->prim == Prim::Iota) return counted(*n, v);
        if (is_movement(n->prim)) return moved(*n, v);
        switch (n->prim) {
            case Prim::Convert:
                return converted(*n, v);
            case Prim::Cumsum:
                return running_sum(*n, v);
            case Prim::Take: {
                // Elements that are all alike, wherever they are taken from.
                Known f = fact(n->operands[0]);
                if (!f) return std::nullopt;
                for (Line& line : f->lines) {
                    if (!line.is_constant()) return std::nullopt;
                    line = constant(v, line.base);
                }
                return f;
            }
            default:
                return computed(*n, v);
        }
    }

    Known counted(const Node& n, ValueId v) const {
        if (!is_number(g_.type(v).dtype)) return std::nullopt;
        Line line = constant(v, to_num(n.attrs.get<Scalar>("start"), DType::I64).i);
        line.steps[static_cast<std::size_t>(n.attrs.get<std::int64_t>("dim"))] =
            to_num(n.attrs.get<Scalar>("step"), DType::I64).i;
        return Fact{{line}};
    }

    Known converted(const Node& n, ValueId v) {
        const ValueId from = n.operands[0];
        Known f = fact(from);
        if (!f || is_truth(from) == is_truth(v)) return f;
        if (is_truth(from)) {
            if (!f->never && !f->lines.empty()) return std::nullopt;
            return Fact{{constant(v, f->never ? 0 : 1)}};
        }
        if (!f->lines[0].is_constant()) return std::nullopt;
        return f->lines[0].base != 0 ? all() : none();
    }

    Known running_sum(const Node& n, ValueId v) {
        Known f = is_truth(v) ? std::nullopt : fact(n.operands[0]);
        if (!f || !f->lines[0].is_constant()) return std::nullopt;
        f->lines[0].steps[static_cast<std::size_t>(n.attrs.get<std::int64_t>("dim"))] =
            f->lines[0].base;
        return f;
    }

    // ---- movement ----

    Known moved(const Node& n, ValueId v) {
        if (n.prim == Prim::Concat) return joined(n);
        const bool once = n.operands.size() == 1 && n.prim != Prim::Pad;
        Known f = once ? fact(n.operands[0]) : std::nullopt;
        if (!f) return std::nullopt;
        for (Line& line : f->lines) {
            std::optional<Line> l = line.is_constant() ? constant(v, line.base) : seen(n, v, line);
            if (!l) return std::nullopt;
            line = *std::move(l);
        }
        return f;
    }

    std::optional<Line> seen(const Node& n, ValueId v, const Line& from) const {
        Line to = constant(v, from.base);
        switch (n.prim) {
            case Prim::Permute: {
                const Ints& dims = n.attrs.get<Ints>("dims");
                for (std::size_t d = 0; d < dims.size(); ++d)
                    to.steps[d] = from.steps[static_cast<std::size_t>(dims[d])];
                return to;
            }
            case Prim::Broadcast: {
                const Ints& dims = n.attrs.get<Ints>("dims");
                for (std::size_t d = 0; d < dims.size(); ++d)
                    to.steps[static_cast<std::size_t>(dims[d])] = from.steps[d];
                return to;
            }
            case Prim::Slice: {
                const Sizes& starts = n.attrs.get<Sizes>("starts");
                const Ints& steps = n.attrs.get<Ints>("steps");
                for (std::size_t d = 0; d < steps.size(); ++d) {
                    if (from.steps[d] == 0) continue;
                    if (!starts[d].is_constant() || starts[d].constant() > kLargest)
                        return std::nullopt;
                    to.base += from.steps[d] * starts[d].constant();
                    to.steps[d] = from.steps[d] * steps[d];
                }
                return to;
            }
            case Prim::Reshape: {
                // Dims of one element come and go.
                const Sizes &before = sizes(n.operands[0]), &after = sizes(v);
                std::size_t d = 0;
                for (std::size_t e = 0; e < after.size(); ++e) {
                    if (after[e].is(1)) continue;
                    while (d < before.size() && before[d].is(1)) ++d;
                    if (d == before.size() || !(before[d] == after[e])) return std::nullopt;
                    to.steps[e] = from.steps[d++];
                }
                return to;
            }
            default:
                return std::nullopt;
        }
    }

    /// Pieces that go on where the one before ends, or truths that hold everywhere.
    Known joined(const Node& n) {
        if (is_truth(n.results[0])) {
            for (ValueId o : n.operands)
                if (const Known f = fact(o); !f || f->never || !f->lines.empty())
                    return std::nullopt;
            return all();
        }
        const auto dim = static_cast<std::size_t>(n.attrs.get<std::int64_t>("dim"));
        std::vector<Line> pieces;
        Ints begins{0};
        std::optional<std::int64_t> step;
        for (ValueId o : n.operands) {
            const Known f = fact(o);
            if (!f || !sizes(o)[dim].is_constant()) return std::nullopt;
            const std::int64_t size = sizes(o)[dim].constant();
            if (size > 1 && !step) step = f->lines[0].steps[dim];
            pieces.push_back(f->lines[0]);
            begins.push_back(begins.back() + size);
        }
        if (!step) step = pieces.size() > 1 ? pieces[1].base - pieces[0].base : 0;
        Line whole = pieces[0];
        whole.steps[dim] = *step;
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            if (begins[i + 1] - begins[i] <= 1) pieces[i].steps[dim] = *step;
            if (begins[i + 1] == begins[i]) continue;
            pieces[i].base -= *step * begins[i];
            if (!(pieces[i] == whole)) return std::nullopt;
        }
        return Fact{{whole}};
    }

    // ---- arithmetic and comparisons ----

    Known computed(const Node& n, ValueId v) {
        if (!is_pointwise(n.prim)) return std::nullopt;
        std::vector<Known> of;
        for (ValueId o : n.operands) of.push_back(fact(o));
        const auto both = [&] { return of[0].has_value() && of[1].has_value(); };
        if (!is_truth(v)) {
            if (n.operands.size() != 2 || !both()) return std::nullopt;
            const Line &a = of[0]->lines[0], &b = of[1]->lines[0];
            if (n.prim != Prim::Add && n.prim != Prim::Sub) return std::nullopt;
            return Fact{{combined(a, b, n.prim == Prim::Add ? 1 : -1)}};
        }
        switch (n.prim) {
            case Prim::LogicalAnd:
            case Prim::BitwiseAnd:
            case Prim::Mul:
                if (!is_truth(n.operands[0]) || !is_truth(n.operands[1])) return std::nullopt;
                if ((of[0] && of[0]->never) || (of[1] && of[1]->never)) return none();
                if (!both()) return std::nullopt;
                of[0]->lines.insert(of[0]->lines.end(), of[1]->lines.begin(), of[1]->lines.end());
                return of[0];
            case Prim::LogicalOr:
            case Prim::BitwiseOr:
            case Prim::Add:
                if (!is_truth(n.operands[0]) || !is_truth(n.operands[1])) return std::nullopt;
                for (int i : {0, 1}) {
                    if (of[i] && !of[i]->never && of[i]->lines.empty()) return all();
                    if (of[i] && of[i]->never) return of[1 - i];
                }
                return std::nullopt;
            case Prim::Eq:
            case Prim::Ne:
            case Prim::Lt:
            case Prim::Le:
            case Prim::Gt:
            case Prim::Ge:
                if (is_truth(n.operands[0]) || !both()) return std::nullopt;
                return compared(n.prim, of[0]->lines[0], of[1]->lines[0]);
            default:
                return std::nullopt;
        }
    }

    static Known compared(Prim prim, const Line& a, const Line& b) {
        const bool left_smaller = prim == Prim::Lt || prim == Prim::Le;
        Line line = left_smaller ? combined(b, a, -1) : combined(a, b, -1);
        if (prim == Prim::Eq || prim == Prim::Ne) {
            if (!line.is_constant()) return std::nullopt;
            return (line.base == 0) == (prim == Prim::Eq) ? all() : none();
        }
        if (prim == Prim::Lt || prim == Prim::Gt) --line.base;
        return Fact{{line}};
    }

    const Graph& g_;
    std::unordered_map<ValueId, Known> known_;
    int depth_ = 0;
};

}  // namespace

MaskKind kind_of_mask(const Graph& g, ValueId mask) {
    const Type& type = g.type(mask);
    if (type.dtype != DType::Bool) return MaskKind::Unknown;
    const Known f = Follower(g).fact(mask);
    if (!f || f->never) return MaskKind::Unknown;
    if (f->lines.empty()) return MaskKind::All;
    const std::size_t rank = type.sizes.size();
    if (f->lines.size() != 1 || rank < 2 || !(type.sizes[rank - 1] == type.sizes[rank - 2]))
        return MaskKind::Unknown;
    Line causal{0, Ints(rank, 0)};
    causal.steps[rank - 2] = 1;
    causal.steps[rank - 1] = -1;
    return f->lines[0] == causal ? MaskKind::Causal : MaskKind::Unknown;
}

}  // namespace ingot
