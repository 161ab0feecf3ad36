// See summed_exponentials.h.
#include "codegen/llvm/summed_exponentials.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace ingot::codegen {

namespace {

class Finder {
  public:
    explicit Finder(const Nest& nest) : nest_(nest) {}

    std::vector<bool> run(std::size_t number) const {
        const Phase& phase = nest_.phases[number];
        std::vector<bool> found(phase.insts.size(), false);
        if (phase.loops.empty()) return found;
        for (InstId i = 0; i < phase.insts.size(); ++i) {
            const Inst& e = phase.insts[i];
            found[i] = is(e, Prim::Exp) && only_summed(phase, i) &&
                       below_maximum(number, phase.insts[e.operands[0]]);
        }
        return found;
    }

  private:
    static bool is(const Inst& i, Prim p) {
        return i.kind == InstKind::Prim && i.prim == p && i.dtype == DType::F32;
    }

    static bool only_summed(const Phase& phase, InstId e) {
        for (const Inst& i : phase.insts)
            if (i.mask == e || std::ranges::find(i.operands, e) != i.operands.end()) return false;
        for (const Store& s : phase.stores)
            if (s.value == e || s.mask == e) return false;
        bool summed = false;
        for (const Reduction& r : phase.reductions) {
            if (r.index == e || (r.value == e && r.op != ReduceOp::Sum)) return false;
            summed = summed || r.value == e;
        }
        return summed;
    }

    // a - m, where m is the greatest of all that a is in the phase's loops.
    bool below_maximum(std::size_t number, const Inst& difference) const {
        const Phase& phase = nest_.phases[number];
        if (!is(difference, Prim::Sub)) return false;
        const Inst& m = phase.insts[difference.operands[1]];
        if (m.kind != InstKind::Reduced || m.component != 0) return false;
        const auto before = static_cast<std::size_t>(m.phase);
        const Phase& from = nest_.phases[before];
        const Reduction& r = from.reductions[static_cast<std::size_t>(m.reduction)];
        if (r.op != ReduceOp::Max || r.dtype != DType::F32) return false;
        if (!std::ranges::equal(from.loops, phase.loops,
                                [](const Loop& x, const Loop& y) { return x.extent == y.extent; }))
            return false;
        Known known;
        return same({before, number}, r.value, difference.operands[0], known);
    }

    struct Phases {
        std::size_t p, q;
    };
    using Known = std::map<std::pair<InstId, InstId>, bool>;

    // Whether x of phase p and y of phase q have the same value at each point of the loops.
    bool same(Phases at, InstId x, InstId y, Known& known) const {
        const auto [it, fresh] = known.try_emplace({x, y}, false);
        if (fresh) {
            const bool found = compare(at, x, y, known);
            known[{x, y}] = found;
            return found;
        }
        return it->second;
    }

    bool compare(Phases at, InstId x, InstId y, Known& known) const {
        const auto [p, q] = at;
        const Inst &a = nest_.phases[p].insts[x], &b = nest_.phases[q].insts[y];
        if (b.kind == InstKind::Load && b.mask == kNone)
            for (const Store& s : nest_.phases[p].stores)
                if (s.buffer == b.buffer && s.value == x && s.mask == kNone &&
                    s.mode == StoreMode::Write && moved(p, s.offset, q) == b.offset)
                    return !written(p + 1, q, b.buffer);
        if (a.kind != b.kind || a.dtype != b.dtype) return false;
        switch (a.kind) {
            case InstKind::Prim:
                return a.prim == b.prim && a.imm == b.imm &&
                       std::ranges::equal(a.operands, b.operands, [&](InstId i, InstId k) {
                           return same(at, i, k, known);
                       });
            case InstKind::Load:
                return a.buffer == b.buffer && moved(p, a.offset, q) == b.offset &&
                       !written(p, q, b.buffer) && (a.mask == kNone) == (b.mask == kNone) &&
                       (a.mask == kNone ||
                        (same(at, a.mask, b.mask, known) && a.constant == b.constant));
            case InstKind::Index:
                return moved(p, a.offset, q) == b.offset;
            case InstKind::Constant:
                return a.constant == b.constant;
            case InstKind::Reduced:
                return a.phase == b.phase && a.reduction == b.reduction &&
                       a.component == b.component;
            default:
                return false;
        }
    }

    // An offset of phase p with the loop variables of phase q.
    Expr moved(std::size_t p, Expr offset, std::size_t q) const {
        if (offset.is_constant()) return offset;
        const std::vector<Loop>&from = nest_.phases[p].loops, &to = nest_.phases[q].loops;
        return substitute(offset, [&](Expr s) -> std::optional<Expr> {
            for (std::size_t k = 0; k < from.size(); ++k)
                if (from[k].var == s) return to[k].var;
            return std::nullopt;
        });
    }

    // Whether phases [p, q) store into the buffer.
    bool written(std::size_t p, std::size_t q, std::int32_t buffer) const {
        for (; p < q; ++p)
            for (const Store& s : nest_.phases[p].stores)
                if (s.buffer == buffer) return true;
        return false;
    }

    const Nest& nest_;
};

}  // namespace

std::vector<std::vector<bool>> exponentials_beside_one(const Nest& nest) {
    std::vector<std::vector<bool>> found;
    for (std::size_t p = 0; p < nest.phases.size(); ++p) found.push_back(Finder(nest).run(p));
    return found;
}

}  // namespace ingot::codegen
