// See fuse.h.
#include "schedule/fuse.h"

#include <algorithm>
#include <unordered_map>

#include "schedule/estimate.h"
#include "schedule/group_match.h"
#include "schedule/index.h"

namespace ingot::sched {

namespace {

constexpr std::size_t kMostAnchors = 24;  // in a group
constexpr std::size_t kMostReads = 40;
constexpr std::size_t kSiblings = 4;  // recent readers remembered a value
constexpr double kMuchLarger = 4;     // a domain that a smaller one's group should not take in
// On GPUs: anchors of no more points join one that has the same points, whatever they read: a
// kernel takes longer to start than to run. Only the latest groups are asked.
constexpr double kTiny = 1 << 17;
constexpr std::size_t kLatest = 12;

class Fuser {
  public:
    Fuser(const Graph& g, const Placement& p, const Layouts& layouts,
          const ScheduleOptions& options)
        : g_(g),
          p_(p),
          layouts_(layouts),
          options_(options),
          matcher_(g, p, layouts, options, f_, readers_) {
        f_.makers.resize(g.values().size());
        extern_of_.assign(g.values().size(), kNone);
        readers_.resize(g.values().size());
        find_late();
        find_new_contents();
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

    // What a copy writes into inputs in a program that makes calls: as they may fail, it waits for
    // them (order.cpp), and a product must not wait with it.
    void find_new_contents() {
        new_contents_.assign(g_.values().size(), false);
        const auto& nodes = g_.nodes();
        if (options_.gpu || std::none_of(nodes.begin(), nodes.end(),
                                         [](const Node& n) { return n.prim == Prim::ExternCall; }))
            return;
        for (const Node& n : nodes)
            if (n.results.size() == 1 && n.operands.size() == 1 &&
                layouts_.written_input(n.results[0]) != kNone)
                new_contents_[n.operands[0]] = true;
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
            a.map[i] = matcher_.new_variable(group.vars, a.extents[i], outer);
        }
        set_position(a);
        group.contiguous = matcher_.contiguous_variable(a, a.map);
        a.group = static_cast<std::uint32_t>(f_.groups.size());
        f_.groups.push_back(std::move(group));
        if (is_tiny(a) && layouts_.written_input(a.target) == kNone) {
            if (tiny_.size() == kLatest) tiny_.erase(tiny_.begin());
            tiny_.push_back(a.group);
        }
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
        if (group.contracts && (a.reduces || new_contents_[a.target])) return false;
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
        std::optional<Match> match = matcher_.match(a, candidate, twin_in(a, candidate));
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
    ReadersOfValues readers_;
    GroupMatcher matcher_;
    std::vector<bool> late_;                // by value
    std::vector<std::uint32_t> extern_of_;  // by value: the extern group
    std::vector<std::uint32_t> tiny_;       // the latest groups of few points
    std::vector<bool> new_contents_;        // by value
    std::uint32_t last_effect_ = kNone;
};

}  // namespace

Fusion fuse(const Graph& graph, const Placement& placement, const Layouts& layouts,
            const ScheduleOptions& options) {
    return Fuser(graph, placement, layouts, options).run();
}

}  // namespace ingot::sched
