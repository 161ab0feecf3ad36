// See loops.h.
#include "schedule/loops.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "schedule/index.h"
#include "schedule/jam.h"
#include "schedule/transposes.h"
#include "schedule/window_blocks.h"

namespace ingot::sched {

namespace {

constexpr double kLine = 64;        // bytes of a cache line
constexpr double kUneven = 8;       // a digit of the variable: moves now and then
constexpr double kPage = 4096;      // bytes
constexpr std::int64_t kTile = 32;  // rows and columns of a transposed tile
constexpr double kStoreWeight = 2;  // a store also loads its line
constexpr std::int64_t kShort = 8;  // extents that fill no vector
constexpr std::int64_t kFew = 64;   // extents of which a tile may have all
constexpr std::int64_t kMostUnrolled = 16;
constexpr std::int64_t kEven = 8;   // elements of a GPU's widest accesses
constexpr double kLarge = 1 << 18;  // points

// An expression of loop variables and what walking along it costs.
struct Access {
    Expr offset;
    double bytes = 0;  // of an element; 0: no memory, only linearity matters
    double weight = 1;
    bool load = false;
    std::size_t phase = 0;
};

class Arranger {
  public:
    Arranger(Draft& draft, Nest& nest, ExprPool& pool, bool gpu)
        : draft_(draft), nest_(nest), pool_(pool), gpu_(gpu) {
        collect();
    }

    void run() {
        // The points of a run stay where they are.
        std::optional<Loop> run;
        if (!nest_.loops.empty() && nest_.loops.back().kind == LoopKind::Run) {
            run = nest_.loops.back();
            nest_.loops.pop_back();
        }
        sort(nest_.loops, std::nullopt);
        for (std::size_t p = 0; p < nest_.phases.size(); ++p) sort(nest_.phases[p].loops, p);
        merge(nest_.loops, std::nullopt);
        if (!run && !gpu_) join_innermost();
        for (std::size_t p = 0; p < nest_.phases.size(); ++p) merge(nest_.phases[p].loops, p);
        if (!run) tile();
        if (!run && gpu_) join_uneven();
        if (run) nest_.loops.push_back(*run);
        rename();
        collect();
        if (!run) choose_vector();
        if (gpu_)
            block_windows(nest_, draft_.kernel.buffers, pool_);
        else
            jam_windows(nest_, draft_.kernel.buffers, pool_);
    }

  private:
    void collect() {
        accesses_.clear();
        for (std::size_t p = 0; p < nest_.phases.size(); ++p) {
            const Phase& phase = nest_.phases[p];
            for (const Inst& i : phase.insts) {
                if (i.kind == InstKind::Load)
                    add(i.offset, element(i.buffer), 1, true, p);
                else if (i.kind == InstKind::Index || i.kind == InstKind::Bind)
                    add(i.offset, 0, 0, false, p);
            }
            for (const Store& s : phase.stores)
                add(s.offset, element(s.buffer), kStoreWeight, false, p);
        }
    }
    void add(Expr offset, double bytes, double weight, bool load, std::size_t p) {
        if (!offset.is_constant()) accesses_.push_back({offset, bytes, weight, load, p});
    }
    double element(std::int32_t buffer) const {
        return bytes(draft_.kernel.buffers[static_cast<std::size_t>(buffer)].dtype);
    }

    static double magnitude(Expr e) {
        if (e.is_constant()) return std::abs(static_cast<double>(e.constant()));
        Range r = e.range();
        return r.lo > 64 ? static_cast<double>(r.lo) : 1024.0;
    }

    // Bytes between neighbours along `var`, at most a line; and without that limit.
    std::pair<double, double> walk(Expr var, std::optional<std::size_t> phase) const {
        double near = 0, far = 0;
        for (const Access& a : accesses_) {
            if ((phase && a.phase != *phase) || a.bytes == 0 || !contains(a.offset, var)) continue;
            auto linear = linear_in(a.offset, var);
            double distance = linear ? magnitude(linear->stride) * a.bytes : kUneven;
            near += a.weight * std::min(distance, kLine);
            far += a.weight * distance;
        }
        return {near, far};
    }

