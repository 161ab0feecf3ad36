// Recording a backward behind its forward: PyTorch's own autograd, run on promises.
//
// While a program is recorded with gradients enabled, promises carry a real autograd graph. At the
// end the engine runs it on promised output gradients under the same recorder, so that the
// recording simply goes on: one graph holds both. Costs what recording the backward's operators
// costs (2 to 20 µs each).
//
// Stands between recorder.h, which it continues, and differentiable.h, which makes two programs of
// the joint graph.
#pragma once
#include <cstdint>
#include <vector>

#include "trace/recorder.h"

namespace ingot::trace {

struct JointRecording {
    /// graph: forward and backward; its first `forward_outputs` outputs are the forward's (results
    /// and written inputs), then come gradients. outputs: recipes of the forward's results.
    Recording recording;
    std::size_t forward_outputs = 0;
    std::size_t forward_calls = 0;  // the first so many calls of the log are the forward's

    /// By result of the forward.
    struct Result {
        bool requires_grad = false;
        std::int32_t tangent = -1;  // the graph input that is its gradient; -1: not the backward's
        bool saved = false;         // by a function of the program, which minds a change in place
        /// The call makes it, as PyTorch's own view of that other result, which brings its gradient
        /// there: with these sizes, from where that one begins.
        std::int32_t view_of = -1;
        Sizes sizes, strides;
        Expr offset;
        ResultMarks marks;
        std::shared_ptr<const std::vector<ViewStep>> steps;  // as OutputRecipe's
        std::int32_t same_as = -1;                           // the very tensor that is such a view
    };
    std::vector<Result> results;
    /// By result: other results that it is computed from, transitively, in so far as a gradient of
    /// it has a part that goes by way of them.
    std::vector<std::vector<std::size_t>> through;
    /// The last results, which nobody asked for: others are views of them.
    std::vector<at::Tensor> hidden;

    /// By graph input that needs a gradient: its position and how the backward gives it.
    struct Gradient {
        std::int32_t input = -1;
        OutputRecipe recipe;        // None: there is never a gradient
        std::vector<bool> reached;  // by tangent, in order: whether it contributes
    };
    std::vector<Gradient> gradients;
    std::vector<std::size_t> order;  // of gradients, as eager's engine would hand them over
    /// Some of the backward is the program's own code: what it makes of a gradient that is zero, or
    /// of none, is its affair.
    bool custom = false;
    std::vector<std::int32_t> tangents;      // graph inputs, in order of the results
    std::vector<bool> readable_in_backward;  // by graph input: eager would save it, too
    /// By graph input: only regions read it, by themselves: their second run minds no change.
    std::vector<bool> unchecked;
    std::vector<bool> saved_inputs;  // by graph input: as Result::saved
};

}  // namespace ingot::trace
