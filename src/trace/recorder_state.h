// What a recording session knows while it runs: the graph, the promises' cells, the log.
//
// Lowerings see it through Call (lower/call.h); the caller through Recorder (recorder.h).
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "trace/gpu_random.h"
#include "trace/promise.h"
#include "trace/recorder.h"

namespace ingot::trace {

struct JointRecording;  // autograd.h

/// Whether the promise of a tensor that was met is a leaf to autograd in its place: operators are
/// given it, and not the tensor, where sizes are symbolic.
inline bool is_own_leaf(const at::Tensor& promise) {
    return promise.requires_grad() && promise.is_leaf() &&
           promise.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

/// Random numbers that are drawn one after another with nothing between that asks the generator
/// itself: one state serves all of them.
struct RandomRun {
    ValueId state = kNone;   // seed and offset when the first was drawn
    std::int64_t drawn = 0;  // how far the generator has gone on since
};

class RecorderState {
  public:
    Graph graph;
    /// The symbolic sizes of this recording; integers made from them keep it alive.
    std::shared_ptr<SymbolicSizes> symbols = std::make_shared<SymbolicSizes>(graph.shared_pool());
    std::vector<InputSource> inputs;
    std::vector<ExternCallee> externs;
    std::vector<LoggedCall> log;
    std::optional<std::string> failure;
    bool uses_random = false;
    std::optional<RandomRun> random_run;  // the one that goes on
    /// How eager draws on the recording's GPU, once that has been asked; nothing: unknown.
    std::optional<std::optional<GpuDraws>> gpu_draws;
    /// The region that is being recorded.
    struct OpenRegion {
        std::size_t nodes = 0, calls = 0, inputs = 0;                     // that were there before
        std::unordered_map<std::shared_ptr<Cell>, std::uint64_t> before;  // and as they were then
    };
    std::optional<OpenRegion> region;
    std::unordered_map<c10::TensorImpl*, at::Tensor> given_to_regions;
    std::int64_t regions = 0;
    bool refuses_gradients = false;
    bool refused_gradient = false;  // and has done so
    bool follows_gradients = false;
    bool assumes = false;       // see Recorder::assume
    std::vector<Expr> numbers;  // the symbols of add_number, in order
    Recorder::NumberReader read_number;
    Recorder::FloatReader own_float;
    Recorder::Giver give_up;
    std::string origin;  // of the operator in progress
    /// Where everything of the recording is computed: the inputs' device.
    std::optional<c10::Device> device;
    /// The device meant by `wanted` (whose index may be missing). Throws NotSupported for a second
    /// GPU, or for a GPU beside inputs on the processor.
    c10::Device resolve(c10::Device wanted);

    /// One operator from the dispatcher: replaces its arguments on the stack by its results.
    void dispatch(const c10::OperatorHandle& op, torch::jit::Stack& stack);

    /// PyTorch has copied a promise without calling an operator (factories and `data` do): for the
    /// log a `detach`.
    void log_copy(const at::Tensor& promise, const at::Tensor& copy);

    // ---- tensors (functional.cpp) ----
    /// A promise for a real tensor, as a new graph input.
    /// `as`: recorded as if it lay on that device.
    at::Tensor add_input(const at::Tensor& real, bool frozen, std::string name, bool captured,
                         std::span<const SymbolicSize> sizes, std::optional<c10::Device> as);
    /// The promise of `tensor`; a real tensor becomes a captured input.
    Promise& promise(const at::Tensor& tensor);
    /// The tensor's contents now.
    ValueId read(const at::Tensor& tensor);
    ValueId read(const Promise& promise) { return read(*promise.cell(), promise.view()); }
    /// What lies in its memory, where it shows the conjugate or the negative of that.
    ValueId read_memory(const Promise& promise);
    /// Makes `value` (of the promise's type) its contents, seen by all that share its storage.
    void write(const Promise& promise, ValueId value);
    /// A promise of a new storage that holds `value`, laid out with `strides`.
    at::Tensor fresh(ValueId value, const SymInts& strides, c10::Device device);
    /// A promise on `base`'s storage, seen through `path` (nullptr: the cell's base).
    at::Tensor view_of(const Promise& base, ViewPath path, c10::ScalarType dtype,
                       const SymInts& sizes, const SymInts& strides, const c10::SymInt& offset);
    /// `path` (of `cell`) and one more step. Result type follows from the prim's rule.
    ViewPath extend(const Cell& cell, const ViewPath& path, Prim prim, Attrs attrs);
    /// The type of what `path` shows.
    const Type& type_of(const Cell& cell, const ViewPath& path) const;

    /// Kernels of PyTorch's ask the meta device for sizes and types: `t` is made there for one.
    /// What is computed from such tensors alone has no contents, and is not recorded.
    at::Tensor keep_meta(at::Tensor t);

    Recording finish(std::span<const at::Tensor> outputs, std::span<const c10::SymInt> computed);
    JointRecording finish_joint(std::span<const at::Tensor> outputs);

  private:
    friend class Recorder;
    friend class JointRecorder;
    // finish.cpp: recipes (and graph outputs) for tensors; outputs for inputs that were written.
    std::vector<OutputRecipe> describe_outputs(std::span<const at::Tensor> outputs);
    void write_inputs();
    Recording package(std::vector<OutputRecipe> recipes,
                      std::span<const c10::SymInt> computed = {});
    /// A new graph input that stands for the gradient of `output` (autograd.cpp).
    at::Tensor add_tangent(const at::Tensor& output, std::string name);
    ValueId read(const Cell& cell, const ViewPath& path);
    void write(Cell& cell, const View& view, ValueId value);
    void record_extern(const c10::OperatorHandle& op, torch::jit::Stack& stack);
    void refuse_history(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
    void refuse_overlap(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
    /// `value` with the promises of tensors that were met instead of those tensors.
    c10::IValue promised(const c10::IValue& value) const;
    /// Records the operator, or raises what keeps it from being recorded.
    void record(const c10::OperatorHandle& op, torch::jit::Stack& stack);
    bool run_on_metas(const c10::OperatorHandle& op, torch::jit::Stack& stack);
    void specialise_met(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
    void read_stand_ins(const c10::OperatorHandle& op, torch::jit::Stack& stack);
    bool lower(const c10::OperatorHandle& op, torch::jit::Stack& stack);
    void assume(const at::Tensor& condition);
    void log_call(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments,
                  const torch::jit::Stack& stack);

    std::unordered_map<c10::TensorImpl*, at::Tensor> captured_;  // real tensor to promise
    std::vector<at::Tensor> kept_;  // real tensors whose addresses captured_ uses
    std::vector<at::Tensor> metas_, number_tensors_;
    std::vector<std::shared_ptr<Cell>> input_cells_;  // by graph input
    int depth_ = 0;                                   // of decompositions in progress
};

}  // namespace ingot::trace
