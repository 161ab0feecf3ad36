// Gradients of results that other results are computed from.
//
// A forward's results hang in autograd's graph as one node, so that a gradient of one result says
// nothing of another: `torch.autograd.grad(logits.sum(), features)`, with the features kept by a
// hook of a module, would find no way from the one to the other, and `features.retain_grad()` would
// stay without a gradient. Results that stand behind one another therefore have nodes of their own:
//
//     logits ── Passage ──────────► the compiled backward ──► leaves
//                  └──► features ── Passage ──┘
//
// A passage hands its gradient on, and the compiled backward does all the work, as long as nobody
// asks for the features' gradient. Where somebody does (the engine is to capture it, or it has
// hooks), the passage computes what of its gradient goes by way of the features, by eager's calls
// of the recorded forward, and what goes past them, which is added to the leaves' gradients.
//
// Costs 2 to 3 µs for such a result a call. Beside differentiable.h, which makes them.
#pragma once
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <span>
#include <vector>

namespace ingot::trace {

/// The compiled backward, as passages know it. A node owns it.
class BehindPassages {
  public:
    using Gradients = torch::autograd::variable_list;
    /// Of `gradient`, a gradient of `result`: the parts that go to `features` (results) and, kept
    /// for when the backward itself runs, those that go past them.
    virtual Gradients part(std::size_t result, std::span<const std::size_t> features,
                           const at::Tensor& gradient, bool keeps_rest) = 0;

  protected:
    ~BehindPassages() = default;
};

/// A result, by its position, and the results it is computed from, transitively.
struct PassageOf {
    std::size_t result = 0;
    std::vector<std::size_t> features;
};

/// Of all results, those that have features, and the features.
std::vector<PassageOf> passages_of(const std::vector<std::vector<std::size_t>>& through);

using NodeOfPassages = decltype(torch::autograd::Edge::function);

/// Gives results that stand behind one another their history. `node`: the compiled backward, which
/// is `behind` and knows `all` of them by `nr_of` the result.
void add_passages(std::span<const PassageOf> passages, std::vector<at::Tensor>& all,
                  const NodeOfPassages& node, BehindPassages& behind,
                  std::span<const std::uint32_t> nr_of);

}  // namespace ingot::trace
