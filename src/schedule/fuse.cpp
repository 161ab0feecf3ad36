// See fuse.h.
#include "schedule/fuse.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "schedule/estimate.h"
#include "schedule/index.h"
#include "schedule/solve.h"

namespace ingot::sched {

namespace {

constexpr std::size_t kMostAnchors = 24;  // in a group
constexpr std::size_t kMostReads = 40;
constexpr std::size_t kSiblings = 4;      // recent readers remembered a value
constexpr double kMuchLarger = 4;         // a domain that a smaller one's group should not take in
constexpr std::int64_t kSmall = 1 << 14;  // elements that one core does faster than two
// On GPUs: anchors of no more points join one that has the same points, whatever they read: a
// kernel takes longer to start than to run. Only the latest groups are asked.
constexpr double kTiny = 1 << 17;
constexpr std::size_t kLatest = 12;

bool has_symbol(Expr e, const std::vector<LoopVar>& vars, bool outer) {
    return std::any_of(vars.begin(), vars.end(),
                       [&](const LoopVar& v) { return v.outer == outer && contains(e, v.symbol); });
}

// What joining would change.
struct Match {
    std::vector<LoopVar> vars;
    Sizes map;
    int step = 0;
    Run run;
    bool gathers = false;
};

class Fuser {
  public:
    Fuser(const Graph& g, const Placement& p, const Layouts& layouts,
          const ScheduleOptions& options)
        : g_(g), p_(p), layouts_(layouts), options_(options) {
        f_.makers.resize(g.values().size());
        extern_of_.assign(g.values().size(), kNone);
        readers_.resize(g.values().size());
        find_late();
    }

    Fusion run() {
        for (NodeId id = 0; id < g_.nodes().size(); ++id) {
            const Node& n = g_.node(id);
            if (p_.contracts[id]) {
                add_contraction(id);
                continue;
            }
            if (!has_loop_form(g_, n)) {
                add_extern(id);
                continue;
            }
            ValueId v = n.results[0];
            if (p_.home[v] != Home::Anchored) continue;
            if (n.prim == Prim::Concat && output_free_concat(n)) {
                add_parts(id);
                continue;
            }
            Anchor a;
            a.value = a.target = v;
            a.node = id;
            add_anchor(std::move(a));
        }
        find_stored();
        return std::move(f_);
    }

  private:
    // A concatenation written by its parts; one whose parts repeat stays a select.
    bool output_free_concat(const Node& n) const { return n.operands.size() <= 64; }

    void add_parts(NodeId id) {
        const Node& n = g_.node(id);
        auto dim = static_cast<std::size_t>(n.attrs.get<std::int64_t>("dim"));
        Expr start = 0;
        for (ValueId part : n.operands) {
            Anchor a;
            a.value = part;
            a.target = n.results[0];
            a.node = id;
            a.dim = dim;
            a.start = start;
            start += g_.type(part).sizes[dim];
            add_anchor(std::move(a));
        }
    }

    // What is computed again, to be kept in memory for a shorter time, and all that needs it: next
    // to the first computation it would be kept as long as that one's result.
    void find_late() {
        late_.assign(g_.values().size(), false);
        for (const Node& n : g_.nodes()) {
            const bool late =
                n.attrs.has("again") || std::any_of(n.operands.begin(), n.operands.end(),
                                                    [&](ValueId v) { return late_[v]; });
            for (ValueId v : n.results) late_[v] = late;
        }
    }

    // --- what an anchor reads ---

    struct Visit {
        ValueId value;
        Sizes index;
    };

    void collect_reads(Anchor& a) {
        std::vector<Visit> work;
        if (a.reduces)
            work.push_back({g_.producer(a.value)->operands[0], a.vars});
        else if (p_.home[a.value] == Home::Inlined || a.target == a.value)
            expand(a.value, a.vars, work);
        else
            work.push_back({a.value, a.vars});
        std::unordered_map<ValueId, std::vector<Sizes>> seen;
        while (!work.empty()) {
            Visit at = std::move(work.back());
            work.pop_back();
            auto& indices = seen[at.value];
            if (std::find(indices.begin(), indices.end(), at.index) != indices.end()) continue;
            indices.push_back(at.index);
            if (p_.home[at.value] != Home::Inlined)
                a.reads.push_back({at.value, at.index});
            else
                expand(at.value, at.index, work);
        }
        std::reverse(a.reads.begin(), a.reads.end());
    }

