// See window_blocks.h.
#include "schedule/window_blocks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "schedule/index.h"

namespace ingot::sched {

namespace {

constexpr std::int64_t kLargestWindow = 49;
constexpr std::size_t kMostInsts = 128;    // of a phase, before it is repeated
constexpr std::size_t kMostMade = 6000;    // afterwards
constexpr std::int64_t kMostColumns = 7;   // of a block: whole rows of 7, 14, 28, .. are common
constexpr std::int64_t kLongestTap = 7;    // of a window's side, of correlations
constexpr std::int64_t kVectorBytes = 16;  // of a thread's neighbours
constexpr double kGain = 0.8;              // of the loads, that blocks leave at most

using Replacement = std::vector<std::pair<Expr, Expr>>;

Expr replaced(Expr e, const Replacement& with) {
    if (e.is_constant()) return e;
    return substitute(e, [&](Expr s) -> std::optional<Expr> {
        for (const auto& [from, to] : with)
            if (s == from) return to;
        return std::nullopt;
    });
}

// Instructions, each once: what asks for the same again gets the one before, and what the ranges of
// indices decide is decided.
class Insts {
  public:
    InstId add(Inst i) {
        if (const auto known = folded(i)) return *known;
        auto& same = seen_[{static_cast<int>(i.kind), static_cast<int>(i.prim),
                            static_cast<int>(i.dtype), i.operands, i.buffer, i.offset.node(),
                            i.offset.is_constant() ? i.offset.constant() : 0, i.mask, i.phase,
                            i.reduction, i.component, i.imm}];
        for (InstId before : same)
            if (list_[before].constant == i.constant) return before;
        const auto id = static_cast<InstId>(list_.size());
        std::optional<Expr> number;
        if (i.kind == InstKind::Index) number = i.offset;
        if (i.kind == InstKind::Constant && is_integral(i.dtype) && i.dtype != DType::Bool)
            number = Expr(i.constant.to_int());
        numbers_.push_back(number);
        known_.push_back(i.kind == InstKind::Constant && i.dtype == DType::Bool
                             ? std::optional<bool>(i.constant.to_int() != 0)
                             : std::nullopt);
        list_.push_back(std::move(i));
        same.push_back(id);
        return id;
    }
    InstId sum(DType type, InstId x, InstId y) {
        Inst i;
        i.kind = InstKind::Prim;
        i.prim = Prim::Add;
        i.dtype = type;
        i.operands = {x, y};
        return add(std::move(i));
    }

    // Ends the phase: instructions that nothing needs go.
    void finish(Phase& phase) const {
        std::vector<bool> needed(list_.size(), false);
        const auto need = [&](InstId i) {
            if (i != kNone) needed[i] = true;
        };
        for (const Reduction& r : phase.reductions) need(r.value);
        for (const Store& s : phase.stores) {
            need(s.value);
            need(s.mask);
        }
        for (InstId i = static_cast<InstId>(list_.size()); i-- > 0;) {
            if (!needed[i]) continue;
            for (InstId o : list_[i].operands) need(o);
            need(list_[i].mask);
        }
        std::vector<InstId> place(list_.size(), kNone);
        for (InstId i = 0; i < list_.size(); ++i) {
            if (!needed[i]) continue;
            Inst inst = list_[i];
            for (InstId& o : inst.operands) o = place[o];
            if (inst.mask != kNone) inst.mask = place[inst.mask];
            place[i] = static_cast<InstId>(phase.insts.size());
            phase.insts.push_back(std::move(inst));
        }
        for (Reduction& r : phase.reductions) r.value = place[r.value];
        for (Store& s : phase.stores) {
            s.value = place[s.value];
            if (s.mask != kNone) s.mask = place[s.mask];
        }
    }
    std::size_t size() const { return list_.size(); }

