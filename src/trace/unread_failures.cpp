// Operators that fail by their data though nobody reads their results; see unread_failures.h.
//
// Eager carries out every operator, so an index out of range raises whoever reads what was found.
// Here nothing is computed that nobody reads, and of what is read in part only that part. At the
// end of a recording a walk from the outputs finds the operators that may fail and are not read as
// a whole: a call becomes an effect, and of an index or a divisor there stays the comparison, all
// of them in one assertion. What is read as a whole checks itself.
//
// Costs a walk over the graph while recording; a program in which something was found gets a
// reduction over those indices and one call.
#include "trace/unread_failures.h"

#include <algorithm>
#include <numeric>
#include <ranges>

#include "passes/call_failures.h"
#include "passes/facts.h"
#include "trace/lower/emitter.h"

namespace ingot::trace {
namespace {

/// How much of a value somebody reads.
enum class Read : std::uint8_t { Nothing, Part, Whole };

class Keeper {
  public:
    Keeper(Graph& graph, SymbolicSizes& symbols, std::size_t count)
        : graph_(graph),
          e_(graph, symbols, origin_),
          reads_(graph.values().size(), Read::Nothing),
          count_(count) {}

    void run() {
        for (const Output& o : graph_.outputs()) reads_[o.value] = Read::Whole;
        std::vector<NodeId> found;
        for (auto id = static_cast<NodeId>(graph_.nodes().size()); id-- > 0;) {
            Node& n = graph_.node(id);
            Read read = Read::Nothing;
            for (ValueId v : n.results) read = std::max(read, reads_[v]);
            if (id < count_ && needs_check(n, read)) found.push_back(id);
            if (id < count_ && n.prim == Prim::ExternCall && read == Read::Nothing &&
                !never_fails(n.attrs.get<std::string>("callee")))
                n.attrs.set("pure", false);
            if (has_effect(n)) read = Read::Whole;
            if (read != Read::Nothing) pass_on(n, read);
        }
        // The order of the program, so that the graph of one program is the same each time.
        ValueId all = kNone;
        for (NodeId id : found | std::views::reverse) {
            const Node n = graph_.node(id);  // emitting moves nodes
            origin_ = n.origin;
            for (const ValueId one : conditions(n))
                all = all == kNone ? one : e_.op(Prim::LogicalAnd, {all, one});
        }
        if (all == kNone) return;
        e_.op(Prim::Assert, {all},
              {{"message", std::string("an operator that nobody reads fails")}});
    }

  private:
    /// Whether the node may fail and does not say so by itself. Calls are made as a whole.
    bool needs_check(const Node& n, Read read) const {
        switch (n.prim) {
            case Prim::Take:
            case Prim::Gather:
                return read != Read::Whole;
            case Prim::TruncDiv:
            case Prim::FloorDiv:
            case Prim::Fmod:
            case Prim::Remainder:
                return read != Read::Whole && is_integral(graph_.type(n.results[0]).dtype) &&
                       !is_nonzero_constant(n.operands[1]);
            case Prim::Put:
            case Prim::Scatter:
            case Prim::ScatterReduce:
            case Prim::MaskedScatter:
                return read == Read::Nothing;
            default:
                return false;
        }
    }

    bool is_nonzero_constant(ValueId v) const {
        const auto value = full_value(graph_, source(v));
        return value && value->to_int() != 0;
    }

    void read_operand(const Node& n, std::size_t k, Read read) {
        Read& known = reads_[n.operands[k]];
        known = std::max(known, read);
    }
    void read_operands(const Node& n, Read read) {
        for (std::size_t k = 0; k < n.operands.size(); ++k) read_operand(n, k, read);
    }