    // Far strides outside; the variable with the nearest neighbours goes inside.
    void sort(std::vector<Loop>& loops, std::optional<std::size_t> phase) {
        if (loops.size() < 2) return;
        struct Keyed {
            double near, far;
            Loop loop;
        };
        std::vector<Keyed> keyed;
        for (const Loop& l : loops) {
            auto [near, far] = walk(l.var, phase);
            // A variable no memory depends on says nothing: keep it outside.
            if (far == 0) near = far = 1e30;
            keyed.push_back({near, far, l});
        }
        std::stable_sort(keyed.begin(), keyed.end(),
                         [](const Keyed& a, const Keyed& b) { return a.far > b.far; });
        auto nearest =
            std::min_element(keyed.rbegin(), keyed.rend(),
                             [](const Keyed& a, const Keyed& b) { return a.near < b.near; });
        std::rotate(nearest.base() - 1, nearest.base(), keyed.end());
        for (std::size_t i = 0; i < loops.size(); ++i) loops[i] = keyed[i].loop;
    }

    bool walks_like_one(const Loop& outer, const Loop& inner,
                        std::optional<std::size_t> phase) const {
        for (const Access& a : accesses_) {
            if (phase && a.phase != *phase) continue;
            bool x = contains(a.offset, outer.var), y = contains(a.offset, inner.var);
            if (!x && !y) continue;
            if (!x || !y) return false;
            auto lo = linear_in(a.offset, outer.var), li = linear_in(a.offset, inner.var);
            if (!lo || !li || !(lo->stride == li->stride * inner.extent)) return false;
        }
        return true;
    }

    // The merged loop runs over the inner variable, which then takes the outer one's values too.
    void merge(std::vector<Loop>& loops, std::optional<std::size_t> phase) {
        for (std::size_t i = loops.size(); i-- > 1;)
            if (walks_like_one(loops[i - 1], loops[i], phase)) join(loops, i - 1, i, phase);
    }

    // The inner one's place is the joined loop's.
    void join(std::vector<Loop>& loops, std::size_t o, std::size_t i,
              std::optional<std::size_t> phase) {
        const Loop outer = loops[o], inner = loops[i];
        const Expr extent = outer.extent * inner.extent;
        const Expr joined = loop_variable(pool_, "m", merged_++, extent);
        replace(phase, {{outer.var, Expr(0)}, {inner.var, joined}});
        loops[i] = {joined, extent, LoopKind::Serial};
        loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(o));
        collect();
    }

    // Points have no order: a loop also joins the innermost one across others, which a copy between
    // layouts has put between them (a kernel's rows and columns, with its channels amid).
    void join_innermost() {
        auto& loops = nest_.loops;
        for (std::size_t o = loops.size(); o-- > 0;)
            if (o + 1 < loops.size() && walks_like_one(loops[o], loops.back(), std::nullopt))
                join(loops, o, loops.size() - 1, std::nullopt);
    }

    // On a GPU: loops over dense memory become one where vectors do not fit into the inner one (an
    // odd number of columns), though some operands (a row's number, a bias) do not walk them like
    // one: these are found by division.
    void join_uneven() {
        auto& loops = nest_.loops;
        if (nest_.phases.size() != 1 || !nest_.phases[0].loops.empty()) return;
        const Phase& phase = nest_.phases[0];
        for (const Inst& i : phase.insts)
            if (i.kind == InstKind::Index || i.kind == InstKind::Bind || i.mask != kNone) return;
        double points = 1;
        for (const Loop& l : loops)
            points *= l.extent.is_constant() ? static_cast<double>(l.extent.constant()) : 0;
        if (points < kLarge ||
            std::ranges::any_of(
                phase.stores,
                [](const Store& s) { return s.mask != kNone || s.mode != StoreMode::Write; }))
            return;
        while (loops.size() > 1 && loops.back().extent.constant() % kEven != 0) {
            const Loop outer = loops[loops.size() - 2], inner = loops.back();
            const auto like_one = [&](Expr offset) {
                const auto lo = linear_in(offset, outer.var), li = linear_in(offset, inner.var);
                return lo && li && lo->stride == li->stride * inner.extent && li->stride.is(1);
            };
            // What has elements of its own for both lies in rows one behind the other.
            const auto fits = [&](Expr offset) {
                return like_one(offset) ||
                       !(contains(offset, outer.var) && contains(offset, inner.var));
            };
            for (const Inst& i : phase.insts)
                if (i.kind == InstKind::Load && !fits(i.offset)) return;
            for (const Store& s : phase.stores)
                if (!like_one(s.offset)) return;
            const Expr extent = outer.extent * inner.extent;
            const Expr joined = loop_variable(pool_, "m", merged_++, extent);
            const auto apply = [&](Expr& e) {
                if (e.is_constant()) return;
                const bool whole = like_one(e);
                e = substitute(e, [&](Expr s) -> std::optional<Expr> {
                    if (s == outer.var) return whole ? Expr(0) : floor_div(joined, inner.extent);
                    if (s == inner.var) return whole ? joined : mod(joined, inner.extent);
                    return std::nullopt;
                });
            };
            for (Inst& i : nest_.phases[0].insts) apply(i.offset);
            for (Store& s : nest_.phases[0].stores) apply(s.offset);
            loops.pop_back();
            loops.back() = {joined, extent, LoopKind::Serial};
        }
        collect();
    }