  private:
    std::optional<InstId> folded(Inst& i) {
        if (i.kind == InstKind::Load && i.mask != kNone && known_[i.mask]) {
            if (!*known_[i.mask]) return constant(i.dtype, i.constant);
            i.mask = kNone;
            i.constant = Scalar();
        }
        if (i.kind != InstKind::Prim) return std::nullopt;
        if (i.prim == Prim::LogicalAnd)
            for (const std::size_t k : {0U, 1U}) {
                const InstId other = i.operands[1 - k];
                if (!known_[i.operands[k]] || list_[other].dtype != DType::Bool) continue;
                return *known_[i.operands[k]] ? other : i.operands[k];
            }
        if (i.prim == Prim::Select && known_[i.operands[0]])
            return i.operands[*known_[i.operands[0]] ? 1 : 2];
        if (i.operands.size() != 2) return std::nullopt;
        const auto &x = numbers_[i.operands[0]], &y = numbers_[i.operands[1]];
        if (!x || !y) return std::nullopt;
        std::optional<bool> holds;
        if (i.prim == Prim::Lt) holds = known_lt(*x, *y);
        if (i.prim == Prim::Le) holds = known_le(*x, *y);
        if (i.prim == Prim::Gt) holds = known_lt(*y, *x);
        if (i.prim == Prim::Ge) holds = known_le(*y, *x);
        if (!holds) return std::nullopt;
        return constant(DType::Bool, Scalar(*holds));
    }
    InstId constant(DType type, const Scalar& value) {
        Inst i;
        i.kind = InstKind::Constant;
        i.dtype = type;
        i.constant = value;
        return add(std::move(i));
    }

    // A constant expression's node says nothing of its number.
    using Key =
        std::tuple<int, int, int, std::vector<InstId>, std::int32_t, const ExprNode*, std::int64_t,
                   InstId, std::int32_t, std::int32_t, std::int32_t, std::int64_t>;
    std::vector<Inst> list_;
    std::vector<std::optional<Expr>> numbers_;  // integers, by instruction
    std::vector<std::optional<bool>> known_;    // what is decided, by instruction
    std::map<Key, std::vector<InstId>> seen_;
};

// Copies a phase's instructions into another phase. `reduced` says what stands for a result of an
// earlier phase.
template <class Reduced>
std::vector<InstId> copy(Insts& to, const std::vector<Inst>& insts, const Replacement& with,
                         const Reduced& reduced) {
    std::vector<InstId> ids;
    for (const Inst& old : insts) {
        if (old.kind == InstKind::Reduced) {
            ids.push_back(reduced(old));
            continue;
        }
        Inst i = old;
        i.offset = replaced(old.offset, with);
        for (InstId& o : i.operands) o = ids[o];
        if (i.mask != kNone) i.mask = ids[i.mask];
        ids.push_back(to.add(std::move(i)));
    }
    return ids;
}

std::vector<Store> copied(const std::vector<Store>& stores, const Replacement& with,
                          const std::vector<InstId>& ids) {
    std::vector<Store> made = stores;
    for (Store& s : made) {
        s.offset = replaced(s.offset, with);
        s.value = ids[s.value];
        if (s.mask != kNone) s.mask = ids[s.mask];
    }
    return made;
}

// All values of the loops' variables, the last one fastest.
std::vector<Replacement> all_points(const std::vector<Loop>& loops) {
    std::vector<Replacement> points{{}};
    for (const Loop& l : loops) {
        std::vector<Replacement> more;
        for (const Replacement& p : points)
            for (std::int64_t i = 0; i < l.extent.constant(); ++i) {
                more.push_back(p);
                more.back().emplace_back(l.var, Expr(i));
            }
        points = std::move(more);
    }
    return points;
}

bool has_kind(const Nest& nest, InstKind kind) {
    return std::ranges::any_of(nest.phases, [&](const Phase& p) {
        return std::ranges::any_of(p.insts, [&](const Inst& i) { return i.kind == kind; });
    });
}

std::size_t count_loads(const std::vector<Inst>& insts) {
    return static_cast<std::size_t>(
        std::ranges::count_if(insts, [](const Inst& i) { return i.kind == InstKind::Load; }));
}

std::int64_t points_of(const std::vector<Loop>& loops) {
    Expr n = 1;
    for (const Loop& l : loops) n *= l.extent;
    return n.is_constant() ? n.constant() : -1;
}

bool sums_only(const Phase& p) {
    return std::ranges::all_of(p.reductions, [](const Reduction& r) {
        return r.op == ReduceOp::Sum && is_float(r.dtype) && !is_complex(r.dtype);
    });
}

// What both forms ask for.
bool may_be_blocked(const Nest& nest, const std::vector<KernelBuffer>& buffers) {
    for (const KernelBuffer& b : buffers)
        if (b.scope == BufferScope::Scratch || (b.read && b.written) || is_complex(b.dtype))
            return false;
    if (nest.loops.size() < 2 || nest.loops.back().kind != LoopKind::Vector ||
        has_kind(nest, InstKind::Bind) || points_of(nest.loops) < 0)
        return false;
    for (const Phase& p : nest.phases) {
        if (p.insts.size() > kMostInsts || !sums_only(p)) return false;
        for (const Store& s : p.stores)
            if (s.mode != StoreMode::Write || s.mask != kNone) return false;
    }
    return true;
}

// Neighbours of a thread: as many as 16 bytes of the widest type that is read or written.
std::int64_t lanes_of(const std::vector<KernelBuffer>& buffers) {
    std::int64_t widest = 2;
    for (const KernelBuffer& b : buffers) widest = std::max<std::int64_t>(widest, bytes(b.dtype));
    return std::max<std::int64_t>(1, kVectorBytes / widest);
}

// --- windows ---

class Windows {
  public:
    Windows(const Nest& nest, const std::vector<KernelBuffer>& buffers, ExprPool& pool,
            std::int64_t fewest_threads)
        : nest_(nest), buffers_(buffers), pool_(pool), fewest_threads_(fewest_threads) {}

