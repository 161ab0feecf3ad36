// See placement.h.
#include "schedule/placement.h"

#include <algorithm>

#include "schedule/estimate.h"
#include "schedule/index.h"

namespace ingot::sched {

namespace {

constexpr int kCheap = 2;          // operations worth repeating rather than storing
constexpr int kExpandedCheap = 3;  // the same, when each element is needed several times
constexpr int kMostLoads = 10;     // of one inlined expression
constexpr int kMostOperations = 300;
// On GPUs, what several readers compute each: a few additions and products, or one function more.
constexpr int kArithmetic = 8;
constexpr int kMostRepeated = 40;
constexpr std::size_t kMostRepeatedLoads = 6;
constexpr int kFew = 16;  // elements to one that is read at random: the latter are few
constexpr int kCap = 1 << 20;

int operation_cost(Prim p) {
    switch (p) {
        case Prim::Abs:
        case Prim::Neg:
        case Prim::Convert:
        case Prim::Bitcast:
        case Prim::Real:
        case Prim::Imag:
        case Prim::Relu:
        case Prim::Add:
        case Prim::Sub:
        case Prim::Mul:
        case Prim::Maximum:
        case Prim::Minimum:
        case Prim::Select:
        case Prim::Fma:
        case Prim::Clamp:
        case Prim::Eq:
        case Prim::Ne:
        case Prim::Lt:
        case Prim::Le:
        case Prim::Gt:
        case Prim::Ge:
        case Prim::LogicalAnd:
        case Prim::LogicalOr:
        case Prim::LogicalNot:
        case Prim::BitwiseAnd:
        case Prim::BitwiseOr:
        case Prim::BitwiseXor:
        case Prim::BitwiseNot:
            return 1;
        case Prim::Div:
        case Prim::Sqrt:
        case Prim::Rsqrt:
        case Prim::Reciprocal:
            return 4;
        default:
            return is_pointwise(p) ? 10 : 0;
    }
}

bool is_creation(Prim p) { return kind(p) == PrimKind::Creation; }

// How a value is used.
struct Use {
    int readers = 0;        // nodes that read it, through views
    int few = 0;            // on GPUs: the same, of a few of its elements, which compute them again
    bool repeated = false;  // an element is read several times by one reader
    bool random = false;    // read at computed indices
};

/// PyTorch's tensors cannot step backwards, as a flip would.
bool steps_forward(const StridedView& view) {
    return std::ranges::all_of(view.strides, [](Expr s) { return s.range().lo >= 0; });
}

// Where `v` lies, if it is a strided view (`matrices`: each of its matrices is).
std::optional<StridedView> operand_view(const Graph& g, const Layouts& layouts, ValueId v,
                                        bool matrices) {
    auto rank = static_cast<std::size_t>(g.type(v).rank());
    auto view = strided_view(
        g, v, [&](ValueId at) { return layouts.keeps(at); },
        [&](ValueId at) { return layouts.strides(at); }, matrices && rank > 2 ? rank - 2 : 0);
    if (view && !steps_forward(*view)) view.reset();
    return view;
}

class Placer {
  public:
    Placer(const Graph& g, const Layouts& layouts, const std::vector<ValueId>& in_memory,
           const Generates& generates, bool gpu)
        : g_(g),
          layouts_(layouts),
          gpu_(gpu),
          uses_(g.values().size()),
          loads_(g.values().size(), 0),
          leaves_(g.values().size()),
          after_reduction_(g.values().size(), false) {
        p_.contracts.assign(g.nodes().size(), false);
        for (NodeId id = 0; id < g.nodes().size(); ++id)
            p_.contracts[id] = kind(g.node(id).prim) == PrimKind::Contraction && generates(id);
        p_.home.assign(g.values().size(), Home::Inlined);
        p_.needs_memory.assign(g.values().size(), false);
        for (ValueId v : in_memory) p_.needs_memory[v] = true;
        p_.frozen.assign(g.values().size(), false);
        p_.cost.assign(g.values().size(), 0);
    }