    // The operands of `v`'s node and where they are needed for `v` at `index`. An index that only
    // the data know is an empty list of no use to matching.
    void expand(ValueId v, const Sizes& index, std::vector<Visit>& work) {
        const Node& n = *g_.producer(v);
        if (is_movement(n.prim)) {
            std::vector<Source> from = *sources(g_, n, index);
            for (Source& s : from) work.push_back({n.operands[s.operand], std::move(s.index)});
            return;
        }
        switch (n.prim) {
            case Prim::Take:
            case Prim::Gather:
                expand_indexing(n, index, work);
                return;
            case Prim::ViewAsReal:
                work.push_back({n.operands[0], Sizes(index.begin(), index.end() - 1)});
                return;
            case Prim::ViewAsComplex:
                for (int part = 0; part < 2; ++part) {
                    Sizes at = index;
                    at.push_back(part);
                    work.push_back({n.operands[0], std::move(at)});
                }
                return;
            default:
                for (ValueId o : n.operands) work.push_back({o, index});
        }
    }

    void expand_indexing(const Node& n, const Sizes& index, std::vector<Visit>& work) {
        Sizes unknown(g_.type(n.operands[0]).sizes.size(), data_symbol());
        work.push_back({n.operands[0], std::move(unknown)});
        if (n.prim == Prim::Gather) {
            work.push_back({n.operands[1], index});
            return;
        }
        auto first = static_cast<std::size_t>(n.attrs.get<Ints>("dims")[0]);
        auto rank = static_cast<std::size_t>(g_.type(n.operands[1]).rank());
        for (std::size_t k = 1; k < n.operands.size(); ++k)
            work.push_back(
                {n.operands[k], Sizes(index.begin() + static_cast<std::ptrdiff_t>(first),
                                      index.begin() + static_cast<std::ptrdiff_t>(first + rank))});
    }

    // Stands for "any index"; matches nothing.
    Expr data_symbol() { return g_.pool().symbol("data_index"); }

    // --- joining ---

    void add_extern(NodeId id) {
        const Node& n = g_.node(id);
        Group group;
        group.node = id;
        group.is_extern = true;
        group.frozen = !n.results.empty() && p_.frozen[n.results[0]];
        for (ValueId v : n.operands) need_memory_of(v, group);
        bool ordered = kind(n.prim) == PrimKind::Random ||
                       (kind(n.prim) == PrimKind::Effect &&
                        !(n.prim == Prim::ExternCall && n.attrs.get<bool>("pure")));
        auto index = static_cast<std::uint32_t>(f_.groups.size());
        if (ordered) {
            if (last_effect_ != kNone) need(group, last_effect_);
            last_effect_ = index;
        }
        for (ValueId v : n.results) extern_of_[v] = index;
        f_.groups.push_back(std::move(group));
    }

    // The result's dims are the group's variables; operands are read in an order of their own.
    void add_contraction(NodeId id) {
        const Node& n = g_.node(id);
        Anchor a;
        a.value = a.target = n.results[0];
        a.node = id;
        a.contracts = true;
        for (ValueId v : n.operands) {
            ValueId source = memory_source(v);
            a.reads.push_back({source, Sizes(g_.type(source).sizes.size(), data_symbol())});
        }
        add_anchor(std::move(a));
    }

    void need(Group& group, std::uint32_t other) {
        group.needs.push_back(other);
        f_.groups[other].needed = true;
        group.level = std::max(group.level, f_.groups[other].level + 1);
    }

    // Follows views from an extern step's operand to what makes their memory.
    ValueId memory_source(ValueId v) const {
        while (p_.home[v] == Home::Inlined) {
            const Node& n = *g_.producer(v);
            check(is_plain_view(n), "an extern step's operand has no memory");
            v = n.operands[0];
        }
        return v;
    }

    void need_memory_of(ValueId v, Group& group) {
        v = memory_source(v);
        for (std::uint32_t other : makers_of(v)) need(group, other);
        for (std::uint32_t a : f_.makers[v]) f_.anchors[a].stored = true;
    }

    std::vector<std::uint32_t> makers_of(ValueId v) const {
        std::vector<std::uint32_t> groups;
        if (extern_of_[v] != kNone) groups.push_back(extern_of_[v]);
        for (std::uint32_t a : f_.makers[v]) groups.push_back(f_.anchors[a].group);
        return groups;
    }