    using Replacement = std::vector<std::pair<Expr, Expr>>;
    void replace(std::optional<std::size_t> phase, const Replacement& with) {
        auto apply = [&](Expr& e) {
            if (e.is_constant()) return;
            e = substitute(e, [&](Expr s) -> std::optional<Expr> {
                for (const auto& [from, to] : with)
                    if (from == s) return to;
                return std::nullopt;
            });
        };
        for (std::size_t p = 0; p < nest_.phases.size(); ++p) {
            if (phase && p != *phase) continue;
            for (Inst& i : nest_.phases[p].insts) apply(i.offset);
            for (Store& s : nest_.phases[p].stores) apply(s.offset);
        }
    }

    // --- transposition ---

    // An extent's divisor that suits a tile; 0 for none.
    static std::int64_t tile_of(Expr extent, std::int64_t most) {
        if (!extent.is_constant() || extent.constant() < 2 * kShort) return 0;
        for (std::int64_t t = most; t >= kShort; --t)
            if (extent.constant() % t == 0) return t;
        return 0;
    }

    // A short loop as a whole: the few taps of a filter.
    std::int64_t rows_of_tile(Expr extent) const {
        const bool is_short = extent.is_constant() && extent.constant() < 2 * kShort;
        return !gpu_ && is_short ? extent.constant() : tile_of(extent, kTile);
    }

    // Where the innermost loop strides through memory that another loop walks along, both are cut
    // into tiles, so that each cache line is used whole while it is near.
    void tile() {
        auto& loops = nest_.loops;
        if (loops.size() < 2) return;
        for (const Phase& p : nest_.phases)
            if (!p.loops.empty()) return;
        // Blocks of a GPU have tiles of their own.
        if (gpu_ && find_transpose(nest_, draft_.kernel.buffers)) return;
        const Loop v = loops.back();
        for (const Access& a : accesses_) {
            auto across = linear_in(a.offset, v.var);
            if (a.bytes == 0 || !across || 2 * magnitude(across->stride) * a.bytes < kLine)
                continue;
            for (std::size_t i = 0; i + 1 < loops.size(); ++i) {
                auto along = linear_in(a.offset, loops[i].var);
                if (!along || magnitude(along->stride) != 1) continue;
                // Lines a page apart fall into the same few places of the cache.
                bool crowded = std::fmod(magnitude(across->stride) * a.bytes, kPage) == 0;
                const std::int64_t tile_u = rows_of_tile(loops[i].extent),
                                   tile_v = tile_of(v.extent, crowded ? kShort : kTile);
                if (tile_v != 0)
                    split(i, tile_u, tile_v);
                else if (!gpu_ && a.load && is_small(v.extent))
                    exchange(i, tile_u);
                return;
            }
        }
    }

    static bool is_small(Expr extent) { return extent.is_constant() && extent.constant() <= kFew; }

    // loops[i] = u and the last one v, which is short or cannot be divided, become ..., u0, v, u1:
    // vectors go along u, where what is read lies side by side, and v's few lines stay near.
    void exchange(std::size_t i, std::int64_t tile_u) {
        if (tile_u == 0) return;
        const Loop v = nest_.loops.back();
        split(i, tile_u, v.extent.constant());
        std::swap(nest_.loops.back(), nest_.loops[nest_.loops.size() - 2]);
    }

