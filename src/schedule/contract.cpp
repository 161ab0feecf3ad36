// See contract.h.
#include "schedule/contract.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "schedule/phase_emitter.h"

namespace ingot::sched {

namespace {

// The width of "panel32".
std::int64_t panel_width(const Node& n) {
    const auto& layout = n.attrs.get<std::string>("layout");
    constexpr std::string_view prefix = "panel";
    std::int64_t width = 0;
    if (layout.starts_with(prefix))
        std::from_chars(layout.data() + prefix.size(), layout.data() + layout.size(), width);
    if (width <= 0) throw NotSupported("unknown layout of a packed operand: " + layout);
    return width;
}

bool is_packed(const Node& n) { return n.prim == Prim::PackedMatmul || n.prim == Prim::PackedConv; }
bool is_conv(const Node& n) { return n.prim == Prim::Conv || n.prim == Prim::PackedConv; }

class ContractionEmitter {
  public:
    ContractionEmitter(const EmitContext& c, Draft& draft, const Node& n, Sizes result,
                       std::function<Expr(Expr extent)> fresh)
        : c_(c), draft_(draft), n_(n), result_(std::move(result)), fresh_(std::move(fresh)) {}

    // result_: the result's dims as loop variables (0 for a size of 1).
    Contraction run() {
        Contraction out;
        const DType t = c_.graph.type(n_.results[0]).dtype;
        out.accumulate = compute_type(t);
        out.round_intermediates = c_.graph.round_intermediates;
        if (is_packed(n_)) out.b_panel = static_cast<std::int32_t>(panel_width(n_));
        if (n_.prim == Prim::ConvGradWeight)
            weight_gradient(out);
        else
            is_conv(n_) ? conv(out) : matmul(out);
        return out;
    }

    /// A variable of the result that the loops do not have, and what it is in terms of theirs.
    std::optional<std::pair<Expr, Expr>> split() const { return split_; }

  private:
    Loop loop(std::size_t dim) const {
        return {result_[dim], c_.graph.type(n_.results[0]).sizes[dim], LoopKind::Serial};
    }
    void add_loop(std::vector<Loop>& to, std::size_t dim) const {
        if (!result_[dim].is_constant()) to.push_back(loop(dim));
    }
    Expr new_loop(std::vector<Loop>& to, Expr extent) {
        if (extent.is(1)) return 0;
        to.push_back({fresh_(extent), extent, LoopKind::Serial});
        return to.back().var;
    }

    template <class F>
    std::vector<Inst> insts(const F& emit) {
        Phase phase;
        PhaseEmitter e(c_, draft_, phase,
                       [](ValueId, const Sizes&) { return Found{Found::Where::Memory}; });
        InstId last = emit(e);
        check(last + 1 == phase.insts.size(), "an operand of a contraction is not the last inst");
        return std::move(phase.insts);
    }

    // Element (batch, k, n) of a right side in panels, which lies row-major (see placement.cpp).
    InstId panel_element(PhaseEmitter& e, Sizes batch, Expr k, Expr n, Expr width) const {
        batch.push_back(floor_div(n, width));
        batch.push_back(k);
        batch.push_back(mod(n, width));
        return e.value(n_.operands[1], batch);
    }

    void matmul(Contraction& out) {
        const Sizes& left = c_.graph.type(n_.operands[0]).sizes;
        std::size_t rank = left.size();
        for (std::size_t d = 0; d + 2 < rank; ++d) add_loop(out.batch, d);
        add_loop(out.m, rank - 2);
        add_loop(out.n, rank - 1);
        Expr k = new_loop(out.k, left[rank - 1]);
        Sizes a(result_.begin(), result_.end() - 1), b(result_.begin(), result_.end() - 2);
        a.push_back(k);
        Expr row = result_[rank - 1];
        out.a_insts = insts([&](PhaseEmitter& e) { return e.value(n_.operands[0], a); });
        out.b_insts = insts([&](PhaseEmitter& e) {
            if (!is_packed(n_)) {
                b.push_back(k);
                b.push_back(row);
                return e.value(n_.operands[1], b);
            }
            return panel_element(e, b, k, row, Expr(std::int64_t{out.b_panel}));
        });
        rows_take_batch(out);
    }