    std::optional<Nest> run() {
        if (!has_form()) return std::nullopt;
        double fewest = kGain * loads_before();
        std::optional<Nest> best;
        for (const std::int64_t columns : blocks()) {
            auto made = blocked(columns);
            if (!made) continue;
            const double loads = static_cast<double>(count_loads(made->phases[0].insts)) /
                                 static_cast<double>(columns);
            if (loads >= fewest) continue;
            fewest = loads;
            best = std::move(made);
        }
        return best;
    }

  private:
    // Small windows whose results some later phase stores; or windows that are written out, whose
    // places step with the points.
    bool has_form() const {
        bool windows = false, steps = false;
        for (const Phase& p : nest_.phases) {
            const std::int64_t window = points_of(p.loops);
            if (window < 0 || window > kLargestWindow || (!p.loops.empty() && !p.stores.empty()))
                return false;
            windows = windows || (window > 1 && !p.reductions.empty());
            for (const Inst& i : p.insts)
                steps = steps || (i.kind == InstKind::Load && i.mask != kNone && is_stepping(i));
        }
        return windows || (steps && nest_.phases.size() == 1);
    }
    bool is_stepping(const Inst& load) const {
        return std::ranges::any_of(nest_.loops, [&](const Loop& l) {
            return contains(load.offset, l.var) && !linear_in(load.offset, l.var);
        });
    }
    double loads_before() const {
        std::size_t loads = 0;
        for (const Phase& p : nest_.phases)
            loads += count_loads(p.insts) * static_cast<std::size_t>(points_of(p.loops));
        return static_cast<double>(loads);
    }

    // Sizes of blocks, as far as threads enough are left. The smallest comes first.
    std::vector<std::int64_t> blocks() const {
        const std::int64_t threads = points_of(nest_.loops) / lanes_of(buffers_);
        const std::int64_t all = nest_.loops[nest_.loops.size() - 2].extent.constant();
        std::vector<std::int64_t> found;
        for (std::int64_t columns = 1; columns <= kMostColumns; ++columns)
            if (all % columns == 0 && (columns == 1 || threads / columns >= fewest_threads_))
                found.push_back(columns);
        return found;
    }

    // The loop in steps of `n`: its variable in terms of the new one, or 0.
    Expr step(std::vector<Loop>& loops, std::size_t at, std::int64_t n) const {
        if (n == 1) return loops[at].var;
        const Expr count = floor_div(loops[at].extent, n);
        const Expr fresh = count.is(1) ? Expr(0) : loop_variable(pool_, "i", at, count);
        loops[at] = {fresh, count, LoopKind::Serial};
        return fresh * Expr(n);
    }