    void add_anchor(Anchor a) {
        const Node* n = g_.producer(a.value);
        a.reduces = n != nullptr && is_reduction(n->prim) && a.target == a.value;
        a.extents = g_.type(a.reduces ? n->operands[0] : a.value).sizes;
        a.vars = domain_variables(g_.pool(), "x", a.extents);
        if (!a.contracts) collect_reads(a);
        a.stored = p_.needs_memory[a.target] || a.target != a.value;
        auto id = static_cast<std::uint32_t>(f_.anchors.size());
        if (a.contracts || !join_any(a)) start_group(a);
        Group& group = f_.groups[a.group];
        group.anchors.push_back(id);
        for (const Read& r : a.reads) {
            for (std::uint32_t other : makers_of(r.value)) {
                if (other == a.group) continue;
                group.needs.push_back(other);
                f_.groups[other].needed = true;
            }
            auto& readers = readers_[r.value];
            if (std::find(readers.begin(), readers.end(), id) == readers.end())
                readers.push_back(id);
            if (readers.size() > kSiblings) readers.erase(readers.begin());
        }
        f_.makers[a.target].push_back(id);
        f_.anchors.push_back(std::move(a));
    }

    int level_of(const Anchor& a) const {
        int level = 0;
        for (const Read& r : a.reads)
            for (std::uint32_t other : makers_of(r.value))
                if (other != a.group) level = std::max(level, f_.groups[other].level + 1);
        return level;
    }

    // A number that nobody has asked for yet (how many losses there are) may be added up together
    // with one that comes later.
    bool may_wait(const Anchor& a, std::uint32_t candidate) const {
        return !f_.groups[candidate].needed && a.reduces && g_.type(a.value).numel().is(1) &&
               is_tiny(a) && std::ranges::find(tiny_, candidate) != tiny_.end();
    }

    // Symbolic sizes count as middling.
    void start_group(Anchor& a) {
        Group group;
        group.node = a.node;
        group.frozen = p_.frozen[a.target];
        group.reduces = a.reduces;
        group.contracts = a.contracts;
        group.late = late_[a.value];
        group.elements = likely_count(a.extents);
        group.level = level_of(a);
        a.map.assign(a.vars.size(), Expr(0));
        Ints dims;
        if (a.reduces) dims = g_.producer(a.value)->attrs.get<Ints>("dims");
        for (std::size_t i = 0; i < a.vars.size(); ++i) {
            if (a.vars[i].is_constant()) continue;
            bool outer =
                std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(i)) == dims.end();
            a.map[i] = new_var(group.vars, a.extents[i], outer);
        }
        set_position(a);
        group.contiguous = contiguous_variable(a, a.map);
        a.group = static_cast<std::uint32_t>(f_.groups.size());
        f_.groups.push_back(std::move(group));
        if (is_tiny(a) && layouts_.written_input(a.target) == kNone) {
            if (tiny_.size() == kLatest) tiny_.erase(tiny_.begin());
            tiny_.push_back(a.group);
        }
    }

