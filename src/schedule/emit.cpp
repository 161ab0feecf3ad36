// See emit.h.
#include "schedule/emit.h"

#include <algorithm>

#include "schedule/phase_emitter.h"

namespace ingot::sched {

namespace {

constexpr int kWorthScratch = 8;               // operations
constexpr std::int64_t kScratchRow = 1 << 13;  // elements

ReduceOp reduce_op(Prim p, bool logical) {
    switch (p) {
        case Prim::Sum:
            return logical ? ReduceOp::Or : ReduceOp::Sum;
        case Prim::Prod:
            return logical ? ReduceOp::And : ReduceOp::Prod;
        case Prim::Amax:
            return logical ? ReduceOp::Or : ReduceOp::Max;
        case Prim::Amin:
            return logical ? ReduceOp::And : ReduceOp::Min;
        case Prim::All:
            return ReduceOp::And;
        case Prim::Any:
            return ReduceOp::Or;
        case Prim::XorSum:
            return ReduceOp::Xor;
        case Prim::Argmax:
            return ReduceOp::ArgMax;
        case Prim::Argmin:
            return ReduceOp::ArgMin;
        default:
            throw NotSupported("no loop form of the reduction " + std::string(name(p)));
    }
}

class NestEmitter {
  public:
    NestEmitter(const EmitContext& c, std::uint32_t group, bool scratch)
        : c_(c), group_(c.fusion.groups[group]), id_(group), use_scratch_(scratch) {}

    Draft run() {
        make_phases();
        if (use_scratch_) find_scratch();
        Nest& nest = draft_.kernel.nests.emplace_back();
        nest.round_intermediates = c_.graph.round_intermediates;
        for (const LoopVar& v : group_.vars)
            if (v.outer) nest.loops.push_back({v.symbol, v.extent, LoopKind::Serial});
        nest.phases.resize(phases_.size());
        for (std::size_t p = 0; p < phases_.size(); ++p) emit_phase(p, nest.phases[p]);
        append_scratch_buffers();
        if (!group_.run.symbol.is(0)) split_run(nest);
        find_sizes(draft_);
        return std::move(draft_);
    }

  private:
    struct PhaseKey {
        int step = 0;
        std::vector<std::size_t> inner;  // group variables
        std::vector<std::uint32_t> anchors;
        std::vector<std::uint32_t> results;  // reductions whose results are stored here
    };
    struct Row {  // a value kept in scratch
        std::int32_t buffer;
        Expr offset;
    };

    std::vector<std::size_t> inner_vars(const Anchor& a) const {
        std::vector<std::size_t> inner;
        for (std::size_t i = 0; i < group_.vars.size(); ++i) {
            const LoopVar& v = group_.vars[i];
            if (!v.outer && std::any_of(a.map.begin(), a.map.end(),
                                        [&](Expr e) { return contains(e, v.symbol); }))
                inner.push_back(i);
        }
        return inner;
    }

    PhaseKey& phase_with(int step, const std::vector<std::size_t>& inner) {
        for (PhaseKey& k : phases_)
            if (k.step == step && k.inner == inner) return k;
        return phases_.emplace_back(PhaseKey{step, inner, {}, {}});
    }

    void make_phases() {
        for (std::uint32_t id : group_.anchors) {
            const Anchor& a = c_.fusion.anchors[id];
            phase_with(a.step, inner_vars(a)).anchors.push_back(id);
            if (a.reduces && a.stored && !a.gathers)
                phase_with(a.step + 1, {}).results.push_back(id);
        }
        // Phases in which nothing is reduced or stored only serve others, inline.
        std::erase_if(phases_, [&](const PhaseKey& k) {
            return k.results.empty() &&
                   std::none_of(k.anchors.begin(), k.anchors.end(), [&](std::uint32_t id) {
                       const Anchor& a = c_.fusion.anchors[id];
                       return a.reduces || a.stored;
                   });
        });
        std::stable_sort(phases_.begin(), phases_.end(),
                         [](const PhaseKey& a, const PhaseKey& b) { return a.step < b.step; });
        for (std::size_t p = 0; p < phases_.size(); ++p)
            for (std::uint32_t id : phases_[p].anchors) phase_of_[id] = p;
    }

    // Expensive local values that a later phase asks for at the same place.
    void find_scratch() {
        for (std::uint32_t id : group_.anchors) {
            const Anchor& reader = c_.fusion.anchors[id];
            if (!phase_of_.contains(id)) continue;
            for (const Read& r : reader.reads)
                for (std::uint32_t m : c_.fusion.makers[r.value]) {
                    const Anchor& u = c_.fusion.anchors[m];
                    if (u.group != id_ || u.reduces || u.stored || u.value != r.value) continue;
                    if (!phase_of_.contains(m) || phase_of_.at(m) >= phase_of_.at(id)) continue;
                    if (c_.placement.cost[u.value] >= kWorthScratch) add_row(m);
                }
        }
    }

