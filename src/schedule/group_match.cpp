// See group_match.h.
#include "schedule/group_match.h"

#include <algorithm>

#include "schedule/estimate.h"
#include "schedule/index.h"

namespace ingot::sched {

namespace {

constexpr std::int64_t kSmall = 1 << 14;  // elements that one core does faster than two

bool has_symbol(Expr e, const std::vector<LoopVar>& vars, bool outer) {
    return std::any_of(vars.begin(), vars.end(),
                       [&](const LoopVar& v) { return v.outer == outer && contains(e, v.symbol); });
}

// The variable of a run, where sums over the run have taken it apart.
Expr row_of_run(Expr at, const Run& run) {
    if (run.symbol.is(0)) return at;
    const Expr parts = floor_div(run.symbol, run.length) * run.length + mod(run.symbol, run.length);
    return at == parts ? run.symbol : at;
}

// The same domain: variables are named by position and extent.
void equate_all(DimSolver& solver, const Anchor& a, const Anchor& u) {
    for (std::size_t d = 0; d < a.vars.size(); ++d)
        check(solver.equate(a.vars[d], u.map[d], a.extents[d]), "equal domains differ");
}

/// Whether the loops reach all of a's points: not where a reads one value at two of its own
/// indices (a[:, None] - a[None, :]), or where something else reads it at one index twice (a
/// diagonal), which would make both of them the same loop.
bool reaches_every_point(const Anchor& a, const Match& match) {
    Sizes seen;
    for (const Expr& e : match.map) collect_symbols(e, seen);
    Expr points(1), reached(1);
    for (Expr e : a.extents) points = points * e;
    for (const LoopVar& v : match.vars)
        if (std::find(seen.begin(), seen.end(), v.symbol) != seen.end())
            reached = reached * v.extent;
    return known_le(points, reached) == true;
}

bool free_dims_trail(const Match& match) {
    bool inner = false;
    for (const Expr& e : match.map) {
        if (e.is_constant()) continue;
        bool is_inner = has_symbol(e, match.vars, false);
        if (inner && !is_inner) return false;
        inner = inner || is_inner;
    }
    return true;
}

}  // namespace

Expr GroupMatcher::new_variable(std::vector<LoopVar>& vars, Expr extent, bool outer) const {
    Expr symbol = loop_variable(g_.pool(), "g", vars.size(), extent);
    vars.push_back({symbol, extent, outer});
    return symbol;
}

Expr GroupMatcher::contiguous_variable(const Anchor& a, const Sizes& map) const {
    auto symbol = [](Expr e) { return e.is_symbol() ? e : Expr(0); };
    if (!a.reduces) {
        const Sizes& strides = layouts_.strides(a.target);
        for (std::size_t d = 0; d < map.size(); ++d)
            if (strides[d].is(1) && !map[d].is_constant()) return symbol(map[d]);
        return 0;
    }
    for (const Read& r : a.reads) {
        Expr offset = offset_of(r.index, layouts_.strides(r.value));
        for (std::size_t d = 0; d < map.size(); ++d) {
            if (a.vars[d].is_constant()) continue;
            auto linear = linear_in(offset, a.vars[d]);
            if (linear && linear->stride.is(1)) return symbol(map[d]);
        }
    }
    return 0;
}

std::optional<Match> GroupMatcher::match(const Anchor& a, std::uint32_t candidate,
                                         const Anchor* twin) const {
    const Group& group = f_.groups[candidate];
    DimSolver solver(a.vars, a.extents);
    bool vertical = false;
    for (const Read& r : a.reads) {
        for (std::uint32_t m : f_.makers[r.value])
            if (f_.anchors[m].group == candidate && f_.anchors[m].value != r.value)
                return std::nullopt;  // a concatenation is whole only after its group
        const Anchor* u = maker_in(r.value, candidate);
        if (u == nullptr) continue;
        if (u->gathers) return std::nullopt;  // complete only after its run
        vertical = true;
        if (!equate_producer(solver, group, *u, r)) return std::nullopt;
    }
    if (!vertical && group.contracts) return std::nullopt;
    if (!vertical && !equate_sibling(solver, a, candidate)) {
        if (twin == nullptr) return std::nullopt;
        equate_all(solver, a, *twin);
    }

    Match match{group.vars, {}, 0, group.run, false};
    std::vector<Expr> used;
    auto map = solver.finish([&](Expr extent) {
        for (const LoopVar& v : match.vars)
            if (!v.outer && v.extent == extent && !solver.uses(v.symbol) &&
                std::find(used.begin(), used.end(), v.symbol) == used.end()) {
                used.push_back(v.symbol);
                return v.symbol;
            }
        used.push_back(new_variable(match.vars, extent, false));
        return used.back();
    });
    if (!map) return std::nullopt;
    match.map = std::move(*map);
    if (!reaches_every_point(a, match)) return std::nullopt;
    if (!choose_outer(a, group, match)) return std::nullopt;
    if (!check_reads(a, candidate, solver, match)) return std::nullopt;
    if (crosses(a, candidate, match)) return std::nullopt;
    // An epilogue is one phase without loops.
    if (group.contracts && (match.step > 0 || match.vars.size() > group.vars.size()))
        return std::nullopt;
    return match;
}

bool GroupMatcher::crosses(const Anchor& a, std::uint32_t candidate, const Match& match) const {
    // Once for each row that the group reduces, it walks nothing.
    if (f_.groups[candidate].reduces &&
        std::ranges::none_of(match.map, [&](Expr e) { return has_symbol(e, match.vars, false); }))
        return false;
    if (match.gathers) return false;
    Expr theirs = f_.groups[candidate].contiguous, mine = contiguous_variable(a, match.map);
    if (theirs.is_constant() || mine.is_constant() || theirs == mine) return false;
    for (const Read& r : a.reads) {
        const Anchor* u = maker_in(r.value, candidate);
        if (u != nullptr && (u->reduces || !p_.needs_memory[u->value])) return false;
    }
    return true;
}

const Anchor* GroupMatcher::maker_in(ValueId value, std::uint32_t group) const {
    for (std::uint32_t m : f_.makers[value])
        if (f_.anchors[m].group == group && f_.anchors[m].value == value) return &f_.anchors[m];
    return nullptr;
}

bool GroupMatcher::equate_producer(DimSolver& solver, const Group& group, const Anchor& u,
                                   const Read& r) const {
    const Sizes& at = u.reduces ? u.position : u.map;
    const Sizes& sizes = g_.type(u.value).sizes;
    for (std::size_t d = 0; d < at.size(); ++d) {
        if (solver.equate(r.index[d], at[d], sizes[d])) continue;
        if (has_symbol(at[d], group.vars, true)) return false;
    }
    return true;
}

bool GroupMatcher::equate_sibling(DimSolver& solver, const Anchor& a,
                                  std::uint32_t candidate) const {
    const Group& group = f_.groups[candidate];
    for (const Read& r : a.reads)
        for (std::uint32_t reader : readers_[r.value]) {
            const Anchor& u = f_.anchors[reader];
            if (u.group != candidate) continue;
            for (const Read& theirs : u.reads) {
                if (theirs.value != r.value) continue;
                if (a.vars == u.vars && r.index == theirs.index) {
                    equate_all(solver, a, u);
                    return true;
                }
                DimSolver attempt = solver;
                DimSolver into(u.vars, u.extents);
                bool ok = true;
                std::size_t outer = 0;
                for (std::size_t d = 0; d < r.index.size() && ok; ++d) {
                    Expr at = row_of_run(into.apply(theirs.index[d], u.map), group.run);
                    if (at.is_constant() && r.index[d] == at) continue;
                    auto var = std::find_if(group.vars.begin(), group.vars.end(),
                                            [&](const LoopVar& v) { return v.symbol == at; });
                    ok = var != group.vars.end() && attempt.equate(r.index[d], at, var->extent);
                    outer += ok && var->outer;
                }
                auto all = static_cast<std::size_t>(
                    std::count_if(group.vars.begin(), group.vars.end(),
                                  [](const LoopVar& v) { return v.outer; }));
                if (ok && outer == all) {
                    solver = std::move(attempt);
                    return true;
                }
            }
        }
    return false;
}

bool GroupMatcher::choose_outer(const Anchor& a, const Group& group, Match& match) const {
    std::vector<Expr> kept, gone;
    Ints dims;
    if (a.reduces) dims = g_.producer(a.value)->attrs.get<Ints>("dims");
    for (std::size_t i = 0; i < match.map.size(); ++i) {
        bool reduced =
            std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(i)) != dims.end();
        collect_symbols(match.map[i], reduced ? gone : kept);
    }
    auto in = [](const std::vector<Expr>& list, Expr s) {
        return std::find(list.begin(), list.end(), s) != list.end();
    };
    if (gathers(a, group, match, gone)) {
        const auto outer_kept = [&](const LoopVar& v) {
            return !v.outer || in(kept, v.symbol) || v.symbol == match.run.symbol;
        };
        return std::ranges::all_of(match.vars, outer_kept);
    }
    Expr outer = 1, all = 1;
    bool shrinks = false;
    for (LoopVar& v : match.vars) {
        if (v.outer && in(gone, v.symbol)) {
            if (group.reduces || in(kept, v.symbol)) return false;
            v.outer = false;
            shrinks = true;
        } else if (v.outer && !in(kept, v.symbol)) {
            return false;
        }
        if (a.reduces && !v.outer && in(kept, v.symbol)) return false;
        if (v.outer) outer *= v.extent;
        all *= v.extent;
    }
    bool grows = !group.reduces && match.vars.size() > group.vars.size();
    if ((shrinks || grows) && known_lt(all, kSmall) != true &&
        known_lt(outer, 4 * options_.cores) == true)
        return false;
    // Free dims in front of the shared ones would make the walk through memory a bad one.
    if (grows && !a.reduces) return free_dims_trail(match);
    return true;
}