    std::optional<Nest> blocked(std::int64_t columns) const {
        Nest made = nest_;
        made.phases.clear();
        const std::size_t last = nest_.loops.size() - 2;
        const Expr column = step(made.loops, last, columns);
        std::erase_if(made.loops, [](const Loop& l) { return l.var.is(0); });
        std::vector<Replacement> points;
        for (std::int64_t c = 0; c < columns; ++c)
            points.push_back({{nest_.loops[last].var, column + Expr(c)}});
        Insts insts;
        Phase out;
        // By phase, point and reduction.
        std::vector<std::vector<std::vector<InstId>>> sums;
        for (const Phase& p : nest_.phases) {
            sums.emplace_back(points.size(), std::vector<InstId>(p.reductions.size(), kNone));
            for (const Replacement& tap : all_points(p.loops))
                for (std::size_t at = 0; at < points.size(); ++at) {
                    Replacement with = points[at];
                    with.insert(with.end(), tap.begin(), tap.end());
                    const auto ids = copy(insts, p.insts, with, [&](const Inst& i) {
                        return sums[static_cast<std::size_t>(i.phase)][at]
                                   [static_cast<std::size_t>(i.reduction)];
                    });
                    if (insts.size() > kMostMade) return std::nullopt;
                    for (std::size_t r = 0; r < p.reductions.size(); ++r) {
                        const InstId term = ids[p.reductions[r].value];
                        InstId& sum = sums.back()[at][r];
                        sum = sum == kNone ? term : insts.sum(p.reductions[r].dtype, sum, term);
                    }
                    const auto stores = copied(p.stores, with, ids);
                    out.stores.insert(out.stores.end(), stores.begin(), stores.end());
                }
        }
        insts.finish(out);
        made.phases.push_back(std::move(out));
        return made;
    }

    const Nest& nest_;
    const std::vector<KernelBuffer>& buffers_;
    ExprPool& pool_;
    std::int64_t fewest_threads_;
};

// --- correlations ---

class Correlation {
  public:
    Correlation(const Nest& nest, ExprPool& pool) : nest_(nest), pool_(pool) {}

    std::optional<Nest> run() {
        if (!has_form()) return std::nullopt;
        Nest made = nest_;
        made.phases.clear();
        std::vector<Loop> taps;
        std::erase_if(made.loops, [&](const Loop& l) {
            if (!is_tap(l)) return false;
            taps.push_back(l);
            return true;
        });
        const std::int64_t window = points_of(taps);
        if (taps.empty() || window > kLargestWindow || window > points_of(nest_.phases[0].loops))
            return std::nullopt;
        // Windows of each point read weights that know nothing of the point.
        for (const Inst& i : nest_.phases[0].insts)
            for (const Loop& l : made.loops)
                if (i.kind == InstKind::Load && !contains(i.offset, l.var)) return std::nullopt;
        const std::vector<Replacement> points = all_points(taps);
        made.phases.push_back(walk(points));
        if (made.phases[0].insts.size() > kMostMade) return std::nullopt;
        for (std::size_t p = 1; p < nest_.phases.size(); ++p)
            made.phases.push_back(results(nest_.phases[p], points));
        return made;
    }

  private:
    bool has_form() const {
        const Phase& first = nest_.phases[0];
        if (first.loops.empty() || first.reductions.empty() || !first.stores.empty() ||
            points_of(first.loops) < 0)
            return false;
        for (const Inst& i : first.insts) {
            if (i.kind == InstKind::Reduced) return false;
            if (i.kind != InstKind::Load) continue;
            const auto along = linear_in(i.offset, nest_.loops.back().var);
            if (!along || !along->stride.is(1)) return false;
        }
        return std::all_of(nest_.phases.begin() + 1, nest_.phases.end(),
                           [](const Phase& p) { return p.loops.empty() && p.reductions.empty(); });
    }

