// Gradients handed over one after another, as soon as each is there.
//
// A compiled backward is one node of autograd's graph, so that its gradients reach their leaves all
// at once, when the last is made. Where a leaf has hooks, that is seen: data parallelism sends a
// bucket of gradients while the backward goes on, and a hook that raises leaves the gradients
// behind it untouched. The backward then is a chain of nodes: each runs the program to where the
// next gradients are there, gives these to their leaves, and the engine calls the next one when the
// leaves' hooks have run. They come in eager's order: one that is made early waits for those that
// eager has before it, and one that is watched comes alone, since the engine serves leaves that get
// their gradients together in any order. Costs about 2 µs a node. Beside differentiable.h, which
// makes it.
#pragma once
#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "trace/call_parts.h"

namespace ingot::trace {

class Delivery : public std::enable_shared_from_this<Delivery> {
  public:
    using Edges = torch::autograd::edge_list;
    using Gradients = torch::autograd::variable_list;

    /// One backward under way: the program where it has stopped, or all gradients.
    struct Running {
        std::unique_ptr<CompiledFunction::Parts> program;
        Gradients all;
        std::vector<bool> wanted;  // by gradient: some root that it depends on has a gradient
        bool last = false;         // no other backward of this graph comes
    };

    /// Whether hooks see when the gradients along these edges arrive.
    static bool is_watched(const Edges& edges);
    /// `owner` keeps `backward`, whose times these are, alive. One edge for each result. `order`:
    /// of the results, in eager.
    Delivery(std::shared_ptr<const void> owner, CompiledFunction::Times times, const Edges& edges,
             std::span<const std::size_t> order);
    Delivery(const Delivery&) = delete;
    Delivery& operator=(const Delivery&) = delete;

    const CompiledFunction::Times& times() const { return times_; }
    /// Edges for the node that begins: the first results', and one to the nodes behind it.
    Edges chain();
    /// Begins a backward and gives the first part's results, for `node`.
    Gradients begin(std::unique_ptr<Running> running, const torch::autograd::Node& node);

  private:
    class Part;
    static bool is_watched(const torch::autograd::Edge& edge);
    struct Group {
        std::size_t steps = 0;
        std::vector<std::size_t> results;
    };
    Gradients deliver(std::size_t group, const torch::autograd::Node& node);

    std::shared_ptr<const void> owner_;
    CompiledFunction::Times times_;
    Edges edges_;
    std::vector<Group> groups_;
    std::mutex mutex_;
    std::map<int, std::unique_ptr<Running>> running_;  // by the engine's task
};

}  // namespace ingot::trace
