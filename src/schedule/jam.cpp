// See jam.h.
#include "schedule/jam.h"

#include <algorithm>

#include "schedule/index.h"

namespace ingot::sched {

namespace {

constexpr std::int64_t kLargestWindow = 64;
constexpr std::size_t kMostInsts = 24;  // of a phase, before it is repeated

bool has_small_windows(const Nest& nest) {
    bool reduces = false;
    for (const Phase& p : nest.phases) {
        if (p.insts.size() > kMostInsts) return false;
        reduces = reduces || !p.reductions.empty();
        Expr window = 1;
        for (const Loop& l : p.loops) window *= l.extent;
        if (!window.is_constant() || window.constant() > kLargestWindow) return false;
    }
    return reduces;
}

// How many points to take together: a divisor of the extent, 4 if possible.
std::int64_t block_of(Expr extent) {
    if (!extent.is_constant()) return 1;
    for (std::int64_t b : {4, 5, 6, 7, 3, 2})
        if (extent.constant() % b == 0) return b;
    return 1;
}

class Jam {
  public:
    Jam(Nest& nest, Expr var, Expr base, std::int64_t block)
        : nest_(nest), var_(var), base_(base), block_(block) {}

    void run() {
        for (Phase& p : nest_.phases) counts_.push_back(p.reductions.size());
        for (Phase& p : nest_.phases) phase(p);
    }

  private:
    Expr at(Expr e, std::int64_t point) const {
        if (!contains(e, var_)) return e;
        return substitute(e, [&](Expr s) -> std::optional<Expr> {
            if (s == var_) return base_ + Expr(point);
            return std::nullopt;
        });
    }

    void phase(Phase& p) {
        Phase out;
        out.loops = p.loops;
        std::vector<InstId> first(p.insts.size(), kNone);  // the new id at point 0
        for (std::int64_t point = 0; point < block_; ++point) {
            std::vector<InstId> ids(p.insts.size());
            for (std::size_t i = 0; i < p.insts.size(); ++i)
                ids[i] = copy(p.insts[i], point, ids, first[i], first, out);
            if (point == 0) first = ids;
            for (Reduction r : p.reductions) {
                r.value = ids[r.value];
                if (r.index != kNone) r.index = ids[r.index];
                out.reductions.push_back(r);
            }
            for (Store s : p.stores) {
                s.offset = at(s.offset, point);
                s.value = ids[s.value];
                if (s.mask != kNone) s.mask = ids[s.mask];
                out.stores.push_back(s);
            }
        }
        p = std::move(out);
    }

    // An inst that is the same at all points is made once.
    InstId copy(const Inst& old, std::int64_t point, const std::vector<InstId>& ids, InstId before,
                const std::vector<InstId>& first, Phase& out) {
        bool differs = contains(old.offset, var_) || old.kind == InstKind::Reduced;
        for (InstId o : old.operands) differs = differs || ids[o] != first[o];
        if (old.mask != kNone) differs = differs || ids[old.mask] != first[old.mask];
        if (point > 0 && !differs) return before;
        Inst i = old;
        i.offset = at(old.offset, point);
        for (InstId& o : i.operands) o = ids[o];
        if (i.mask != kNone) i.mask = ids[i.mask];
        if (i.kind == InstKind::Reduced)
            i.reduction += static_cast<std::int32_t>(point) *
                           static_cast<std::int32_t>(counts_[static_cast<std::size_t>(i.phase)]);
        out.insts.push_back(std::move(i));
        return static_cast<InstId>(out.insts.size() - 1);
    }

    Nest& nest_;
    Expr var_, base_;
    std::int64_t block_;
    std::vector<std::size_t> counts_;  // reductions by phase
};

bool binds(const Nest& nest) {
    for (const Phase& p : nest.phases)
        for (const Inst& i : p.insts)
            if (i.kind == InstKind::Bind) return true;
    return false;
}

}  // namespace

void jam_windows(Nest& nest, const std::vector<KernelBuffer>& buffers, ExprPool& pool) {
    for (const KernelBuffer& b : buffers)
        if (b.scope == BufferScope::Scratch) return;
    if (nest.loops.size() < 2 || nest.loops.back().kind != LoopKind::Vector) return;
    if (!has_small_windows(nest) || binds(nest)) return;
    Loop& loop = nest.loops[nest.loops.size() - 2];
    std::int64_t block = block_of(loop.extent);
    if (block == 1) return;
    Expr extent = floor_div(loop.extent, block);
    std::size_t position = nest.loops.size() - 2;
    Expr fresh = extent.is(1) ? Expr(0) : loop_variable(pool, "i", position, extent);
    Jam(nest, loop.var, fresh * Expr(block), block).run();
    if (extent.is(1))
        nest.loops.erase(nest.loops.end() - 2);
    else
        loop = {fresh, extent, LoopKind::Serial};
}

}  // namespace ingot::sched
