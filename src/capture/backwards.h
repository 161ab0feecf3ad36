// The backwards that a recording makes: `loss.backward()` and `torch.autograd.grad` in the program.
//
// The promises' autograd graph is PyTorch's own, so PyTorch's engine runs on it while the recorder
// listens, and the recording goes on through the backward. The engine only computes gradients here;
// adding them to the `grad` of leaves is done behind it, so that an engine that fails has changed
// nothing and the call can break instead. For the same reason it keeps the graph: which nodes eager
// would have freed is remembered here, and what the program leaves behind of such a graph gets a
// node in its place that refuses a second backward in PyTorch's words.
//
// Cost: the engine's, a walk over the graph, and what recording the operators costs.
#pragma once
#include <Python.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/histories.h"
#include "capture/ref.h"
#include "capture/world.h"
#include "trace/recorder.h"

namespace ingot::capture {

/// A call of the engine.
struct BackwardCall {
    std::vector<at::Tensor> roots, tangents, inputs;  // no inputs: all leaves
    bool keeps = false;                               // the graph
    bool creates = false;                             // a graph of its own
    bool may_miss = false;     // an input without a gradient gets none, instead of an error
    bool accumulates = false;  // into `grad`
};

class Backwards {
  public:
    using NodePtr = decltype(torch::autograd::Edge::function);

    /// Why the backward from this tensor cannot be recorded; empty: it may be.
    std::string obstacle(const at::Tensor& root, const trace::Recorder& recorder) const;

    /// Whatever lies between the call's roots and its inputs, or all leaves. Throws Puzzle for what
    /// the recording does not understand. Calls Python code of PyTorch.
    struct Walk {
        std::vector<NodePtr> nodes;       // that are carried out
        std::vector<at::Tensor> targets;  // the inputs, or the leaves that were found
        std::vector<at::Tensor> leaves;  // that accumulate: themselves, or what a target stands for
        std::vector<at::Tensor> met;     // all leaves from outside that were found
    };
    Walk walk(const BackwardCall& call, const trace::Recorder& recorder,
              const Histories& histories) const;
    /// Runs the engine, without Python's lock; throws what it throws.
    static std::vector<at::Tensor> run(const BackwardCall& call, const Walk& walk);
    /// The engine has done what eager frees these nodes for.
    void spend(const Walk& walk);
    /// The promise of symbolic sizes that stands for a tensor, or the tensor itself.
    using StandIn = std::function<at::Tensor(const at::Tensor&)>;
    /// Guards what `grad` of the leaves is before gradients are added. Throws Puzzle if one cannot
    /// be followed.
    static void prepare(const Walk& walk, World& world, trace::Recorder& recorder,
                        const StandIn& stand_in);
    /// Adds the gradients to the leaves, as eager does.
    void accumulate(const Walk& walk, const std::vector<at::Tensor>& gradients, World& world,
                    const trace::Recorder& recorder, const StandIn& stand_in);

    /// There was one without effects.
    void note() { any_ = true; }
    /// Whether there was one.
    bool any() const { return any_; }
    /// The tensors that are `grad` of leaves and were made here, as Python objects.
    std::vector<Ref> gradients() const;
    /// If a backward from this tensor meets freed nodes: the name of its node, else empty.
    std::string spent(const at::Tensor& tensor) const;
    /// The tensor gets a node in its history that says that the graph was freed.
    static void mark_spent(at::Tensor& tensor, const std::string& name);
    /// Frees what eager has freed of a graph that eager has built: of results that are `spent`.
    static void release(const at::Tensor& tensor);

  private:
    static void refuse_parts(const at::Tensor& leaf, const trace::Recorder& recorder);
    static at::Tensor leaf_of(const at::Tensor& target, const BackwardCall& call,
                              const trace::Recorder& recorder, const Histories& histories);

    bool any_ = false;
    std::unordered_map<const torch::autograd::Node*, NodePtr> spent_;
    std::vector<at::Tensor> leaves_;  // whose `grad` was set
};

}  // namespace ingot::capture
