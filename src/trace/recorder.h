// A recording: what a stretch of a PyTorch program does to tensors, as a graph of prims.
//
// Flow: the caller makes a Recorder, turns its real inputs into promises (tensors without data),
// opens a Scope and runs the program on them. Every operator below autograd and autocast reaches
// the recorder (mode.h), is logged, lowered to prims (lower/) and answered with promises. Views and
// in-place operators become functional there, per storage (functional.h). finish() hands over the
// graph with everything a runtime needs to give the caller eager's outputs: recipes for aliasing,
// the operators that stay calls (externs), and the log of ATen calls, which can be replayed.
//
// Cost: 2 to 20 µs per operator; no arithmetic is done, no storage allocated.
//
// A program that cannot be recorded raises NotSupported through PyTorch's frames. Python's argument
// parser turns that into a RuntimeError, so the recorder also keeps it: see failure().
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "trace/result_marks.h"
#include "trace/sym_node.h"

namespace ingot::trace {

/// A tensor argument of a recorded call: arguments[argument] (element >= 0: of that list) is
/// operand `operand` of the ExternCall node.
struct TensorSlot {
    int argument = 0;
    int element = -1;
    int operand = 0;
};

/// An ATen operator that stays a call. Node attribute `index` of an ExternCall names its entry.
struct ExternCallee {
    /// Which returned tensor, or which written operand, a result of the node is.
    struct Result {
        bool operand = false;  // true: operand `index` as it is after the call
        int index = 0;         // otherwise the index-th returned tensor, lists flattened
    };
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;  // tensors left out (None; lists keep their length)
    std::vector<TensorSlot> slots;
    std::vector<int> written;     // operands the call writes: the host hands it copies of them
    std::vector<Result> results;  // by result of the node
    /// Strides of each result as eager would give them (in elements).
    std::vector<Sizes> result_strides;
    /// Strides the operands had while recording; the host may hand over any others.
    std::vector<Sizes> operand_strides;
};

struct ViewStep;  // view_steps.h

/// How the caller gets output i of the recorded function.
struct OutputRecipe {
    enum class Kind {
        Graph,        // graph output `index`
        Input,        // the very tensor given as graph input `index`
        ViewOfInput,  // as_strided of input `index`; the offset counts from that input's offset
        ViewOfGraph,  // as_strided of graph output `index` (which may be no output of its own)
        Same,         // the same tensor object as output `index`
        None,         // no tensor was given
    };
    Kind kind = Kind::None;
    std::int32_t index = -1;
    Sizes sizes, strides;  // views only, in elements
    Expr offset;
    /// Views only: to PyTorch none, so that changes of it leave the other's history alone (detach).
    bool detached = false;
    bool apart = false;  // views only, `data`: with a version counter of its own
    ResultMarks marks;   // the memory is what lies there, whatever these show of it
    /// Views of inputs that take part in gradients: how they were made; null: by strides.
    std::shared_ptr<const std::vector<ViewStep>> steps;
};

class CustomFunction;

/// One ATen call as it was recorded. Tensors in `arguments` and `results` are the promises (or real
/// tensors) of that time; equal TensorImpl pointers mean the same tensor.
struct LoggedCall {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;
    std::vector<c10::IValue> results;
    bool grad_mode = true;  // whether gradients were recorded at that point
    /// This call and those behind it, `calls` together, are the forward of a function that has a
    /// backward of its own.
    std::shared_ptr<const CustomFunction> function;
    std::size_t calls = 0;
};

class Replay;

/// A function of the program whose backward is the program's code, not PyTorch's (a custom
/// `autograd.Function`). A recording of it is its forward's calls; where these are made again with
/// gradients it is asked to put its backward behind them.
class CustomFunction {
  public:
    CustomFunction() = default;
    virtual ~CustomFunction() = default;
    CustomFunction(const CustomFunction&) = delete;
    CustomFunction& operator=(const CustomFunction&) = delete;
    /// Makes the calls `forward` as one function, and binds its results.
    virtual void apply(Replay& replay, std::span<const LoggedCall> forward) const = 0;
    /// The same function with other tensors in place of those it refers to.
    using Map = std::function<at::Tensor(const at::Tensor&)>;
    virtual std::shared_ptr<const CustomFunction> mapped(const Map& map) const = 0;
};

/// One tensor that enters the graph.
struct InputSource {
    at::Tensor promise;   // the promise that stood for it
    at::Tensor captured;  // defined: a tensor the program found by itself (a buffer, a constant too
                          // large to embed); undefined: given to add_input, in order
    bool met = false;     // found by itself, whoever gives it
    bool silent = false;  // written, if at all, through `data` alone: no version counter notices
    std::int64_t offset = -1;  // >= 0: where it has to begin in its storage
};

/// A size of an input that may differ from call to call.
struct SymbolicSize {
    std::string name;  // the same name is the same size; empty: the size is the example's
    Range range{2, Range::kMax};
};

struct Recording {
    Graph graph;                        // with the guards on symbolic sizes under which it is valid
    std::vector<InputSource> inputs;    // by graph input
    std::vector<OutputRecipe> outputs;  // by output given to finish(), in order
    std::vector<ExternCallee> externs;
    std::vector<LoggedCall> log;
    c10::Device device{c10::kCPU};  // of all inputs and outputs
    bool uses_random = false;       // some extern call draws from a generator
    std::vector<Expr> numbers;      // the symbols of add_number, in order
    std::vector<Expr> computed;     // the integers given to finish(), in order
    /// What a symbolic expression is in the example.
    std::function<std::int64_t(Expr)> hint;
};

class RecorderState;    // recorder_state.h: what lowerings see
class OwnComposites;    // mode.h
struct JointRecording;  // autograd.h

/// One recording session. Used from one thread at a time.
class Recorder {
  public:
    Recorder();
    ~Recorder();
    Recorder(const Recorder&) = delete;
    Recorder& operator=(const Recorder&) = delete;