    // The group's variable along which `a` (standing at `map`) stores to neighbouring elements, or,
    // a reduction, reads them; 0 where there is none.
    Expr contiguous_variable(const Anchor& a, const Sizes& map) const {
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

    // Whether the anchor would walk memory across the group's way without need: it reads nothing of
    // the group, or only what will be in memory.
    bool crosses(const Anchor& a, std::uint32_t candidate, const Match& match) const {
        // Once for each row that the group reduces, it walks nothing.
        if (f_.groups[candidate].reduces && std::ranges::none_of(match.map, [&](Expr e) {
                return has_symbol(e, match.vars, false);
            }))
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

    Expr new_var(std::vector<LoopVar>& vars, Expr extent, bool outer) {
        Expr symbol = loop_variable(g_.pool(), "g", vars.size(), extent);
        vars.push_back({symbol, extent, outer});
        return symbol;
    }

    void set_position(Anchor& a) {
        if (!a.reduces) return;
        const Ints& dims = g_.producer(a.value)->attrs.get<Ints>("dims");
        a.position.clear();
        for (std::size_t i = 0; i < a.map.size(); ++i)
            if (std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(i)) == dims.end())
                a.position.push_back(a.map[i]);
    }

    bool join_any(Anchor& a) {
        // Written into an input: after everything else, alone.
        if (layouts_.written_input(a.target) != kNone) return false;
        std::vector<std::uint32_t> candidates;
        auto propose = [&](std::uint32_t group) {
            if (std::find(candidates.begin(), candidates.end(), group) == candidates.end())
                candidates.push_back(group);
        };
        for (const Read& r : a.reads)
            for (std::uint32_t maker : makers_of(r.value)) propose(maker);
        std::stable_sort(candidates.begin(), candidates.end(),
                         [&](std::uint32_t x, std::uint32_t y) {
                             return f_.groups[x].level > f_.groups[y].level;
                         });
        for (const Read& r : a.reads)
            for (std::uint32_t reader : readers_[r.value]) propose(f_.anchors[reader].group);
        if (is_tiny(a))
            for (std::size_t i = tiny_.size(); i-- > 0;) propose(tiny_[i]);
        for (std::uint32_t candidate : candidates)
            if (may_join(a, candidate) && join(a, candidate)) return true;
        return false;
    }

    bool is_tiny(const Anchor& a) const {
        return options_.gpu && !a.contracts && a.target == a.value && !p_.frozen[a.target] &&
               likely_count(a.extents) <= kTiny;
    }
    // The anchor of the group that has the same points and reduces the same dims.
    const Anchor* twin_in(const Anchor& a, std::uint32_t candidate) const {
        if (!is_tiny(a) || std::ranges::find(tiny_, candidate) == tiny_.end()) return nullptr;
        const auto dims = [&](const Anchor& x) {
            return x.reduces ? g_.producer(x.value)->attrs.get<Ints>("dims") : Ints{};
        };
        for (std::uint32_t other : f_.groups[candidate].anchors) {
            const Anchor& u = f_.anchors[other];
            if (u.reduces == a.reduces && u.extents == a.extents && dims(u) == dims(a)) return &u;
        }
        return nullptr;
    }

    bool may_join(const Anchor& a, std::uint32_t candidate) const {
        const Group& group = f_.groups[candidate];
        if (group.is_extern || group.frozen != p_.frozen[a.target]) return false;
        if (group.late != late_[a.value]) return false;
        if (group.contracts && a.reduces) return false;
        if (likely_count(a.extents) > kMuchLarger * group.elements) return false;
        if (group.anchors.size() >= kMostAnchors) return false;
        std::size_t reads = a.reads.size();
        for (std::uint32_t other : group.anchors) reads += f_.anchors[other].reads.size();
        if (reads > kMostReads) return false;
        for (const Read& r : a.reads)
            for (std::uint32_t other : makers_of(r.value)) {
                if (other == candidate) continue;
                if (f_.groups[other].level >= group.level && !may_wait(a, candidate)) return false;
            }
        for (std::uint32_t other : group.anchors)
            if (layouts_.written_input(f_.anchors[other].target) != kNone) return false;
        return true;
    }

    bool join(Anchor& a, std::uint32_t candidate) {
        Group& group = f_.groups[candidate];
        std::optional<Match> match = match_group(a, candidate);
        if (!match) return false;
        group.vars = std::move(match->vars);
        group.run = match->run;
        a.gathers = match->gathers;
        group.reduces = group.reduces || a.reduces;
        group.elements = std::max(group.elements, likely_count(a.extents));
        a.map = std::move(match->map);
        a.step = match->step;
        a.group = candidate;
        group.level = std::max(group.level, level_of(a));
        set_position(a);
        return true;
    }

    // The anchors of `group` that make `value`; nothing useful for a part of a concatenation.
    const Anchor* maker_in(ValueId value, std::uint32_t group) const {
        for (std::uint32_t m : f_.makers[value])
            if (f_.anchors[m].group == group && f_.anchors[m].value == value) return &f_.anchors[m];
        return nullptr;
    }

    std::optional<Match> match_group(const Anchor& a, std::uint32_t candidate) {
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
            const Anchor* twin = twin_in(a, candidate);
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
            used.push_back(new_var(match.vars, extent, false));
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

    // a's dims from where it reads `u`. Dims of u that only inner variables make up may be read at
    // other positions: they are complete when u's phase is.
    bool equate_producer(DimSolver& solver, const Group& group, const Anchor& u, const Read& r) {
        const Sizes& at = u.reduces ? u.position : u.map;
        const Sizes& sizes = g_.type(u.value).sizes;
        for (std::size_t d = 0; d < at.size(); ++d) {
            if (solver.equate(r.index[d], at[d], sizes[d])) continue;
            if (has_symbol(at[d], group.vars, true)) return false;
        }
        return true;
    }

    // a's dims from memory that it and an anchor of the group read alike.
    bool equate_sibling(DimSolver& solver, const Anchor& a, std::uint32_t candidate) {
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

    // The variable of a run, where sums over the run have taken it apart.
    static Expr row_of_run(Expr at, const Run& run) {
        if (run.symbol.is(0)) return at;
        const Expr parts =
            floor_div(run.symbol, run.length) * run.length + mod(run.symbol, run.length);
        return at == parts ? run.symbol : at;
    }

    // The same domain: variables are named by position and extent.
    static void equate_all(DimSolver& solver, const Anchor& a, const Anchor& u) {
        for (std::size_t d = 0; d < a.vars.size(); ++d)
            check(solver.equate(a.vars[d], u.map[d], a.extents[d]), "equal domains differ");
    }

    /// Whether the loops reach all of a's points: not where a reads one value at two of its own
    /// indices (a[:, None] - a[None, :]), or where something else reads it at one index twice (a
    /// diagonal), which would make both of them the same loop.
    static bool reaches_every_point(const Anchor& a, const Match& match) {
        Sizes seen;
        for (const Expr& e : match.map) collect_symbols(e, seen);
        Expr points(1), reached(1);
        for (Expr e : a.extents) points = points * e;
        for (const LoopVar& v : match.vars)
            if (std::find(seen.begin(), seen.end(), v.symbol) != seen.end())
                reached = reached * v.extent;
        return known_le(points, reached) == true;
    }

    // Variables that `a` reduces over become inner ones, and all others that it uses must be as the
    // group has them.
    bool choose_outer(const Anchor& a, const Group& group, Match& match) {
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

    // A sum over pieces of one outer variable that keeps the group's inner one: columns of the rows
    // at hand, added up as the rows pass. Sets the match's run, and makes rows of elements.
    bool gathers(const Anchor& a, const Group& group, Match& match,
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
        if (!match.run.symbol.is(0) &&
            !(match.run.symbol == var->symbol && match.run.length == length))
            return false;
        bool columns = false;
        for (std::size_t i = 0; i < match.map.size(); ++i) {
            if (static_cast<std::int64_t>(i) == dims[0]) continue;
            const Expr e = match.map[i];
            columns = columns ||
                      (e.is_symbol() && (column != nullptr ? e == column->symbol
                                                           : has_symbol(e, match.vars, false)));
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

    // Of a group that computes elements: the variable that becomes its rows' own, neighbours in
    // memory; null where they are no rows of one length. Several values are rows alike where each
    // is computed of the others' same element.
    const LoopVar* column_of(const Group& group, const Match& match) const {
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

    static bool free_dims_trail(const Match& match) {
        bool inner = false;
        for (const Expr& e : match.map) {
            if (e.is_constant()) continue;
            bool is_inner = has_symbol(e, match.vars, false);
            if (inner && !is_inner) return false;
            inner = inner || is_inner;
        }
        return true;
    }

    // Every read of the group's own values is at the same outer point; sets the phase.
    bool check_reads(const Anchor& a, std::uint32_t candidate, const DimSolver& solver,
                     Match& match) {
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

    // What other groups read must be in memory.
    void find_stored() {
        for (const Anchor& a : f_.anchors)
            for (const Read& r : a.reads)
                for (std::uint32_t m : f_.makers[r.value])
                    if (f_.anchors[m].group != a.group) f_.anchors[m].stored = true;
    }

    const Graph& g_;
    const Placement& p_;
    const Layouts& layouts_;
    const ScheduleOptions& options_;
    Fusion f_;
    std::vector<bool> late_;                           // by value
    std::vector<std::uint32_t> extern_of_;             // by value: the extern group
    std::vector<std::vector<std::uint32_t>> readers_;  // by value: recent anchors that read it
    std::vector<std::uint32_t> tiny_;                  // the latest groups of few points
    std::uint32_t last_effect_ = kNone;
};

}  // namespace

Fusion fuse(const Graph& graph, const Placement& placement, const Layouts& layouts,
            const ScheduleOptions& options) {
    return Fuser(graph, placement, layouts, options).run();
}

}  // namespace ingot::sched