    // Batch loops that the right side ignores are rows.
    static void rows_take_batch(Contraction& out) {
        std::vector<Loop> kept, rows;
        for (const Loop& l : out.batch) {
            bool used = std::any_of(out.b_insts.begin(), out.b_insts.end(),
                                    [&](const Inst& i) { return contains(i.offset, l.var); });
            (used ? kept : rows).push_back(l);
        }
        rows.insert(rows.end(), out.m.begin(), out.m.end());
        out.batch = std::move(kept);
        out.m = std::move(rows);
    }

    void conv(Contraction& out) {
        const Sizes& input = c_.graph.type(n_.operands[0]).sizes;
        const Sizes weight = n_.prim == Prim::PackedConv ? n_.attrs.get<Sizes>("weight_sizes")
                                                         : c_.graph.type(n_.operands[1]).sizes;
        const Ints &stride = n_.attrs.get<Ints>("stride"),
                   &dilation = n_.attrs.get<Ints>("dilation");
        const Sizes& padding = n_.attrs.get<Sizes>("padding");
        add_loop(out.m, 0);
        for (std::size_t d = 2; d < result_.size(); ++d) add_loop(out.m, d);
        const std::int64_t groups = n_.attrs.get<std::int64_t>("groups");
        Expr group = 0;
        if (groups == 1) {
            add_loop(out.n, 1);
        } else {
            // Each group is a product of its own; its channels follow the earlier groups'.
            Expr of_group = floor_div(weight[0], groups);
            group = new_loop(out.batch, groups);
            Expr within = new_loop(out.n, of_group);
            split_ = {result_[1], group * of_group + within};
            result_[1] = split_->second;
        }
        Sizes at{result_[0], 0}, inside{result_[1], 0};
        std::vector<Condition> valid;
        Expr row = 0;
        for (std::size_t d = 2; d < result_.size(); ++d) {
            Expr k = new_loop(out.k, weight[d]);
            Expr x = result_[d] * Expr(stride[d - 2]) + k * Expr(dilation[d - 2]) - padding[d - 2];
            if (known_le(0, x) != true || known_lt(x, input[d]) != true)
                valid.push_back({x, 0, input[d]});
            at.push_back(x);
            inside.push_back(k);
            row = row * weight[d] + k;
        }
        inside[1] = new_loop(out.k, weight[1]);
        at[1] = group * weight[1] + inside[1];
        row = row * weight[1] + inside[1];
        out.a_insts = insts([&](PhaseEmitter& e) { return e.guarded(n_.operands[0], at, valid); });
        out.b_insts = insts([&](PhaseEmitter& e) {
            if (!is_packed(n_)) return e.value(n_.operands[1], inside);
            return panel_element(e, {}, row, result_[1], Expr(std::int64_t{out.b_panel}));
        });
    }

    // Rows are output channels, columns (kernel.., input channel); the sum runs over the image's
    // points, at which the gradient and, in steps, the input without a border are read.
    void weight_gradient(Contraction& out) {
        const Sizes& grad = c_.graph.type(n_.operands[0]).sizes;
        const Ints &stride = n_.attrs.get<Ints>("stride"),
                   &dilation = n_.attrs.get<Ints>("dilation");
        add_loop(out.m, 0);
        for (std::size_t d = 2; d < result_.size(); ++d) add_loop(out.n, d);
        add_loop(out.n, 1);
        const Expr image = new_loop(out.k, grad[0]);
        Sizes of_grad{image, result_[0]}, of_input{image, result_[1]};
        for (std::size_t d = 2; d < result_.size(); ++d) {
            const Expr at = new_loop(out.k, grad[d]);
            of_grad.push_back(at);
            of_input.push_back(at * Expr(stride[d - 2]) + result_[d] * Expr(dilation[d - 2]));
        }
        out.a_insts = insts([&](PhaseEmitter& e) { return e.value(n_.operands[0], of_grad); });
        out.b_insts = insts([&](PhaseEmitter& e) { return e.value(n_.operands[1], of_input); });
    }