    void add_row(std::uint32_t id) {
        if (rows_.contains(id)) return;
        Expr elements = 1, offset = 0;
        const PhaseKey& key = phases_[phase_of_.at(id)];
        for (std::size_t i : key.inner) {
            offset = offset * group_.vars[i].extent + group_.vars[i].symbol;
            elements *= group_.vars[i].extent;
        }
        if (key.inner.empty() || known_le(elements, kScratchRow) != true) return;
        KernelBuffer b;
        b.dtype = c_.graph.type(c_.fusion.anchors[id].value).dtype;
        b.elements = elements;
        b.scope = BufferScope::Scratch;
        b.read = b.written = true;
        // Numbered from behind until all argument buffers are known.
        rows_.emplace(id, Row{-2 - static_cast<std::int32_t>(scratch_.size()), offset});
        scratch_.push_back(b);
    }

    // The anchor of this group that makes v, or kNone.
    std::uint32_t maker(ValueId v) const {
        for (std::uint32_t m : c_.fusion.makers[v])
            if (c_.fusion.anchors[m].group == id_ && c_.fusion.anchors[m].value == v) return m;
        return kNone;
    }

    Found find(ValueId v, const Sizes& index, std::size_t phase) const {
        std::uint32_t id = maker(v);
        if (id == kNone) return {Found::Where::Memory};
        const Anchor& a = c_.fusion.anchors[id];
        auto at = phase_of_.find(id);
        bool before = at != phase_of_.end() && at->second < phase;
        if (a.reduces) {
            check(before && index == a.position, "a reduction is read before it is complete");
            auto [p, r] = reductions_.at(id);
            return {Found::Where::Reduced, -1, 0, p, r};
        }
        if (!before) return {};
        if (a.stored && a.target == v) return {Found::Where::Memory};
        auto row = rows_.find(id);
        if (row != rows_.end() && index == a.map)
            return {Found::Where::Scratch, row->second.buffer, row->second.offset, -1, -1};
        return {};
    }

    void emit_phase(std::size_t p, Phase& phase) {
        const PhaseKey& key = phases_[p];
        for (std::size_t i : key.inner)
            phase.loops.push_back({group_.vars[i].symbol, group_.vars[i].extent, LoopKind::Serial});
        PhaseEmitter emitter(c_, draft_, phase,
                             [&, p](ValueId v, const Sizes& index) { return find(v, index, p); });
        for (std::uint32_t id : key.anchors) {
            const Anchor& a = c_.fusion.anchors[id];
            if (a.gathers)
                emit_gathering(a, phase, emitter);
            else if (a.reduces)
                emit_reduction(id, p, phase, emitter);
            else if (a.stored)
                emit_store(a, phase, emitter);
        }
        for (std::uint32_t id : key.results) {
            const Anchor& a = c_.fusion.anchors[id];
            store(a.target, a.position, emitter.value(a.value, a.position), phase, emitter);
        }
        for (std::uint32_t id : key.anchors) {
            auto row = rows_.find(id);
            if (row == rows_.end()) continue;
            const Anchor& a = c_.fusion.anchors[id];
            InstId x = emitter.value(a.value, a.map);
            phase.stores.push_back({row->second.buffer, row->second.offset, x});
        }
    }

    void emit_reduction(std::uint32_t id, std::size_t p, Phase& phase, PhaseEmitter& emitter) {
        const Anchor& a = c_.fusion.anchors[id];
        const Node& n = *c_.graph.producer(a.value);
        DType operand = c_.graph.type(n.operands[0]).dtype;
        Reduction r;
        bool logical = n.prim == Prim::All || n.prim == Prim::Any || operand == DType::Bool;
        bool arg = n.prim == Prim::Argmax || n.prim == Prim::Argmin;
        r.op = reduce_op(n.prim, logical && !arg);
        r.dtype = logical ? (arg ? DType::U8 : DType::Bool) : compute_type(operand);
        r.value = emitter.convert(emitter.value(n.operands[0], a.map), r.dtype);
        if (arg) {
            Ints dims = n.attrs.get<Ints>("dims");
            std::sort(dims.begin(), dims.end());
            Sizes index, sizes;
            for (std::int64_t d : dims) {
                index.push_back(a.map[static_cast<std::size_t>(d)]);
                sizes.push_back(a.extents[static_cast<std::size_t>(d)]);
            }
            r.index = emitter.index_number(flatten(index, sizes));
        }
        reductions_[id] = {static_cast<std::int32_t>(p),
                           static_cast<std::int32_t>(phase.reductions.size())};
        phase.reductions.push_back(r);
    }

    void emit_gathering(const Anchor& a, Phase& phase, PhaseEmitter& emitter) {
        const ValueId term = c_.graph.producer(a.value)->operands[0];
        const InstId x = emitter.convert(emitter.value(term, a.map), DType::F32);
        store(a.target, a.position, x, phase, emitter);
        phase.stores.back().mode = StoreMode::Sum;
    }

