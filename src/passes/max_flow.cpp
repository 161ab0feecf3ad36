// See max_flow.h.
#include "passes/max_flow.h"

#include <algorithm>

namespace ingot {

bool MaxFlow::find_levels(std::size_t source, std::size_t sink) {
    level_.assign(edges_of_.size(), -1);
    std::vector<std::size_t> queue{source};
    level_[source] = 0;
    for (std::size_t at = 0; at < queue.size(); ++at)
        for (std::size_t e : edges_of_[queue[at]])
            if (edges_[e].capacity > 0 && level_[edges_[e].to] < 0) {
                level_[edges_[e].to] = level_[queue[at]] + 1;
                queue.push_back(edges_[e].to);
            }
    return level_[sink] >= 0;
}

// One augmenting path along the levels, found without recursion: graphs may be deep.
double MaxFlow::push(std::size_t source, std::size_t sink) {
    std::vector<std::size_t> path;
    std::size_t at = source;
    while (at != sink) {
        bool advanced = false;
        for (; next_[at] < edges_of_[at].size(); ++next_[at]) {
            std::size_t e = edges_of_[at][next_[at]];
            if (edges_[e].capacity <= 0 || level_[edges_[e].to] != level_[at] + 1) continue;
            path.push_back(e);
            at = edges_[e].to;
            advanced = true;
            break;
        }
        if (advanced) continue;
        if (path.empty()) return 0;
        level_[at] = -1;  // a dead end
        at = edges_[path.back() ^ 1].to;
        path.pop_back();
    }
    double amount = kInfinite;
    for (std::size_t e : path) amount = std::min(amount, edges_[e].capacity);
    for (std::size_t e : path) {
        if (edges_[e].capacity < kInfinite) edges_[e].capacity -= amount;
        edges_[e ^ 1].capacity += amount;
    }
    return amount;
}

double MaxFlow::run(std::size_t source, std::size_t sink) {
    double total = 0;
    while (find_levels(source, sink)) {
        next_.assign(edges_of_.size(), 0);
        for (double amount; (amount = push(source, sink)) > 0;) {
            total += amount;
            if (total >= kInfinite) return kInfinite;
        }
    }
    return total;
}

}  // namespace ingot