    const EmitContext& c_;
    Draft& draft_;
    const Node& n_;
    Sizes result_;
    std::function<Expr(Expr)> fresh_;
    std::optional<std::pair<Expr, Expr>> split_;
};

// Merges neighbouring loops and gives all their final names.
class ContractionLoops {
  public:
    ContractionLoops(Contraction& c, ExprPool& pool) : c_(c), pool_(pool) {
        for (auto* list : {&c.a_insts, &c.b_insts, &c.epilogue.insts})
            for (Inst& i : *list)
                if (!i.offset.is_constant()) exprs_.push_back(&i.offset);
        for (Store& s : c.epilogue.stores)
            if (!s.offset.is_constant()) exprs_.push_back(&s.offset);
    }
    void run(const std::optional<std::pair<Expr, Expr>>& split) {
        if (split && !split->first.is_constant()) replace(split->first, split->second);
        arrange(c_.batch, "cb");
        arrange(c_.m, "cm");
        arrange(c_.n, "cn");
        arrange(c_.k, "ck");
    }

  private:
    void arrange(std::vector<Loop>& loops, const char* prefix) {
        for (std::size_t i = loops.size(); i-- > 1;) {
            if (!like_one(loops[i - 1], loops[i])) continue;
            Expr extent = loops[i - 1].extent * loops[i].extent;
            Expr joined = loop_variable(pool_, "cj", merged_++, extent);
            replace(loops[i - 1].var, 0);
            replace(loops[i].var, joined);
            loops[i - 1] = {joined, extent, LoopKind::Serial};
            loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i));
        }
        for (std::size_t i = 0; i < loops.size(); ++i) {
            Expr name = loop_variable(pool_, prefix, i, loops[i].extent);
            replace(loops[i].var, name);
            loops[i].var = name;
        }
    }
    bool like_one(const Loop& outer, const Loop& inner) const {
        return std::all_of(exprs_.begin(), exprs_.end(), [&](const Expr* e) {
            bool x = contains(*e, outer.var), y = contains(*e, inner.var);
            if (!x && !y) return true;
            if (!x || !y) return false;
            auto lo = linear_in(*e, outer.var), li = linear_in(*e, inner.var);
            return lo && li && lo->stride == li->stride * inner.extent;
        });
    }
    void replace(Expr from, Expr to) {
        for (Expr* e : exprs_)
            if (contains(*e, from))
                *e = substitute(*e, [&](Expr s) -> std::optional<Expr> {
                    if (s == from) return to;
                    return std::nullopt;
                });
    }

    Contraction& c_;
    ExprPool& pool_;
    std::vector<Expr*> exprs_;
    std::size_t merged_ = 0;
};

void write(Draft& draft, const EmitContext& c, Contraction& out, PhaseEmitter& e, ValueId target,
           const Sizes& at, InstId x) {
    Store s;
    s.buffer = e.buffer_of(target);
    s.offset = offset_of(at, c.layouts.strides(target));
    s.value = x;
    draft.kernel.buffers[static_cast<std::size_t>(s.buffer)].written = true;
    out.epilogue.stores.push_back(s);
}

/// Adds a bias to the sum before the result is rounded, as the vendor's libraries and eager's addmm
/// do: rounding before and after would have 1.4 times their error.
class BiasBeforeRounding {
  public:
    explicit BiasBeforeRounding(Contraction& c) : c_(c), phase_(c.epilogue) {}