    // The variable of the run becomes two loops, the run's own the last one.
    void split_run(Nest& nest) {
        const auto [symbol, length] = group_.run;
        const auto at =
            std::ranges::find_if(nest.loops, [&](const Loop& l) { return l.var == symbol; });
        check(at != nest.loops.end(), "a run along no outer loop");
        const Expr count = floor_div(at->extent, length);
        nest.loops.erase(at);
        ExprPool& pool = c_.graph.pool();
        Expr first = 0;
        if (!count.is(1)) {
            first = loop_variable(pool, "r", 0, count);
            nest.loops.push_back({first, count, LoopKind::Serial});
        }
        const Expr next = loop_variable(pool, "r", 1, length);
        nest.loops.push_back({next, length, LoopKind::Run});
        const Expr whole = first * length + next;
        const auto apply = [&](Expr& e) {
            if (e.is_constant()) return;
            e = substitute(e, [&](Expr s) -> std::optional<Expr> {
                if (s == symbol) return whole;
                return std::nullopt;
            });
        };
        for (Phase& p : nest.phases) {
            for (Inst& i : p.insts) apply(i.offset);
            for (Store& s : p.stores) apply(s.offset);
        }
    }

    void emit_store(const Anchor& a, Phase& phase, PhaseEmitter& emitter) {
        bool part = a.target != a.value;
        bool inside = !part && c_.placement.home[a.value] == Home::Anchored;
        InstId x = inside ? emitter.compute(a.value, a.map) : emitter.value(a.value, a.map);
        Sizes at = a.map;
        if (part) at[a.dim] += a.start;
        store(a.target, at, x, phase, emitter);
    }

    void store(ValueId target, const Sizes& at, InstId x, Phase& phase, PhaseEmitter& emitter) {
        ValueId memory = memory_of(target);
        Store s;
        s.buffer = emitter.buffer_of(memory);
        s.offset = offset_of(at, c_.layouts.strides(memory));
        s.value = x;
        draft_.kernel.buffers[static_cast<std::size_t>(s.buffer)].written = true;
        phase.stores.push_back(s);
    }

    // An output that writes an input is that input's memory.
    ValueId memory_of(ValueId v) const {
        ValueId input = c_.layouts.written_input(v);
        return input == kNone ? v : input;
    }

    void append_scratch_buffers() {
        auto arguments = static_cast<std::int32_t>(draft_.kernel.buffers.size());
        auto fix = [&](std::int32_t& buffer) {
            if (buffer <= -2) buffer = arguments + (-2 - buffer);
        };
        for (Phase& p : draft_.kernel.nests[0].phases) {
            for (Inst& i : p.insts)
                if (i.kind == InstKind::Load) fix(i.buffer);
            for (Store& s : p.stores) fix(s.buffer);
        }
        for (const KernelBuffer& b : scratch_) draft_.kernel.buffers.push_back(b);
    }

    const EmitContext& c_;
    const Group& group_;
    std::uint32_t id_;
    bool use_scratch_;
    Draft draft_;
    std::vector<PhaseKey> phases_;
    std::unordered_map<std::uint32_t, std::size_t> phase_of_;  // by anchor
    std::unordered_map<std::uint32_t, std::pair<std::int32_t, std::int32_t>> reductions_;
    std::unordered_map<std::uint32_t, Row> rows_;
    std::vector<KernelBuffer> scratch_;
};

struct SizeFinder {
    std::vector<Expr> all, bound;

    void loops(const std::vector<Loop>& list) {
        for (const Loop& l : list) {
            collect_symbols(l.extent, all);
            bound.push_back(l.var);
        }
    }
    void insts(const std::vector<Inst>& list) {
        for (const Inst& i : list) {
            collect_symbols(i.offset, all);
            collect_symbols(i.extent, all);
        }
    }
    void phase(const Phase& p) {
        loops(p.loops);
        insts(p.insts);
        for (const Store& s : p.stores) collect_symbols(s.offset, all);
    }
};

}  // namespace

void find_sizes(Draft& draft) {
    SizeFinder f;
    f.bound = draft.bound;
    Kernel& k = draft.kernel;
    for (const KernelBuffer& b : k.buffers) collect_symbols(b.elements, f.all);
    for (const Nest& n : k.nests) {
        f.loops(n.loops);
        for (const Phase& p : n.phases) f.phase(p);
    }
    if (k.contraction) {
        const Contraction& c = *k.contraction;
        for (const auto* list : {&c.batch, &c.m, &c.n, &c.k}) f.loops(*list);
        f.insts(c.a_insts);
        f.insts(c.b_insts);
        f.phase(c.epilogue);
    }
    k.sizes.clear();
    for (Expr s : f.all)
        if (std::find(f.bound.begin(), f.bound.end(), s) == f.bound.end()) k.sizes.push_back(s);
    std::sort(k.sizes.begin(), k.sizes.end(),
              [](Expr x, Expr y) { return x.node()->id < y.node()->id; });
}

Draft emit_nest(const EmitContext& context, std::uint32_t group, bool scratch) {
    return NestEmitter(context, group, scratch).run();
}

}  // namespace ingot::sched
