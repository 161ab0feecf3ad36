// See passage.h.
#include "trace/passage.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <unordered_map>

#include "trace/torch_compat.h"

namespace ingot::trace {
namespace {

using torch::autograd::Edge;
using GraphNode = torch::autograd::Node;
using Gradients = BehindPassages::Gradients;

/// Whether the gradient that comes to this node is somebody's to see.
bool is_watched(GraphNode& node) {
    if (!node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
        !node.pre_hooks().empty() || !node.post_hooks().empty())
        return true;
    const auto* execution = torch::autograd::get_current_graph_task_exec_info();
    if (execution == nullptr || execution->empty()) return false;
    const auto found = execution->find(&node);
    return found != execution->end() && found->second.captures_ != nullptr &&
           !found->second.captures_->empty();
}

class Passage final : public GraphNode {
  public:
    Passage(std::size_t result, std::vector<std::size_t> features, BehindPassages& behind)
        : result_(result), features_(std::move(features)), behind_(behind) {}

    std::string name() const override { return "CompiledBackward"; }

    Gradients apply(Gradients&& gradients) override {
        Gradients out(1 + features_.size());
        const bool asked = gradients[0].defined() &&
                           std::any_of(next_edges().begin() + 1, next_edges().end(),
                                       [](const Edge& e) { return is_watched(*e.function); });
        if (!asked) {
            out[0] = std::move(gradients[0]);
            return out;
        }
        Gradients parts =
            behind_.part(result_, features_, gradients[0], task_should_compute_output(0));
        std::move(parts.begin(), parts.end(), out.begin() + 1);
        return out;
    }

  private:
    std::size_t result_;
    std::vector<std::size_t> features_;
    BehindPassages& behind_;  // the node at the first edge
};

}  // namespace

std::vector<PassageOf> passages_of(const std::vector<std::vector<std::size_t>>& through) {
    std::vector<PassageOf> passages;
    for (std::size_t i = 0; i < through.size(); ++i) {
        const bool feature = std::ranges::any_of(through, [&](const auto& features) {
            return std::ranges::find(features, i) != features.end();
        });
        if (feature || !through[i].empty()) passages.push_back({i, through[i]});
    }
    // A node's edges are set before another's lead to it. Features are transitive, so that each
    // has fewer than what is computed from it.
    std::ranges::stable_sort(passages, {}, [](const PassageOf& p) { return p.features.size(); });
    return passages;
}

void add_passages(std::span<const PassageOf> passages, std::vector<at::Tensor>& all,
                  const NodeOfPassages& node, BehindPassages& behind,
                  std::span<const std::uint32_t> nr_of) {
    std::unordered_map<std::size_t, decltype(Edge::function)> made;  // by result
    for (const PassageOf& p : passages)
        made[p.result] = make_node<Passage>(p.result, p.features, behind);
    for (const PassageOf& p : passages) {
        torch::autograd::edge_list edges{Edge(node, nr_of[p.result])};
        for (const std::size_t feature : p.features) edges.emplace_back(made.at(feature), 0);
        made.at(p.result)->set_next_edges(std::move(edges));
        torch::autograd::set_history(all[p.result], made.at(p.result));
    }
}

}  // namespace ingot::trace
