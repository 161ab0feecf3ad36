// See arena_pieces.h.
#include "runtime/arena_pieces.h"

#include <algorithm>
#include <numeric>

namespace ingot::runtime {

std::vector<ArenaPiece> arena_pieces(std::vector<ArenaUse> uses) {
    std::ranges::stable_sort(uses, {}, &ArenaUse::first);
    std::vector<std::size_t> group(uses.size());
    std::iota(group.begin(), group.end(), 0);
    const auto find = [&](std::size_t u) {
        while (group[u] != u) u = group[u] = group[group[u]];
        return u;
    };
    std::vector<std::size_t> alive;
    for (std::size_t u = 0; u < uses.size(); ++u) {
        std::erase_if(alive, [&](std::size_t a) { return uses[a].last < uses[u].first; });
        for (std::size_t a : alive) {
            const bool apart = uses[a].offset + uses[a].bytes <= uses[u].offset ||
                               uses[u].offset + uses[u].bytes <= uses[a].offset;
            if (apart) continue;
            // The lower number leads: pieces come in the order of their first steps.
            const std::size_t one = find(a), other = find(u);
            group[std::max(one, other)] = std::min(one, other);
        }
        alive.push_back(u);
    }
    std::vector<ArenaPiece> pieces;
    std::vector<std::size_t> piece_of(uses.size());
    std::vector<std::int64_t> begin;
    for (std::size_t u = 0; u < uses.size(); ++u) {
        const std::size_t leader = find(u);
        if (leader == u) {
            piece_of[u] = pieces.size();
            pieces.push_back({uses[u].offset + uses[u].bytes, uses[u].first, uses[u].last, {}});
            begin.push_back(uses[u].offset);
        }
        ArenaPiece& p = pieces[piece_of[leader]];
        begin[piece_of[leader]] = std::min(begin[piece_of[leader]], uses[u].offset);
        p.bytes = std::max(p.bytes, uses[u].offset + uses[u].bytes);  // its end, for now
        p.last = std::max(p.last, uses[u].last);
        p.buffers.emplace_back(uses[u].buffer, uses[u].offset);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        pieces[i].bytes -= begin[i];
        for (auto& [buffer, at] : pieces[i].buffers) at -= begin[i];
    }
    return pieces;
}

}  // namespace ingot::runtime