    Placement run() {
        find_frozen();
        find_uses();
        for (const Output& o : g_.outputs()) p_.needs_memory[o.value] = true;
        for (const Output& o : g_.outputs())  // written last, from memory: see legalize.cpp
            if (o.writes_input >= 0) p_.needs_memory[g_.producer(o.value)->operands[0]] = true;
        for (NodeId id = 0; id < g_.nodes().size(); ++id) {
            const Node& n = g_.node(id);
            if (has_loop_form(g_, n)) continue;
            for (std::size_t k = 0; k < n.operands.size(); ++k) {
                // A generated product finds each matrix of a batch by itself.
                bool matrices =
                    p_.contracts[id] && (n.prim == Prim::Matmul || n.prim == Prim::PackedMatmul);
                if (n.prim == Prim::Matmul)
                    p_.needs_memory[product_operand(g_, layouts_, n.operands[k], matrices)] = true;
                else
                    need_memory(n.operands[k], k == 1 && is_packed(n.prim), matrices);
            }
        }
        for (const Input& in : g_.inputs()) {
            p_.home[in.value] = Home::Input;
            loads_[in.value] = 1;
        }
        for (NodeId id = 0; id < g_.nodes().size(); ++id) visit(id);
        while (keep_operands()) {
        }
        return std::move(p_);
    }

  private:
    static bool constant_attrs(const Attrs& attrs) {
        for (const Attr& a : attrs.list()) {
            if (const auto* e = std::get_if<Expr>(&a.value))
                if (!e->is_constant()) return false;
            if (const auto* list = std::get_if<Sizes>(&a.value))
                for (const Expr& e : *list)
                    if (!e.is_constant()) return false;
        }
        return true;
    }

    void find_frozen() {
        std::vector<bool> written(g_.inputs().size(), false);
        for (const Output& o : g_.outputs())
            if (o.writes_input >= 0) written[static_cast<std::size_t>(o.writes_input)] = true;
        for (std::size_t i = 0; i < g_.inputs().size(); ++i)
            p_.frozen[g_.inputs()[i].value] = g_.inputs()[i].frozen && !written[i];
        for (const Node& n : g_.nodes()) {
            bool effect = kind(n.prim) == PrimKind::Effect || kind(n.prim) == PrimKind::Random;
            bool frozen = !effect && std::all_of(n.operands.begin(), n.operands.end(),
                                                 [&](ValueId v) { return p_.frozen[v]; });
            // Symbolic sizes differ from call to call.
            for (ValueId v : n.results)
                for (const Expr& s : g_.type(v).sizes) frozen = frozen && s.is_constant();
            frozen = frozen && constant_attrs(n.attrs);
            // An output is given away, so it is computed at each call.
            for (ValueId v : n.results) frozen = frozen && layouts_.output(v) < 0;
            for (ValueId v : n.results) p_.frozen[v] = frozen;
        }
    }

    void find_uses() {
        for (const Output& o : g_.outputs()) ++uses_[o.value].readers;
        for (std::size_t i = g_.nodes().size(); i-- > 0;) {
            const Node& n = g_.nodes()[i];
            for (std::size_t k = 0; k < n.operands.size(); ++k) {
                bool again =
                    std::find(n.operands.begin(),
                              n.operands.begin() + static_cast<std::ptrdiff_t>(k),
                              n.operands[k]) != n.operands.begin() + static_cast<std::ptrdiff_t>(k);
                add_use(n, k, again);
            }
        }
    }

    void add_use(const Node& n, std::size_t k, bool again) {
        Use& use = uses_[n.operands[k]];
        if (is_movement(n.prim)) {
            const Use& result = uses_[n.results[0]];
            use.readers += result.readers;
            use.few += result.few;
            use.repeated = use.repeated || result.repeated || n.prim == Prim::Window ||
                           n.prim == Prim::AsStrided ||
                           (n.prim == Prim::Broadcast &&
                            !(g_.type(n.operands[k]).numel() == g_.type(n.results[0]).numel()));
            use.random = use.random || result.random;
            return;
        }
        if (reads_few(n, k)) {
            ++use.few;
            return;
        }
        if (!again) ++use.readers;
        if ((n.prim == Prim::Take || n.prim == Prim::Gather) && k == 0) use.random = true;
    }

    // What is picked out of a large value (a class's probability) and what only that needs.
    bool reads_few(const Node& n, std::size_t k) const {
        if (!gpu_ || n.results.size() != 1) return false;
        const Use& result = uses_[n.results[0]];
        if (is_pointwise(n.prim)) return result.readers == 0 && result.few > 0;
        if ((n.prim != Prim::Take && n.prim != Prim::Gather) || k != 0) return false;
        const Expr picked = g_.type(n.results[0]).numel() * Expr(kFew);
        return known_le(picked, g_.type(n.operands[0]).numel()) == true;
    }

    static bool is_packed(Prim p) { return p == Prim::PackedMatmul || p == Prim::PackedConv; }

    // `v` is read by a step outside: memory for it, or for what it is a strided view of. Panels
    // are read by address: row-major.
    void need_memory(ValueId v, bool row_major, bool matrices) {
        auto view = operand_view(g_, layouts_, v, matrices && !row_major);
        if (view && row_major)
            if (!view->offset.is(0) || view->strides != contiguous_strides(g_.type(v).sizes))
                view.reset();
        p_.needs_memory[view ? view->source : v] = true;
    }

