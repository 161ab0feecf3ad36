// See delivery.h.
#include "trace/delivery.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "trace/output_tensor.h"
#include "trace/torch_compat.h"

namespace ingot::trace {

using torch::autograd::Edge;

class Delivery::Part final : public torch::autograd::Node {
  public:
    Part(std::shared_ptr<Delivery> delivery, std::size_t group)
        : delivery_(std::move(delivery)), group_(group) {
        add_input_metadata(undefined_input());
    }
    std::string name() const override { return "CompiledBackward"; }
    torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
        return delivery_->deliver(group_, *this);
    }

  private:
    std::shared_ptr<Delivery> delivery_;
    std::size_t group_;
};

bool Delivery::is_watched(const Edge& edge) {
    if (!edge.is_valid()) return false;
    torch::autograd::Node& node = *edge.function;
    return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
           !node.tensor_pre_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

bool Delivery::is_watched(const Edges& edges) {
    return std::ranges::any_of(edges, [](const Edge& edge) { return is_watched(edge); });
}

Delivery::Delivery(std::shared_ptr<const void> owner, CompiledFunction::Times times,
                   const Edges& edges, std::span<const std::size_t> order)
    : owner_(std::move(owner)), times_(std::move(times)), edges_(edges) {
    std::size_t steps = 0;
    bool alone = true;  // what comes next gets a group of its own
    for (std::size_t i : order) {
        const bool watched = is_watched(edges_[i]), later = times_.results[i] > steps;
        steps = std::max(steps, times_.results[i]);
        if (groups_.empty() || later || watched || alone) groups_.push_back({steps, {}});
        groups_.back().results.push_back(i);
        alone = watched;
    }
}

Delivery::Edges Delivery::chain() {
    Edges next;
    for (std::size_t g = groups_.size(); g-- > 0;) {
        Edges own;
        for (std::size_t i : groups_[g].results) own.push_back(edges_[i]);
        own.insert(own.end(), next.begin(), next.end());
        if (g == 0) return own;
        auto part = make_node<Part>(shared_from_this(), g);
        part->set_next_edges(std::move(own));
        next = {Edge(std::move(part), 0)};
    }
    return next;
}

Delivery::Gradients Delivery::begin(std::unique_ptr<Running> running,
                                    const torch::autograd::Node& node) {
    {
        std::lock_guard lock(mutex_);
        running_[torch::autograd::get_current_graph_task_id()] = std::move(running);
    }
    return deliver(0, node);
}

Delivery::Gradients Delivery::deliver(std::size_t group, const torch::autograd::Node& node) {
    const int task = torch::autograd::get_current_graph_task_id();
    std::unique_ptr<Running> running;
    {
        std::lock_guard lock(mutex_);
        const auto found = running_.find(task);
        check(found != running_.end(), "a part of a backward that has not begun");
        running = std::move(found->second);
        running_.erase(found);  // an exception ends it
    }
    if (running->program) {
        const CallStatus status = running->program->run_to(groups_[group].steps);
        TORCH_CHECK_INDEX(status != CallStatus::KernelFailure, "index out of range in a backward");
    }
    Gradients out;
    for (std::size_t i : groups_[group].results) {
        at::Tensor result =
            running->program ? running->program->take(i) : std::move(running->all[i]);
        const bool wanted = running->wanted[i] && node.task_should_compute_output(out.size());
        out.push_back(wanted ? std::move(result) : at::Tensor());
    }
    if (group + 1 < groups_.size()) {
        out.emplace_back();  // for the next part, which wants nothing
        std::lock_guard lock(mutex_);
        running_[task] = std::move(running);
        return out;
    }
    const bool last = running->last;
    running.reset();
    if (last) trim_between_programs();
    return out;
}

}  // namespace ingot::trace
