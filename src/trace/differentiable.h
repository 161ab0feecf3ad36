// A compiled function with a compiled backward: the run time of training.
//
// Two programs made of one joint recording (autograd.h, passes/partition.h), joined by a C++
// autograd node. A call runs the forward, saves what the backward reads through PyTorch's
// SavedVariable (versions are checked, saved-tensor hooks run) and hangs the node onto the results.
// With create_graph the forward's recorded ATen calls are run again with gradients, so that double
// backward is eager's. Costs beyond the programs: about 1 µs and 0.2 µs a saved tensor a call.
//
// This is the entry for whoever records a program that needs gradients: make a trace::Recorder, set
// `requires_grad` on the promises of inputs that need one, record with gradients enabled, call
// finish_joint without Python's lock and hand the result over here.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "passes/partition.h"
#include "trace/autograd.h"
#include "trace/compiled_function.h"
#include "trace/passage.h"

namespace ingot::trace {

class EarlyCalls;
class PartialBackwards;

class DifferentiableFunction : public std::enable_shared_from_this<DifferentiableFunction> {
  public:
    /// `examples` are the tensors given to Recorder::add_input, in order, `promises` what it
    /// returned; `outputs` were given to Recorder::finish_joint. `memory_budget`: see partition.h.
    /// Throws NotSupported for what must run eagerly.
    DifferentiableFunction(JointRecording joint, std::span<const at::Tensor> examples,
                           std::span<const at::Tensor> promises, std::vector<at::Tensor> outputs,
                           std::shared_ptr<const runtime::Compiler> compiler,
                           runtime::CompileOptions options, double memory_budget,
                           const runtime::InterruptCheck& interrupted = {});
    ~DifferentiableFunction();
    DifferentiableFunction(const DifferentiableFunction&) = delete;
    DifferentiableFunction& operator=(const DifferentiableFunction&) = delete;

    /// Runs the forward with gradients enabled. OtherInputs also when other inputs need a gradient
    /// than while recording, and under anomaly detection, which is eager's alone. `numbers`: the
    /// values of Recorder::add_number's, in order.
    CallStatus call(std::span<c10::TensorImpl* const> inputs, std::vector<at::Tensor>& outputs,
                    std::span<const std::int64_t> numbers = {});

    /// As CompiledFunction's, of the forward.
    std::optional<Failure> take_failure() { return forward_->take_failure(); }
    const CompiledFunction& forward() const { return *forward_; }
    const CompiledFunction& backward() const { return *backward_; }
    /// Bytes that live from a forward to its backward besides inputs and results.
    std::int64_t saved_bytes() const { return saved_bytes_; }
    /// Whether calls go through CUDA graphs, or why not.
    std::string graph_state() const;
    std::string tuning_state() const;
    /// Calls of libraries that are made, or were, ahead of the first backward (early_calls.h).
    std::size_t early_calls() const;

  private:
    class Node;
    /// A result of the forward that stays for the backward.
    struct Saved {
        SavedValue::From from;
        std::int32_t index;      // Input: graph input; Output: position in the forward's results
        bool is_result = false;  // the caller gets the same tensor
        bool dies = false;       // only the backward ever reads it
        bool unchecked = false;  // it may change before the backward, as eager does not mind
    };
    struct Layout {
        Sizes sizes, strides;
        c10::ScalarType dtype;
    };
    using Numbers = std::vector<std::int64_t>;

    void map_inputs(const JointRecording& joint, std::span<const at::Tensor> examples,
                    std::span<const at::Tensor> promises);
    Partition split(JointRecording& joint, std::span<const at::Tensor> examples,
                    double memory_budget);
    void make_forward(JointRecording& joint, Partition& parts, std::span<const at::Tensor> examples,
                      std::span<const at::Tensor> promises, std::vector<at::Tensor> outputs,
                      const runtime::InterruptCheck& interrupted);
    void make_backward(JointRecording& joint, Partition& parts,
                       const runtime::InterruptCheck& interrupted);
    void join_graphs(const JointRecording& joint);
    at::Tensor input(std::span<c10::TensorImpl* const> inputs, std::int32_t graph_input) const;
    /// `values`: of `symbols_`.
    at::Tensor conform(at::Tensor tensor, const Layout& layout, const Numbers& values) const;
    Numbers numbers_of(const Sizes& sizes, const Numbers& values) const;
    bool is_passage(std::size_t result) const {
        return std::ranges::find(passages_, result, &PassageOf::result) != passages_.end();
    }
    /// Makes the results that are views of others, which have their history by now.
    void make_views(std::vector<at::Tensor>& all, const Numbers& values) const;

    std::unique_ptr<CompiledFunction> forward_, backward_;
    std::shared_ptr<const runtime::Compiler> compiler_;
    runtime::CompileOptions options_;
    c10::Device device_;
    std::vector<Expr> symbols_;  // of the joint graph: the backward is given their values
    std::vector<JointRecording::Result> results_;
    std::size_t asked_ = 0;            // so many of them the caller gets
    std::vector<PassageOf> passages_;  // results that stand behind one another
    std::vector<JointRecording::Gradient> gradients_;
    std::vector<std::size_t> order_;  // of gradients, in eager
    std::vector<Saved> saved_;
    std::vector<bool> saved_in_rooms_;               // by the forward graph's output, while made
    std::vector<Layout> backward_inputs_;            // saved values, then tangents
    std::vector<std::int32_t> from_caller_;          // by graph input: the caller's position or -1
    std::vector<at::Tensor> captured_;               // by graph input
    std::vector<std::uint8_t> requires_grad_;        // by caller's input
    std::vector<std::int32_t> written_;              // caller's inputs that the forward writes
    std::vector<std::uint8_t> old_contents_matter_;  // by written input: gradients depend on them
    std::vector<std::int32_t> saved_inputs_;  // of the caller, by the program's own functions
    bool random_ = false;
    bool least_memory_ = false;  // is the aim, above speed
    bool custom_ = false;        // see JointRecording::custom
    std::int64_t saved_bytes_ = 0;
    std::unique_ptr<EarlyCalls> early_calls_;
    std::unique_ptr<PartialBackwards> partial_;
    mutable std::atomic<bool> backward_has_run_{false};
};

}  // namespace ingot::trace