bool GroupMatcher::gathers(const Anchor& a, const Group& group, Match& match,
                           const std::vector<Expr>& gone) const {
    const Node* n = a.reduces ? g_.producer(a.value) : nullptr;
    if (!options_.gpu || n == nullptr || n->prim != Prim::Sum) return false;
    const LoopVar* column = group.reduces ? nullptr : column_of(group, match);
    if (!group.reduces && column == nullptr) return false;
    if (g_.type(a.value).dtype != DType::F32 || match.vars.size() != group.vars.size())
        return false;
    const Ints& dims = n->attrs.get<Ints>("dims");
    if (dims.size() != 1 || gone.size() != 1) return false;
    const auto var = std::ranges::find_if(
        match.vars, [&](const LoopVar& v) { return v.symbol == gone[0] && v.outer; });
    if (var == match.vars.end()) return false;
    const Expr length = a.extents[static_cast<std::size_t>(dims[0])];
    if (!length.is_constant() || !var->extent.is_constant()) return false;
    const bool whole = length == var->extent;
    if (!(match.map[static_cast<std::size_t>(dims[0])] ==
          (whole ? var->symbol : mod(var->symbol, length))))
        return false;
    if (!match.run.symbol.is(0) && !(match.run.symbol == var->symbol && match.run.length == length))
        return false;
    bool columns = false;
    for (std::size_t i = 0; i < match.map.size(); ++i) {
        if (static_cast<std::int64_t>(i) == dims[0]) continue;
        const Expr e = match.map[i];
        columns = columns ||
                  (e.is_symbol() &&
                   (column != nullptr ? e == column->symbol : has_symbol(e, match.vars, false)));
        if (!contains(e, var->symbol)) continue;
        if (whole || !(e == floor_div(var->symbol, length))) return false;
    }
    if (!columns) return false;
    match.run = {var->symbol, length};
    match.gathers = true;
    if (column != nullptr)
        match.vars[static_cast<std::size_t>(column - group.vars.data())].outer = false;
    return true;
}

