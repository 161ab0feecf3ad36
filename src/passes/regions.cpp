// See regions.h.
#include "passes/regions.h"

#include <algorithm>
#include <limits>

namespace ingot {

Regions::Regions(const Graph& g, const std::vector<bool>& later) {
    any_ = std::ranges::any_of(g.nodes(), is_of_region);
    if (!any_) return;
    constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
    const std::size_t count = g.values().size();
    const auto is_later = [&](const Node& n) { return !n.results.empty() && later[n.results[0]]; };
    const auto mark_of = [](const Node& n) {
        return is_of_region(n) ? n.attrs.get<std::int64_t>("region") : 0;
    };
    // The last region before a value, and the first one behind it: the same within a region.
    std::vector<std::int64_t> before(count, 0), behind(count, kNever);
    for (const Node& n : g.nodes()) {
        if (is_later(n)) continue;
        std::int64_t last = mark_of(n);
        for (ValueId v : n.operands) last = std::max(last, before[v]);
        for (ValueId v : n.results) before[v] = last;
    }
    for (NodeId id = static_cast<NodeId>(g.nodes().size()); id-- > 0;) {
        const Node& n = g.node(id);
        if (is_later(n)) continue;
        std::int64_t first = kNever;
        for (ValueId v : n.results) first = std::min(first, behind[v]);
        if (const std::int64_t own = mark_of(n); own != 0) first = std::min(first, own);
        for (ValueId v : n.operands) behind[v] = std::min(behind[v], first);
    }
    region_.assign(count, 0);
    leaves_.assign(count, false);
    deep_.assign(count, false);
    for (const Node& n : g.nodes()) {
        if (is_later(n)) continue;
        for (ValueId v : n.results) {
            const std::int64_t own = mark_of(n);
            region_[v] = own != 0 ? own : before[v] == behind[v] ? before[v] : 0;
            deep_[v] = std::ranges::any_of(
                n.operands, [&](ValueId o) { return region_[o] != 0 && region_[o] == region_[v]; });
            // A view of what comes from outside, or a constant, is nothing that a region has made.
            if ((is_movement(n.prim) || kind(n.prim) == PrimKind::Creation) && !deep_[v])
                region_[v] = 0;
        }
    }
    for (const Node& n : g.nodes()) {
        if (is_later(n)) continue;
        const std::int64_t reader = n.results.empty() ? 0 : region_[n.results[0]];
        for (ValueId v : n.operands)
            if (region_[v] != 0 && region_[v] != reader) leaves_[v] = true;
    }
    for (const Output& o : g.outputs())
        if (!later[o.value] && region_[o.value] != 0) leaves_[o.value] = true;
}

Attrs without_region(const Attrs& attrs) {
    Attrs kept;
    for (const Attr& a : attrs.list())
        if (a.key != "region") kept.set(a.key, a.value);
    return kept;
}

}  // namespace ingot