    /// A promise that stands for `real` (only its metadata is read). Graph inputs are numbered in
    /// the order of these calls; all come before the first captured tensor if all are made before
    /// recording starts. `frozen`: a parameter or buffer. The same TensorImpl given twice gives the
    /// same promise and no second graph input. Throws NotSupported for layouts other than strided,
    /// subclasses and quantised types.
    at::Tensor add_input(const at::Tensor& real, bool frozen, std::string name);
    /// The same with symbolic sizes: `sizes[d]` names the symbol of dim d or leaves it fixed. The
    /// recording holds for all sizes within the ranges for which Recording::graph's guards hold; it
    /// is the caller's choice which sizes to make symbolic. A size that PyTorch or a lowering needs
    /// as a number is specialised by a guard. `as`: recorded as if it lay on that device (to see a
    /// GPU's program without a GPU).
    at::Tensor add_input(const at::Tensor& real, bool frozen, std::string name,
                         std::span<const SymbolicSize> sizes,
                         std::optional<c10::Device> as = std::nullopt);
    /// A number the program is given beside its tensors (an int argument, the size of something),
    /// as a symbolic integer. Numbered in the order of these calls.
    c10::SymInt add_number(std::int64_t example, const SymbolicSize& symbol);
    /// A float that is known only when the program runs: an input, which the caller is to `give` as
    /// a 0-dim tensor of doubles. `real`: where a tensor of that kind with the example's value
    /// goes, by which the input is found among `inputs`. `device`: of the program's tensors.
    c10::SymFloat add_float(double example, c10::Device device, at::Tensor& real);
    /// For programs that meet their inputs while they run: `real` is met now, with symbolic sizes.
    /// Where it reaches an operator itself instead of its promise, its sizes are specialised, as
    /// what led there may have read them. One that needs a gradient must be a leaf; where gradients
    /// are followed its promise is one in its place.
    at::Tensor meet(const at::Tensor& real, std::span<const SymbolicSize> sizes);
    /// The promise that is a leaf to autograd in the place of a tensor that was met; undefined: the
    /// tensor is one itself, or none.
    at::Tensor leaf_for(const at::Tensor& met) const;
    /// The other way: the tensor that was met for which a promise stands; undefined: none.
    at::Tensor met_by(const at::Tensor& promise) const;
    /// The symbolic sizes of this recording.
    std::shared_ptr<SymbolicSizes> symbols() const;

    /// Records on this thread from construction to destruction. Scopes nest. Autograd keeps how
    /// each view is made meanwhile, and makes it again where a backward needs it, instead of a
    /// strided window of the base: `y[:, :2] = 0` gives `update` of a slice there, with symbolic
    /// sizes too.
    class Scope {
      public:
        /// With symbolic sizes declared before, products over them stay symbolic (see composite.h);
        /// sizes declared later are only specialised more often.
        explicit Scope(Recorder& recorder);
        ~Scope();
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;
        /// Takes composite operators apart as composite.h does from now on: sizes were declared as
        /// symbolic since it began, or tensors may come from a GPU.
        void take_composites_apart();

      private:
        bool replayed_views_;
        std::unique_ptr<OwnComposites> composites_;
        std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd_;
    };

    /// Python's argument parser stands a meaningless number in for a symbolic one where an operator
    /// takes a tensor; `read` says which number was meant, or nothing for any other tensor.
    using NumberReader = std::function<std::optional<c10::Scalar>(const at::Tensor& stand_in)>;
    /// Python wraps a float's node in one of its own; `unwrap` gives the float with ours.
    using FloatReader = std::function<c10::SymFloat(const c10::SymFloat& wrapped)>;
    void set_number_reader(NumberReader read, FloatReader unwrap = {});