const LoopVar* GroupMatcher::column_of(const Group& group, const Match& match) const {
    if (group.contracts || group.is_extern) return nullptr;
    const Sizes& first = f_.anchors[group.anchors.front()].map;
    for (std::uint32_t id : group.anchors) {
        const Anchor& a = f_.anchors[id];
        if (a.reduces || a.gathers || a.step != 0 || a.map != first) return nullptr;
    }
    if (group.vars.size() < 2 || match.vars.size() != group.vars.size()) return nullptr;
    for (const LoopVar& v : group.vars) {
        if (!v.outer) return nullptr;
        if (v.symbol == group.contiguous) return &v == &group.vars.back() ? &v : nullptr;
    }
    return nullptr;
}

bool GroupMatcher::check_reads(const Anchor& a, std::uint32_t candidate, const DimSolver& solver,
                               Match& match) const {
    auto outer_part = [&](Expr e) {
        return substitute(e, [&](Expr s) -> std::optional<Expr> {
            for (const LoopVar& v : match.vars)
                if (v.symbol == s && !v.outer) return Expr(0);
            return std::nullopt;
        });
    };
    for (const Read& r : a.reads) {
        const Anchor* u = maker_in(r.value, candidate);
        if (u == nullptr) continue;
        const Sizes& at = u->reduces ? u->position : u->map;
        bool same = true;
        for (std::size_t d = 0; d < at.size(); ++d) {
            Expr mine = solver.apply(r.index[d], match.map);
            if (mine == at[d]) continue;
            same = false;
            if (u->reduces || !(outer_part(mine) == outer_part(at[d]))) return false;
        }
        match.step = std::max(match.step, u->step + (u->reduces || !same ? 1 : 0));
    }
    return true;
}

}  // namespace ingot::sched