    /// `read` of the node's results, not Nothing, makes its operands read.
    void pass_on(const Node& n, Read read) {
        switch (n.prim) {
            case Prim::Slice:
            case Prim::Pad:
                if (loses_elements(n)) read = Read::Part;
                return read_operands(n, read);
            case Prim::Diagonal:
            case Prim::AsStrided:
                return read_operands(n, Read::Part);
            case Prim::Update:
            case Prim::UpdateDiagonal:
            case Prim::UpdateStrided:
                read_operand(n, 0, Read::Part);
                return read_operand(n, 1, read);
            case Prim::Take:
            case Prim::Gather:
                read_operand(n, 0, Read::Part);
                for (std::size_t i = 1; i < n.operands.size(); ++i) read_operand(n, i, read);
                return;
            default:
                break;
        }
        // What a loop computes one element at a time; all else reads operands from memory.
        const PrimKind k = kind(n.prim);
        const bool one_by_one = k == PrimKind::Pointwise || k == PrimKind::Movement ||
                                k == PrimKind::Reduction || k == PrimKind::Complex;
        read_operands(n, one_by_one ? read : Read::Whole);
    }

    bool loses_elements(const Node& n) const {
        if (n.prim == Prim::Slice)
            return !same_sizes(graph_.type(n.operands[0]).sizes, graph_.type(n.results[0]).sizes);
        const auto grows = [](Expr e) { return e.is_constant() && e.constant() >= 0; };
        return !std::ranges::all_of(n.attrs.get<Sizes>("low"), grows) ||
               !std::ranges::all_of(n.attrs.get<Sizes>("high"), grows);
    }

    std::vector<ValueId> conditions(const Node& n) {
        switch (n.prim) {
            case Prim::Take:
                return indices(n, 1, n.attrs.get<Ints>("dims"));
            case Prim::Put:
                return indices(n, 2, n.attrs.get<Ints>("dims"));
            case Prim::MaskedScatter: {
                const ValueId ones = e_.reduce(Prim::Sum, e_.convert(n.operands[1], DType::I64),
                                               all_dims(n.operands[1]), false);
                return {
                    e_.op(Prim::Le, {ones, e_.size_like(ones, numel(e_.sizes(n.operands[2])))})};
            }
            case Prim::Gather:
            case Prim::Scatter:
            case Prim::ScatterReduce:
                return indices(n, 1, {n.attrs.get<std::int64_t>("dim")});
            default:
                return {holds_everywhere(e_.compare(Prim::Ne, source(n.operands[1]), 0))};
        }
    }

    /// Where the elements of `v` come from, each at least once.
    ValueId source(ValueId v) const {
        for (const Node* n = graph_.producer(v);
             n != nullptr && (n->prim == Prim::Broadcast || n->prim == Prim::Reshape);
             n = graph_.producer(v))
            v = n->operands[0];
        return v;
    }

    ValueId holds_everywhere(ValueId v) {
        return e_.rank(v) == 0 ? v : e_.reduce(Prim::All, v, all_dims(v), false);
    }
    Ints all_dims(ValueId v) const {
        Ints dims(static_cast<std::size_t>(e_.rank(v)));
        std::iota(dims.begin(), dims.end(), 0);
        return dims;
    }

    /// Whether a negative index counts from the end.
    static bool wraps(const Node& n) { return n.prim == Prim::Take || n.prim == Prim::Put; }

    /// That the operands from `first` on are indices of those dims of operand 0.
    std::vector<ValueId> indices(const Node& n, std::size_t first, const Ints& dims) {
        std::vector<ValueId> out;
        for (std::size_t k = 0; k < dims.size(); ++k) {
            const ValueId i = e_.convert(source(n.operands[first + k]), DType::I64);
            const c10::SymInt size = e_.sizes(n.operands[0])[static_cast<std::size_t>(dims[k])];
            const ValueId end = e_.size_like(i, size);
            const ValueId begin = wraps(n) ? e_.op(Prim::Neg, {end}) : e_.number(i, 0);
            out.push_back(holds_everywhere(
                e_.op(Prim::LogicalAnd, {e_.op(Prim::Ge, {i, begin}), e_.op(Prim::Lt, {i, end})})));
        }
        return out;
    }

    Graph& graph_;
    std::string origin_;
    Emitter e_;
    std::vector<Read> reads_;
    std::size_t count_;
};

}  // namespace

void keep_failures(Graph& graph, SymbolicSizes& symbols, std::size_t count) {
    Keeper(graph, symbols, count).run();
}

}  // namespace ingot::trace