    void run() {
        const std::vector<Inst>& insts = phase_.insts;
        for (InstId id = 0; id < insts.size(); ++id) {
            const Inst& add = insts[id];
            if (add.kind != InstKind::Prim || add.prim != Prim::Add || add.operands.size() != 2)
                continue;
            for (const std::size_t side : {0U, 1U}) {
                const InstId rounded = add.operands[side], bias = add.operands[1 - side];
                if (!is_rounded_sum(rounded, add.dtype) || !is_bias(bias, add.dtype)) continue;
                rewrite(id, rounded, bias);
                return;
            }
        }
    }

  private:
    bool is_rounded_sum(InstId id, DType dtype) const {
        const Inst& i = phase_.insts[id];
        if (i.kind != InstKind::Prim || i.prim != Prim::Convert || i.dtype != dtype) return false;
        const Inst& sum = phase_.insts[i.operands[0]];
        if (sum.kind != InstKind::Accumulator || bytes(sum.dtype) <= bytes(dtype)) return false;
        std::size_t readers = 0;
        for (const Inst& other : phase_.insts) {
            readers += static_cast<std::size_t>(
                std::count(other.operands.begin(), other.operands.end(), id));
            if (other.mask == id) ++readers;
        }
        for (const Store& s : phase_.stores) readers += s.value == id;
        return readers == 1;
    }
    /// The same for all rows.
    bool is_bias(InstId id, DType dtype) const {
        const Inst& i = phase_.insts[id];
        return i.kind == InstKind::Load && i.dtype == dtype && i.mask == kNone &&
               std::none_of(c_.m.begin(), c_.m.end(),
                            [&](const Loop& l) { return contains(i.offset, l.var); });
    }
    void rewrite(InstId at, InstId rounded, InstId bias) {
        const std::vector<Inst> old = std::move(phase_.insts);
        phase_.insts.clear();
        std::vector<InstId> place(old.size());
        auto push = [&](Inst inst) {
            phase_.insts.push_back(std::move(inst));
            return static_cast<InstId>(phase_.insts.size() - 1);
        };
        for (InstId id = 0; id < old.size(); ++id) {
            if (id == rounded) continue;
            Inst inst = old[id];
            for (InstId& o : inst.operands) o = place[o];
            if (inst.mask != kNone) inst.mask = place[inst.mask];
            if (id != at) {
                place[id] = push(std::move(inst));
                continue;
            }
            const InstId sum = place[old[rounded].operands[0]];
            Inst wide = old[rounded];
            wide.operands = {place[bias]};
            wide.dtype = c_.accumulate;
            Inst add = inst;
            add.operands = {sum, push(wide)};
            add.dtype = c_.accumulate;
            wide.operands = {push(add)};
            wide.dtype = inst.dtype;
            place[id] = push(wide);
        }
        for (Store& s : phase_.stores) {
            s.value = place[s.value];
            if (s.mask != kNone) s.mask = place[s.mask];
        }
    }

    Contraction& c_;
    Phase& phase_;
};

}  // namespace

// Groups of channels, each wide enough for vectors.
static bool grouped_form(const Graph& g, const Node& n) {
    if (n.prim != Prim::Conv) return false;
    const Sizes& weight = g.type(n.operands[1]).sizes;
    const std::int64_t groups = n.attrs.get<std::int64_t>("groups");
    return groups > 0 && weight[0].is_constant() && weight[0].constant() % groups == 0 &&
           weight[0].constant() / groups >= 4 && known_le(Expr(4), weight[1]) == true;
}

// One group and no border: see legalize_convolution.cpp.
static bool weight_gradient_form(const Node& n) {
    const Sizes& padding = n.attrs.get<Sizes>("padding");
    return n.attrs.get<std::int64_t>("groups") == 1 && !n.attrs.get<bool>("transposed") &&
           std::all_of(padding.begin(), padding.end(), [](Expr e) { return e.is(0); });
}