    /// Ends the recording. `outputs`: what the program returned (undefined tensors: Kind::None);
    /// promises, or real tensors that were never touched (captured as they are).
    /// `numbers`: symbolic integers among the results.
    Recording finish(std::span<const at::Tensor> outputs,
                     std::span<const c10::SymInt> numbers = {});

    /// Ends the recording of a program whose outputs need gradients: its backward is recorded
    /// behind it (autograd.h). Inputs that take part have `requires_grad` set on their promises.
    /// Call without Python's lock: PyTorch's engine runs.
    JointRecording finish_joint(std::span<const at::Tensor> outputs);

    /// The reason why recording failed, if it did: the message of the first NotSupported (or other
    /// exception) that was thrown through PyTorch's frames.
    const std::optional<std::string>& failure() const;

    /// Forgets the failure: what raised it was carried out in another way.
    void clear_failure();
    /// Takes back the calls from `first` on, which an operator made before it failed, from the log.
    /// True if they did something beside their results: the graph has that still, so that only the
    /// log can serve the program now.
    bool take_back_calls(std::size_t first);

    /// Asked where an operator cannot be recorded: true if all promises are real tensors now and
    /// the operator is to be carried out on them. Without a reason it is only told, since PyTorch's
    /// graph of the promises would not do. For C code that runs operators unseen.
    using Giver = std::function<bool(std::string_view reason)>;
    void set_giver(Giver give_up);

    /// Whether `tensor` is a promise of this recorder.
    bool owns(const at::Tensor& tensor) const;

    // ---- for programs that meet their inputs while they run ----
    /// A tensor that needs a gradient may not enter while grad mode is on: NotSupported.
    void refuse_gradients();
    /// Whether that has refused one.
    bool refused_gradient() const;
    /// Or: it may if it is a leaf, and gradients flow to it itself. What would give an outside
    /// tensor a history is NotSupported before it happens.
    void follow_gradients();
    /// Whether finish_joint is needed: one of `outputs` needs a gradient and is no part of an
    /// input.
    bool needs_backward(std::span<const at::Tensor> outputs) const;
    /// What has entered the graph so far, by graph input.
    std::span<const InputSource> inputs() const;
    /// Input `input`, met by the program itself, will be given by the caller: of the tensors so
    /// marked and those of add_input, in order of the graph's inputs, a call is made.
    void give(std::size_t input, bool frozen);
    /// Whether a write to this tensor from outside can be followed.
    bool may_write(const at::Tensor& tensor);
    /// What was recorded so far.
    std::span<const LoggedCall> log() const;
    /// The promise of a tensor from outside, which becomes an input if it was none.
    at::Tensor promise_of(const at::Tensor& tensor);
    /// What `data` of a tensor, from outside or not, is: a promise of the same memory that has
    /// neither its history nor its version counter.
    at::Tensor data_of(const at::Tensor& tensor);
    /// `condition`, a boolean with one element, is true, or a call of the program fails with inputs
    /// as they were: eager then does what it does. A call of the log says so too.
    void assume(const at::Tensor& condition);
    /// Whether anything was assumed.
    bool assumes() const;
    /// Whether the promise's memory is an input's.
    static bool is_input(const at::Tensor& promise);
    /// What is recorded from here to `end_region` keeps nothing for a backward: it is computed
    /// again there, from what it was given. Regions do not nest. `given`: what eager saves of that,
    /// so that a change in place is an error.
    void begin_region(std::span<const at::Tensor> given);
    struct RegionEffects {
        bool writes = false;  // to memory that was there before
        bool draws = false;   // random numbers
    };
    RegionEffects end_region();
    /// The calls of the log from `first` on are the forward of `function`.
    void note_function(std::size_t first, std::shared_ptr<const CustomFunction> function);

  private:
    std::unique_ptr<RecorderState> state_;
};

/// Whether `tensor` is a promise of any recorder.
bool is_promise(const at::Tensor& tensor);

/// Whether this call is given images channels last, however they were recorded, and hands its
/// result over like that: what the convolutions around it use.
inline bool reads_channels_last(std::string_view callee) {
    return callee == "aten::max_pool2d_with_indices_backward";
}

/// Processors' gradient of fused attention, which reads heads wherever they lie and hands gradients
/// over with heads inside rows.
inline bool is_attention_gradient(std::string_view callee) {
    return callee == "aten::_scaled_dot_product_flash_attention_for_cpu_backward";
}

}  // namespace ingot::trace