    // Whether the loop moves what some of the loads read along one of the walked dims, and others
    // not at all.
    bool is_tap(const Loop& l) const {
        if (l.var == nest_.loops.back().var || l.extent.constant() > kLongestTap ||
            l.kind != LoopKind::Serial)
            return false;
        const Phase& walk = nest_.phases[0];
        bool moves = false, stays = false;
        for (const Inst& i : walk.insts) {
            if (i.kind != InstKind::Load) continue;
            stays = stays || !contains(i.offset, l.var);
            const auto along = linear_in(i.offset, l.var);
            if (!contains(i.offset, l.var) || !along || !along->stride.is_constant()) continue;
            moves = moves || std::ranges::any_of(walk.loops, [&](const Loop& walked) {
                        const auto step = linear_in(i.offset, walked.var);
                        if (!step || !step->stride.is_constant() || step->stride.is(0))
                            return false;
                        const std::int64_t x = along->stride.constant(),
                                           y = step->stride.constant();
                        return x != 0 && (x % y == 0 || y % x == 0);
                    });
        }
        return moves && stays;
    }

    static std::int64_t columns_of(Expr extent) {
        for (const std::int64_t n : {7, 4, 5, 6, 3, 8, 2})
            if (extent.constant() % n == 0) return n;
        return 1;
    }

    // Some columns at a time, and a sum for each tap.
    Phase walk(const std::vector<Replacement>& points) const {
        const Phase& old = nest_.phases[0];
        Phase out;
        out.loops = old.loops;
        const Loop last = out.loops.back();
        const std::int64_t columns = columns_of(last.extent);
        const Expr count = floor_div(last.extent, columns);
        const bool all = count.is(1) && out.loops.size() > 1;
        const Expr fresh = all ? Expr(0) : loop_variable(pool_, "j", out.loops.size() - 1, count);
        if (all)
            out.loops.pop_back();
        else
            out.loops.back() = {fresh, count, LoopKind::Serial};
        Insts insts;
        for (const Replacement& point : points) {
            std::vector<InstId> sums(old.reductions.size(), kNone);
            for (std::int64_t c = 0; c < columns; ++c) {
                Replacement with = point;
                with.emplace_back(last.var, fresh * Expr(columns) + Expr(c));
                const auto ids =
                    copy(insts, old.insts, with, [](const Inst&) -> InstId { return kNone; });
                for (std::size_t r = 0; r < sums.size(); ++r) {
                    const InstId term = ids[old.reductions[r].value];
                    sums[r] =
                        sums[r] == kNone ? term : insts.sum(old.reductions[r].dtype, sums[r], term);
                }
            }
            for (std::size_t r = 0; r < sums.size(); ++r) {
                out.reductions.push_back(old.reductions[r]);
                out.reductions.back().value = sums[r];
            }
        }
        insts.finish(out);
        return out;
    }

    Phase results(const Phase& old, const std::vector<Replacement>& points) const {
        Phase out;
        Insts insts;
        const auto each = static_cast<std::int32_t>(nest_.phases[0].reductions.size());
        for (std::size_t at = 0; at < points.size(); ++at) {
            const auto ids = copy(insts, old.insts, points[at], [&](const Inst& i) {
                Inst moved = i;
                moved.reduction += static_cast<std::int32_t>(at) * each;
                return insts.add(std::move(moved));
            });
            const auto stores = copied(old.stores, points[at], ids);
            out.stores.insert(out.stores.end(), stores.begin(), stores.end());
        }
        insts.finish(out);
        return out;
    }

    const Nest& nest_;
    ExprPool& pool_;
};

// Names that say only the position and the extent, as loops have them: equal kernels have equal
// text.
void rename(Nest& nest, ExprPool& pool) {
    Replacement with;
    for (std::size_t i = 0; i < nest.loops.size(); ++i) {
        const Expr fresh = loop_variable(pool, "i", i, nest.loops[i].extent);
        with.emplace_back(nest.loops[i].var, fresh);
        nest.loops[i].var = fresh;
    }
    for (Phase& p : nest.phases) {
        for (Inst& i : p.insts) i.offset = replaced(i.offset, with);
        for (Store& s : p.stores) s.offset = replaced(s.offset, with);
    }
}

}  // namespace

void block_windows(Nest& nest, const std::vector<KernelBuffer>& buffers, ExprPool& pool,
                   std::int64_t fewest_threads) {
    if (!may_be_blocked(nest, buffers)) return;
    auto made = Correlation(nest, pool).run();
    if (!made) made = Windows(nest, buffers, pool, fewest_threads).run();
    if (!made) return;
    rename(*made, pool);
    nest = std::move(*made);
}

}  // namespace ingot::sched