    // loops[i] = u and the last one v become ..., u0, v0, u1, v1.
    void split(std::size_t i, std::int64_t tile_u, std::int64_t tile_v) {
        if (tile_u == 0 || tile_v == 0) return;
        const Loop u = nest_.loops[i], v = nest_.loops.back();
        nest_.loops.pop_back();
        nest_.loops.erase(nest_.loops.begin() + static_cast<std::ptrdiff_t>(i));
        Replacement with;
        std::vector<Loop> inner;
        auto cut = [&](const Loop& l, std::int64_t tile) {
            Expr count = floor_div(l.extent, tile);
            Expr far = count.is(1) ? Expr(0) : loop_variable(pool_, "t", merged_++, count);
            Expr near = loop_variable(pool_, "t", merged_++, tile);
            with.emplace_back(l.var, far * Expr(tile) + near);
            if (!count.is(1)) nest_.loops.push_back({far, count, LoopKind::Serial});
            inner.push_back({near, tile, LoopKind::Serial});
        };
        cut(u, tile_u);
        cut(v, tile_v);
        nest_.loops.insert(nest_.loops.end(), inner.begin(), inner.end());
        replace(std::nullopt, with);
        collect();
    }

    // Final names say only the position and the extent, so that equal kernels have equal text.
    void rename() {
        auto name = [&](std::vector<Loop>& loops, const char* prefix,
                        std::optional<std::size_t> phase) {
            Replacement with;
            for (std::size_t i = 0; i < loops.size(); ++i) {
                Expr fresh = loop_variable(pool_, prefix, i, loops[i].extent);
                with.emplace_back(loops[i].var, fresh);
                loops[i].var = fresh;
            }
            if (!with.empty()) replace(phase, with);
        };
        name(nest_.loops, "i", std::nullopt);
        for (std::size_t p = 0; p < nest_.phases.size(); ++p) name(nest_.phases[p].loops, "j", p);
    }

    // The share of accesses that vectors along `var` load or store whole (or as one number).
    double smoothness(Expr var, std::optional<std::size_t> phase) const {
        double good = 0, all = 0;
        for (const Access& a : accesses_) {
            if ((phase && a.phase != *phase) || a.bytes == 0) continue;
            all += a.weight;
            auto linear = linear_in(a.offset, var);
            if (linear && (linear->stride.is(1) || linear->stride.is(0))) good += a.weight;
        }
        return all == 0 ? 1 : good / all;
    }

    static bool is_short(Expr extent) { return extent.is_constant() && extent.constant() < kShort; }

    void choose_vector() {
        double inside = 0;
        int with_loops = 0;
        bool inner_short = true;
        for (std::size_t p = 0; p < nest_.phases.size(); ++p) {
            const auto& loops = nest_.phases[p].loops;
            if (loops.empty()) continue;
            inside += smoothness(loops.back().var, p);
            inner_short = inner_short && is_short(loops.back().extent);
            ++with_loops;
        }
        double outside = -1;
        if (!nest_.loops.empty()) {
            outside = smoothness(nest_.loops.back().var, std::nullopt);
            if (is_short(nest_.loops.back().extent)) outside -= 0.5;
        }
        if (with_loops > 0) {
            inside /= with_loops;
            if (inner_short) inside -= 0.5;
        } else {
            inside = -2;
        }
        if (with_loops == 0 && nest_.loops.empty()) return;
        if (inside >= outside) {
            for (Phase& p : nest_.phases)
                if (!p.loops.empty()) p.loops.back().kind = LoopKind::Vector;
            return;
        }
        nest_.loops.back().kind = LoopKind::Vector;
        for (Phase& p : nest_.phases) unroll(p);
    }

    static void unroll(Phase& p) {
        Expr all = 1;
        for (const Loop& l : p.loops) all *= l.extent;
        if (!all.is_constant() || p.loops.empty()) return;
        if (all.constant() <= kMostUnrolled)
            for (Loop& l : p.loops) l.kind = LoopKind::Unroll;
        else if (p.loops.back().extent.constant() < kShort)
            p.loops.back().kind = LoopKind::Unroll;
    }

    Draft& draft_;
    Nest& nest_;
    ExprPool& pool_;
    std::vector<Access> accesses_;
    std::size_t merged_ = 0;
    bool gpu_;
};

}  // namespace

void arrange_loops(Draft& draft, ExprPool& pool, bool gpu) {
    for (Nest& n : draft.kernel.nests) Arranger(draft, n, pool, gpu).run();
}

bool vector_inside(const Nest& nest) {
    for (const Phase& p : nest.phases)
        for (const Loop& l : p.loops)
            if (l.kind == LoopKind::Vector) return true;
    return false;
}

}  // namespace ingot::sched