    // An operand was to be a view of a value further back, but one between them has got memory
    // since, for other readers, of which it is none: it gets memory too. True if there was such a
    // one.
    bool keep_operands() {
        bool found = false;
        for (NodeId id = 0; id < g_.nodes().size(); ++id) {
            const Node& n = g_.node(id);
            if (p_.contracts[id] || has_loop_form(g_, n)) continue;
            for (ValueId v : n.operands) {
                if (p_.home[v] != Home::Inlined) continue;
                const auto view = strided_view(
                    g_, v, [&](ValueId at) { return p_.home[at] != Home::Inlined; },
                    [&](ValueId at) { return layouts_.strides(at); });
                if (view && steps_forward(*view)) continue;
                p_.needs_memory[v] = found = true;
                anchor(v);
            }
        }
        return found;
    }

    void visit(NodeId id) {
        const Node& n = g_.node(id);
        if (p_.contracts[id]) {
            anchor(n.results[0]);
            for (ValueId v : n.operands) thaw(n, v);
            return;
        }
        if (!has_loop_form(g_, n)) {
            for (ValueId v : n.results) {
                p_.home[v] = Home::Extern;
                loads_[v] = 1;
            }
            for (ValueId v : n.operands) thaw(n, v);
            return;
        }
        ValueId v = n.results[0];
        if (n.prim == Prim::Constant && (p_.needs_memory[v] || !g_.type(v).numel().is(1))) {
            p_.home[v] = Home::Extern;
            loads_[v] = 1;
            return;
        }
        int cost = operation_cost(n.prim), loads = 0;
        if (n.prim == Prim::Take || n.prim == Prim::Gather) cost += 6;
        for (std::size_t k = 0; k < n.operands.size(); ++k) {
            thaw(n, n.operands[k]);
            if (k > 0 && n.operands[k] == n.operands[k - 1]) continue;
            bool inlined = p_.home[n.operands[k]] == Home::Inlined;
            cost = std::min(cost + (inlined ? p_.cost[n.operands[k]] : 0), kCap);
            loads = std::min(loads + loads_[n.operands[k]], kCap);
        }
        p_.cost[v] = cost;
        loads_[v] = loads;
        if (gpu_) measure_traffic(n, v);
        if (is_reduction(n.prim) || wants_anchor(n, v)) anchor(gpu_ ? narrower(n, v) : v);
    }

    // Instead of a number made wider the narrow one, if nothing else keeps it.
    ValueId narrower(const Node& n, ValueId v) {
        const ValueId from = n.prim == Prim::Convert ? n.operands[0] : v;
        if (from == v || p_.needs_memory[v] || p_.home[from] != Home::Inlined) return v;
        const Node* made = g_.producer(from);
        if (made == nullptr || !is_pointwise(made->prim) || !is_float(g_.type(v).dtype) ||
            bytes(g_.type(from).dtype) >= bytes(g_.type(v).dtype))
            return v;
        p_.cost[v] = loads_[v] = 1;
        leaves_[v] = {from};
        return from;
    }

    bool wants_anchor(const Node& n, ValueId v) const {
        if (p_.needs_memory[v]) return true;
        const Use& use = uses_[v];
        int cost = p_.cost[v], loads = loads_[v];
        // A view adds nothing to its source, which has been asked already; a concatenation is as
        // good as its parts unless it is read at random.
        if (is_movement(n.prim) || is_creation(n.prim)) return loads > kMostLoads;
        if (loads > kMostLoads || cost > kMostOperations) return true;
        if (use.readers > 1 && !(cost <= kCheap && loads <= 1) && !is_worth_repeating(v))
            return true;
        if (use.repeated && (cost > kExpandedCheap || loads > 2)) return true;
        return use.random && cost > 1;
    }

    // What computing `v` reads, and whether a reduction of the same rows stands before it.
    void measure_traffic(const Node& n, ValueId v) {
        std::vector<ValueId>& leaves = leaves_[v];
        const auto add = [&](ValueId leaf) {
            if (std::ranges::find(leaves, leaf) == leaves.end()) leaves.push_back(leaf);
        };
        bool after = is_reduction(n.prim);
        for (ValueId o : n.operands) {
            if (p_.home[o] != Home::Inlined) {
                add(o);
                // Statistics are small; what was made of them is an operand like any other.
                after = after || (after_reduction_[o] && 16 * bytes_of(o) <= bytes_of(v));
                continue;
            }
            for (ValueId leaf : leaves_[o]) add(leaf);
            after = after || after_reduction_[o];
        }
        after_reduction_[v] = after;
        if (leaves.size() > 4 * kMostRepeatedLoads) leaves.resize(4 * kMostRepeatedLoads);
    }
    double traffic(ValueId v) const {
        double sum = 0;
        for (ValueId leaf : leaves_[v]) sum += bytes_of(leaf);
        return sum;
    }
    double bytes_of(ValueId v) const { return likely_bytes(g_.type(v)); }

