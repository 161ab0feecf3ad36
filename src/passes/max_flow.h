// Maximum flow by Dinic's method, for partition.cpp. Near-linear on the graphs met there.
#pragma once
#include <cstdint>
#include <vector>

namespace ingot {

class MaxFlow {
  public:
    static constexpr double kInfinite = 1e30;
    explicit MaxFlow(std::size_t vertices) : edges_of_(vertices) {}

    void add_edge(std::size_t from, std::size_t to, double capacity) {
        edges_of_[from].push_back(edges_.size());
        edges_.push_back({to, capacity});
        edges_of_[to].push_back(edges_.size());
        edges_.push_back({from, 0});
    }
    /// Runs the flow; afterwards `source_side` says on which side of a minimum cut a vertex lies.
    /// Infinite if no finite cut separates the two.
    double run(std::size_t source, std::size_t sink);
    bool source_side(std::size_t vertex) const { return level_[vertex] >= 0; }

  private:
    struct Edge {
        std::size_t to;
        double capacity;
    };
    bool find_levels(std::size_t source, std::size_t sink);
    double push(std::size_t source, std::size_t sink);

    std::vector<Edge> edges_;  // an edge and its reverse lie side by side
    std::vector<std::vector<std::size_t>> edges_of_;
    std::vector<int> level_;
    std::vector<std::size_t> next_;
};

}  // namespace ingot
