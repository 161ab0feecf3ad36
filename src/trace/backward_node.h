// The node that joins one call's forward with the backward program; internal to
// DifferentiableFunction, whose calls make it.
#pragma once
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trace/delivery.h"
#include "trace/differentiable.h"
#include "trace/passage.h"

namespace ingot::trace {

/// Its inputs are the gradients of the results with a tangent, its outputs those of the inputs in
/// `gradients_`. What is not given, or not wanted, is not computed (partial_backwards.h); what a
/// program cannot do eager does, from the forward's recorded calls.
class DifferentiableFunction::Node final : public torch::autograd::Node, public BehindPassages {
  public:
    using Gradients = torch::autograd::variable_list;

    std::shared_ptr<const DifferentiableFunction> function;
    std::vector<torch::autograd::SavedVariable> saved;
    // For create_graph: the inputs as they were, and what tells whether they still are.
    std::vector<at::Tensor> inputs;
    std::vector<std::uint32_t> versions;
    // What the program's own functions have saved, and its version then.
    std::vector<std::pair<c10::VariableVersion, std::uint32_t>> unchanged;
    at::Tensor random;
    bool by_graph = false;               // a CUDA graph made what is saved
    Numbers numbers, values;             // the forward's, and those of all symbols
    std::shared_ptr<Delivery> delivery;  // where hooks see when each gradient comes

    std::string name() const override { return "CompiledBackward"; }
    Gradients apply(Gradients&& gradients) override;
    void release_variables() override;
    Gradients part(std::size_t result, std::span<const std::size_t> features,
                   const at::Tensor& gradient, bool keeps_rest) override;

  private:
    struct Held;
    Gradients hand_over(Gradients results);
    void forget();
    void refuse_changes() const;
    std::vector<bool> wanted(const std::vector<bool>& defined) const;
    Gradients apply_program(Gradients gradients);
    Gradients run_whole(Gradients gradients, std::vector<bool> wanted);
    Gradients run_part(Gradients gradients, const std::vector<bool>& defined,
                       const std::vector<bool>& wanted);
    /// Inputs as the program wants them: of the whole backward's those in `positions`.
    std::vector<at::Tensor> unpack(Gradients& gradients,
                                   const std::vector<std::int32_t>& positions);
    /// Runs it; where it fails, eager's backward.
    Gradients run(CompiledFunction& program, std::vector<at::Tensor> given, bool graph, Held held);
    Held hold(const Gradients& gradients) const;
    /// Eager's, over the forward's recorded calls.
    Gradients recompute(const Gradients& gradients, const std::vector<bool>& wanted);
    /// The gradients, as differentiable functions of inputs and of `gradients` if it `creates` a
    /// graph: eager's, over the forward's recorded calls.
    Gradients apply_with_graph(const Gradients& gradients, bool creates);
    /// `apply_with_graph`, and what passages have left for the inputs.
    Gradients with_rest(const Gradients& gradients, const Gradients& rest);
    /// The forward's recorded calls once more, with gradients: its results. `copies` become the
    /// inputs, which gradients end at; so they do at the results `cuts`, which `leaves` become.
    std::vector<at::Tensor> run_again(std::vector<at::Tensor>& copies,
                                      std::span<const std::size_t> cuts,
                                      std::vector<at::Tensor>& leaves);

    std::map<int, Gradients> rest_;  // by the engine's task: see BehindPassages::part
    bool released_ = false;
};

}  // namespace ingot::trace