    // Whether several readers had better compute `v` each: a GPU waits for memory. Not what
    // follows a reduction, which stays in registers from phase to phase.
    bool is_worth_repeating(ValueId v) const {
        if (!gpu_ || after_reduction_[v] || leaves_[v].size() > kMostRepeatedLoads) return false;
        const double own = bytes_of(v);
        if (p_.cost[v] <= kArithmetic) return traffic(v) <= 1.1 * own;
        return p_.cost[v] <= kMostRepeated && traffic(v) <= 0.6 * own;
    }

    // What a frozen computation hands to the rest is computed once.
    void thaw(const Node& n, ValueId operand) {
        if (p_.frozen[operand] && !p_.frozen[n.results.empty() ? operand : n.results[0]] &&
            p_.home[operand] == Home::Inlined && p_.cost[operand] > 0 && loads_[operand] > 0)
            anchor(gpu_ ? unspread(operand) : operand);
    }

    // What is only spread over more elements, such as a bias over rows, is kept before that.
    ValueId unspread(ValueId v) {
        std::vector<ValueId> spread;
        for (ValueId at = v; p_.home[at] == Home::Inlined;) {
            if (p_.cost[at] == 0) break;
            const Node* n = g_.producer(at);
            if (n == nullptr || n->prim != Prim::Broadcast) {
                for (ValueId x : spread) {
                    p_.cost[x] = 0;
                    loads_[x] = 1;
                    leaves_[x] = {at};
                }
                return at;
            }
            spread.push_back(at);
            at = n->operands[0];
        }
        return v;
    }

    void anchor(ValueId v) {
        p_.home[v] = Home::Anchored;
        loads_[v] = 1;
    }

    const Graph& g_;
    const Layouts& layouts_;
    bool gpu_;
    Placement p_;
    std::vector<Use> uses_;
    std::vector<int> loads_;
    std::vector<std::vector<ValueId>> leaves_;  // by value, on GPUs: what computing it reads
    std::vector<bool> after_reduction_;         // by value, on GPUs
};

}  // namespace

bool has_loop_form(const Graph& g, const Node& n) {
    switch (kind(n.prim)) {
        case PrimKind::Pointwise:
        case PrimKind::Reduction:
            // Complex products and extrema have no accumulator; var and norm2 of reals are gone.
            return !(is_reduction(n.prim) &&
                     (n.prim == Prim::Var || n.prim == Prim::Norm2 ||
                      (is_complex(g.type(n.operands[0]).dtype) && n.prim != Prim::Sum)));
        case PrimKind::Creation:
            return true;
        case PrimKind::Movement:
            if (n.prim != Prim::UpdateStrided) return true;
            return sources(g, n, domain_variables(g.pool(), "v", g.type(n.results[0]).sizes))
                .has_value();
        case PrimKind::Indexing:
            return n.prim == Prim::Take || n.prim == Prim::Gather;
        case PrimKind::Complex:
            return n.prim != Prim::ViewBits;
        default:
            return false;
    }
}

Placement place(const Graph& graph, const Layouts& layouts, const std::vector<ValueId>& in_memory,
                const Generates& generates, bool gpu) {
    return Placer(graph, layouts, in_memory, generates, gpu).run();
}

ValueId product_operand(const Graph& g, const Layouts& layouts, ValueId v, bool matrices) {
    if (const auto view = operand_view(g, layouts, v, matrices)) return view->source;
    const auto rank = static_cast<std::size_t>(g.type(v).rank());
    ValueId best = v;
    if (rank < 2) return best;
    for (const Node* n = g.producer(v); n != nullptr && is_plain_view(*n);
         n = g.producer(n->operands[0])) {
        const ValueId source = n->operands[0];
        const auto view = strided_view(
            g, v, [&](ValueId at) { return at == source; },
            [&](ValueId at) { return layouts.strides(at); });
        if (!view || view->source != source) break;
        if (!view->strides[rank - 1].is(1) && !view->strides[rank - 2].is(1)) break;
        best = source;
    }
    return best;
}

}  // namespace ingot::sched
