// See backward_node.h.
#include "trace/backward_node.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <numeric>

#include "trace/output_tensor.h"
#include "trace/partial_backwards.h"
#include "trace/random_again.h"

namespace ingot::trace {
namespace {

/// Gradients and inputs of so many bytes are held while a program runs, so that eager can begin
/// anew if it fails; of a program's first run all are.
constexpr std::int64_t kHeldBytes = std::int64_t{16} << 20;

bool keeps_graph() { return torch::autograd::get_current_graph_task_keep_graph(); }

/// Adds gradients, some of which may be undefined.
void add(torch::autograd::variable_list& sum, const torch::autograd::variable_list& gradients) {
    sum.resize(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i)
        if (gradients[i].defined())
            sum[i] = sum[i].defined() ? sum[i] + gradients[i] : gradients[i];
}

}  // namespace

/// What eager needs if the program fails; not `any`: it is not there, and the failure is raised.
struct DifferentiableFunction::Node::Held {
    bool any = false;
    Gradients gradients;
    std::vector<at::Tensor> inputs;
    std::vector<bool> wanted;
};

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::apply(Gradients&& gradients) {
    std::lock_guard lock(mutex_);
    const auto rest = rest_.extract(torch::autograd::get_current_graph_task_id());
    if (!rest.empty()) return hand_over(with_rest(gradients, rest.mapped()));
    if (at::GradMode::is_enabled()) return hand_over(apply_with_graph(gradients, true));
    const auto missing = [](const at::Tensor& g) { return !g.defined(); };
    if (!function->custom_ || std::ranges::none_of(gradients, missing))
        return apply_program(std::move(gradients));
    Gradients results = apply_with_graph(gradients, false);
    if (!keeps_graph()) forget();
    return hand_over(std::move(results));
}

void DifferentiableFunction::Node::release_variables() {
    std::lock_guard lock(mutex_);
    forget();
}

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::part(
    std::size_t result, std::span<const std::size_t> features, const at::Tensor& gradient,
    bool keeps_rest) {
    std::lock_guard lock(mutex_);
    const bool creates = at::GradMode::is_enabled();
    Gradients leaves;
    std::vector<at::Tensor> copies;
    if (creates) {  // what stands for the features depends on the inputs, by a run of its own
        const std::vector<at::Tensor> before = run_again(copies, {}, leaves);
        for (const std::size_t f : features) leaves.push_back(at::alias(before[f]));
    }
    const std::vector<at::Tensor> outputs = run_again(copies, features, leaves);
    for (const auto& g : function->gradients_)
        leaves.push_back(copies[function->from_caller_[g.input]]);
    const int task = torch::autograd::get_current_graph_task_id();
    Gradients parts =
        torch::autograd::grad({outputs[result]}, leaves, {gradient}, /*retain_graph=*/true,
                              /*create_graph=*/creates, /*allow_unused=*/true);
    const auto past = parts.begin() + static_cast<std::ptrdiff_t>(features.size());
    const auto is_there = [](const at::Tensor& g) { return g.defined(); };
    if (keeps_rest && std::any_of(past, parts.end(), is_there))
        add(rest_[task], Gradients(past, parts.end()));
    parts.erase(past, parts.end());
    return parts;
}

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::with_rest(
    const Gradients& gradients, const Gradients& rest) {
    const bool last = !keeps_graph();
    Gradients results = apply_with_graph(gradients, at::GradMode::is_enabled());
    add(results, rest);
    if (last && !at::GradMode::is_enabled()) forget();
    return results;
}

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::hand_over(Gradients results) {
    if (!delivery) return results;
    auto running = std::make_unique<Delivery::Running>();
    running->wanted.assign(results.size(), true);
    running->all = std::move(results);
    return delivery->begin(std::move(running), *this);
}

void DifferentiableFunction::Node::forget() {
    for (torch::autograd::SavedVariable& s : saved) s.reset_data();
    inputs.clear();
    released_ = true;
}

void DifferentiableFunction::Node::refuse_changes() const {
    for (const auto& [version, expected] : unchanged)
        TORCH_CHECK(version.current_version() == expected,
                    "one of the variables needed for gradient computation has been modified "
                    "by an inplace operation: one that a custom function has saved is at "
                    "version ",
                    version.current_version(), "; expected version ", expected, " instead.");
}

std::vector<bool> DifferentiableFunction::Node::wanted(const std::vector<bool>& defined) const {
    std::vector<bool> wanted;
    for (const auto& gradient : function->gradients_) {
        bool any = false;
        for (std::size_t t = 0; t < defined.size(); ++t)
            any = any || (defined[t] && gradient.reached[t]);
        // Where gradients go one after another the engine asks each node for its own.
        const std::size_t i = wanted.size();
        wanted.push_back(any && (delivery != nullptr || task_should_compute_output(i)));
    }
    return wanted;
}

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::apply_program(
    Gradients gradients) {
    if (released_) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
    refuse_changes();
    std::vector<bool> defined;
    for (const at::Tensor& g : gradients) defined.push_back(g.defined());
    std::vector<bool> asked = wanted(defined);
    bool whole = std::ranges::find(defined, false) == defined.end();
    for (std::size_t i = 0; i < asked.size(); ++i)
        whole =
            whole && (asked[i] || function->gradients_[i].recipe.kind == OutputRecipe::Kind::None);
    if (whole) return run_whole(std::move(gradients), std::move(asked));
    if (std::ranges::find(asked, true) != asked.end())
        return run_part(std::move(gradients), defined, asked);
    if (!keeps_graph()) forget();
    return hand_over(Gradients(asked.size()));
}

std::vector<at::Tensor> DifferentiableFunction::Node::unpack(
    Gradients& gradients, const std::vector<std::int32_t>& positions) {
    std::vector<at::Tensor> given;
    given.reserve(positions.size());
    for (const std::int32_t p : positions) {
        const auto i = static_cast<std::size_t>(p);
        at::Tensor t =
            i < saved.size() ? saved[i].unpack(getptr()) : std::move(gradients[i - saved.size()]);
        given.push_back(function->conform(std::move(t), function->backward_inputs_[i], values));
    }
    return given;
}

DifferentiableFunction::Node::Held DifferentiableFunction::Node::hold(
    const Gradients& gradients) const {
    Held held;
    std::int64_t bytes = 0;
    for (const auto* list : {&gradients, &inputs})
        for (const at::Tensor& t : *list)
            if (t.defined() && t.layout() == c10::kStrided)
                bytes += static_cast<std::int64_t>(t.nbytes());
    held.any = keeps_graph() || !function->backward_has_run_.exchange(true) ||
               (!function->least_memory_ && bytes <= kHeldBytes);
    if (!held.any) return held;
    held.gradients = gradients;
    held.inputs = inputs;
    return held;
}

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::run_whole(
    Gradients gradients, std::vector<bool> asked) {
    Held held = hold(gradients);
    std::vector<std::int32_t> all(function->backward_inputs_.size());
    std::iota(all.begin(), all.end(), 0);
    std::vector<at::Tensor> given = unpack(gradients, all);
    gradients.clear();
    // Without a second backward to come, the program frees each saved value as it goes.
    const bool last = !keeps_graph();
    if (last) forget();
    if (delivery) {
        auto running = std::make_unique<Delivery::Running>();
        running->program = std::make_unique<CompiledFunction::Parts>(
            *function->backward_, delivery->times(), std::move(given));
        running->wanted = std::move(asked);
        running->last = last;
        return delivery->begin(std::move(running), *this);
    }
    held.wanted = std::move(asked);
    return run(*function->backward_, std::move(given), by_graph, std::move(held));
}

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::run_part(
    Gradients gradients, const std::vector<bool>& defined, const std::vector<bool>& asked) {
    const auto form = function->partial_->form(defined, asked);
    if (form == nullptr) {
        Gradients results = recompute(gradients, asked);
        if (!keeps_graph()) forget();
        return hand_over(std::move(results));
    }
    Held held = hold(gradients);
    held.wanted = asked;
    std::vector<at::Tensor> given = unpack(gradients, form->inputs);
    gradients.clear();
    if (!keeps_graph()) forget();
    return hand_over(run(*form->program, std::move(given), by_graph, std::move(held)));
}

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::run(
    CompiledFunction& program, std::vector<at::Tensor> given, bool graph, Held held) {
    std::vector<at::Tensor> results;
    const CallStatus status = program.call_with(given, results, values, graph);
    const bool last = !keeps_graph();
    if (last) trim_between_programs();
    if (status == CallStatus::Done) {
        for (std::size_t i = 0; i < results.size(); ++i)
            if (!held.wanted[i]) results[i].reset();
        return results;
    }
    check(status == CallStatus::KernelFailure, "the backward refuses its inputs");
    const std::optional<Failure> failure = program.take_failure();
    if (!held.any && failure) std::rethrow_exception(failure->raised);
    TORCH_CHECK_INDEX(held.any, "index out of range in a backward");
    given.clear();
    results.clear();
    inputs = std::move(held.inputs);
    const bool released = std::exchange(released_, false);
    Gradients made = recompute(held.gradients, held.wanted);
    if (released) forget();
    return made;
}

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::recompute(
    const Gradients& gradients, const std::vector<bool>& asked) {
    Gradients results = apply_with_graph(gradients, false);
    for (std::size_t i = 0; i < results.size(); ++i)
        if (!asked[i]) results[i].reset();
    return results;
}

DifferentiableFunction::Node::Gradients DifferentiableFunction::Node::apply_with_graph(
    const Gradients& gradients, bool creates) {
    std::vector<at::Tensor> copies;
    Gradients roots, tangents, leaves;
    const std::vector<at::Tensor> outputs = run_again(copies, {}, leaves);
    std::size_t next = 0;
    for (std::size_t i = 0; i < function->results_.size(); ++i) {
        if (function->results_[i].tangent < 0) continue;
        const at::Tensor& g = gradients[next++];
        if (!g.defined() || !outputs[i].requires_grad()) continue;
        roots.push_back(outputs[i]);
        tangents.push_back(g);
    }
    for (const auto& gradient : function->gradients_)
        leaves.push_back(copies[function->from_caller_[gradient.input]]);
    if (roots.empty()) return Gradients(leaves.size());
    return torch::autograd::grad(roots, leaves, tangents, /*retain_graph=*/true,
                                 /*create_graph=*/creates, /*allow_unused=*/true);
}

std::vector<at::Tensor> DifferentiableFunction::Node::run_again(std::vector<at::Tensor>& copies,
                                                                std::span<const std::size_t> cuts,
                                                                std::vector<at::Tensor>& leaves) {
    if (released_) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
    refuse_changes();
    c10::SmallVector<c10::TensorImpl*, 64> raw;
    copies = inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        TORCH_CHECK(inputs[i].is_inference() || inputs[i]._version() == versions[i],
                    "one of the variables needed for gradient computation has been modified "
                    "by an inplace operation");
    for (std::int32_t w : function->written_) copies[w] = copies[w].clone();
    const at::AutoGradMode grad(true);
    // One input may be computed from another, behind a break: its gradient must end with it, and
    // goes on from there outside.
    for (const auto& gradient : function->gradients_) {
        at::Tensor& t = copies[function->from_caller_[gradient.input]];
        t = at::alias(t);
    }
    for (const at::Tensor& t : copies) raw.push_back(t.unsafeGetTensorImpl());
    WithRandomState again(random, function->device_);
    return function->forward_->replay_cut(raw, numbers, cuts, leaves);
}

}  // namespace ingot::trace