bool has_contraction_form(const Graph& g, const Node& n) {
    if (is_complex(g.type(n.results[0]).dtype) || !is_float(g.type(n.results[0]).dtype))
        return false;
    switch (n.prim) {
        case Prim::Matmul:
        case Prim::PackedMatmul:
            return true;
        case Prim::Conv:
        case Prim::PackedConv:
            // Depthwise convolutions have become sums before (see legalize.cpp).
            if (n.attrs.get<std::int64_t>("groups") != 1 && !grouped_form(g, n)) return false;
            return !n.attrs.has("transposed") || !n.attrs.get<bool>("transposed");
        case Prim::ConvGradWeight:
            return weight_gradient_form(n);
        default:
            return false;
    }
}

Kernel bare_contraction(const Graph& g, NodeId id, const Layouts& layouts) {
    const Node& n = g.node(id);
    Placement p;  // everything that is no view is memory
    p.home.assign(g.values().size(), Home::Extern);
    for (ValueId v : n.operands) {
        // Views as far as the memory that placement would give it.
        const ValueId memory =
            n.prim == Prim::Matmul ? product_operand(g, layouts, v, true) : kNone;
        for (const Node* at = g.producer(v);
             v != memory && !layouts.keeps(v) && at != nullptr && is_plain_view(*at);
             at = g.producer(v)) {
            p.home[v] = Home::Inlined;
            v = at->operands[0];
        }
    }
    Fusion none;
    EmitContext c{g, p, none, layouts};
    Draft draft;
    std::size_t extra = 0;
    auto fresh = [&](Expr extent) { return loop_variable(g.pool(), "ck", extra++, extent); };
    Sizes result = domain_variables(g.pool(), "g", g.type(n.results[0]).sizes);
    ContractionEmitter emitter(c, draft, n, result, fresh);
    Contraction out = emitter.run();
    Phase ignored;
    PhaseEmitter e(c, draft, ignored,
                   [](ValueId, const Sizes&) { return Found{Found::Where::Memory}; });
    Inst acc;
    acc.kind = InstKind::Accumulator;
    acc.dtype = out.accumulate;
    out.epilogue.insts.push_back(acc);
    write(draft, c, out, e, n.results[0], result, 0);
    ContractionLoops(out, g.pool()).run(emitter.split());
    draft.kernel.contraction = std::make_shared<const Contraction>(std::move(out));
    find_sizes(draft);
    return std::move(draft.kernel);
}

Draft emit_contraction_group(const EmitContext& c, std::uint32_t id) {
    const Group& group = c.fusion.groups[id];
    const Anchor& first = c.fusion.anchors[group.anchors[0]];
    check(first.contracts, "a contraction group starts with its contraction");
    Draft draft;
    std::size_t extra = 0;
    auto fresh = [&](Expr extent) { return loop_variable(c.graph.pool(), "ck", extra++, extent); };
    ContractionEmitter emitter(c, draft, c.graph.node(first.node), first.map, fresh);
    Contraction out = emitter.run();
    PhaseEmitter e(c, draft, out.epilogue, [&](ValueId v, const Sizes& index) {
        for (std::uint32_t m : c.fusion.makers[v]) {
            const Anchor& a = c.fusion.anchors[m];
            if (a.group != id || a.value != v) continue;
            if (!a.contracts) return Found{};
            check(index == a.map, "a contraction is read at another place");
            return Found{Found::Where::Accumulator};
        }
        return Found{Found::Where::Memory};
    });
    for (std::uint32_t i : group.anchors) {
        const Anchor& a = c.fusion.anchors[i];
        if (!a.stored) continue;
        bool part = a.target != a.value;
        bool inside = !part && !a.contracts && c.placement.home[a.value] == Home::Anchored;
        Sizes at = a.map;
        if (part) at[a.dim] += a.start;
        write(draft, c, out, e, a.target, at,
              inside ? e.compute(a.value, a.map) : e.value(a.value, a.map));
    }
    if (out.round_intermediates) BiasBeforeRounding(out).run();
    ContractionLoops(out, c.graph.pool()).run(emitter.split());
    draft.kernel.contraction = std::make_shared<const Contraction>(std::move(out));
    find_sizes(draft);
    return draft;
}

}  // namespace ingot::sched
