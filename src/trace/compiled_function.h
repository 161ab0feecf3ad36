// A recorded and compiled function of tensors: what Python's and C++'s callers call.
//
// Joins the core's program with PyTorch: checks the inputs' metadata, freezes parameters, allocates
// outputs, runs the program, rebuilds aliases from recipes. A call costs some 10 ns an input and
// one allocation an output beyond the program itself. Safe from many threads; needs no Python.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/driver.h"
#include "trace/extern_host.h"
#include "trace/gpu_graph.h"
#include "trace/recorder.h"
#include "trace/view_steps.h"

namespace ingot::trace {

class GraphMemory;
class GraphRoom;

/// Why a call cannot be served by the program.
enum class CallStatus {
    Done,
    OtherInputs,    // metadata differ from what was recorded, or a guard on sizes does not hold:
                    // nothing has happened
    KernelFailure,  // an index was out of range, or anything else failed: inputs and generators are
                    // as before, outputs void
};

/// What failed in a program, where it was not its kernels' own checks.
struct Failure {
    enum class Kind : std::uint8_t {
        Defect,  // of the compiler
        Memory,  // there is none
        Raised,  // by an operator
    };
    Kind kind = Kind::Defect;
    std::string what;
    std::exception_ptr raised;
};

/// What a function's making tells its maker, on the way; neither may throw. See CompileEvents.
struct MakingEvents {
    std::function<void(const Plan&, const TorchExterns&)> planned;
    std::function<void()> waiting;
};

class CompiledFunction {
  public:
    /// Compiles `recording`. `examples` are the tensors given to Recorder::add_input, in order,
    /// `promises` what it returned; `outputs` were given to Recorder::finish.
    CompiledFunction(Recording recording, std::span<const at::Tensor> examples,
                     std::span<const at::Tensor> promises, std::vector<at::Tensor> outputs,
                     std::shared_ptr<const runtime::Compiler> compiler,
                     runtime::CompileOptions options,
                     const runtime::InterruptCheck& interrupted = {},
                     const MakingEvents& events = {});
    ~CompiledFunction();

    std::size_t input_count() const { return slots_.size(); }
    std::size_t output_count() const { return recipes_.size(); }

    /// Runs the program. outputs: as many as were given to finish(), undefined where none was.
    /// `numbers`: the values of Recorder::add_number's, in order; `computed`: those of the symbolic
    /// integers given to finish().
    /// An exception is the failure of a program whose inputs cannot be put back, or a GPU's late
    /// error.
    CallStatus call(std::span<c10::TensorImpl* const> inputs, std::vector<at::Tensor>& outputs,
                    std::span<const std::int64_t> numbers = {},
                    std::vector<std::int64_t>* computed = nullptr) {
        GraphUse use;
        return call(inputs, outputs, numbers, computed, nullptr, use);
    }
    /// The same for a program that writes none of its inputs: `inputs` are given away, each is
    /// freed after its last use, and results are allocated when they are first written. So what is
    /// alive at once is the least; `inputs` is left in an arbitrary state.
    /// `graph`: whether a CUDA graph may serve; `inputs` are kept until the end then.
    CallStatus call_with(std::vector<at::Tensor>& inputs, std::vector<at::Tensor>& outputs,
                         std::span<const std::int64_t> numbers = {}, bool graph = true);
    /// call_with() that stops on the way, for whoever wants some results before the others
    /// (call_parts.h). Times: after how many steps each result is there.
    class Parts;
    struct Times {
        std::shared_ptr<const void> form;  // of the program that has these steps
        std::vector<std::size_t> results;
    };
    /// Nothing where its calls cannot stop: on a GPU, with symbolic sizes.
    std::optional<Times> times() const;
    /// call(), which also says whether a CUDA graph served: its results then lie where they lay.
    CallStatus call_tracked(std::span<c10::TensorImpl* const> inputs,
                            std::vector<at::Tensor>& outputs, std::span<const std::int64_t> numbers,
                            std::vector<std::int64_t>* computed, bool& by_graph);
    /// Works in `arena`, which may serve other functions too, from now on. Before the first call.
    void share_arena(std::shared_ptr<runtime::SharedArena> arena) { arena_ = std::move(arena); }
    /// The memory of the first `count` results goes back to the system when the caller frees them,
    /// not into the pool that further results are made of. Before the first call.
    void return_results(std::size_t count);
    /// What messages call the caller's inputs, in order; empty: what the recording calls them.
    void name_inputs(std::span<const std::string> names);
    /// Its CUDA graphs work in `memory`, by turns with those of other functions. Before the first
    /// call.
    void share_graph_memory(std::shared_ptr<GraphMemory> memory);
    const std::shared_ptr<GraphMemory>& graph_memory() const { return graph_memory_; }
    /// How a CUDA graph gets at an input.
    enum class Reading : std::uint8_t {
        InPlace,  // where it lies; a graph is good for inputs that lie there
        Movable,  // the same until it has moved once, then Copied
        Copied,   // copied into memory of the graph's own
    };
    const std::vector<Reading>& readings() const { return reading_; }
    /// For a backward: how its inputs are read. Its graphs take turns as the forward's do.
    void set_readings(std::vector<Reading> readings);
    /// For a forward: results but the first `count` stay where a graph wrote them, which cannot be
    /// replayed before the backward has read them. Small ones of the first are copied out, so that
    /// a caller who keeps them does not keep the graph busy.
    void copy_results_out(std::size_t count);
    /// For a forward, by graph output: whether only its backward reads it, which may overwrite it
    /// then. Its CUDA graphs share rooms with the backward's (graph_memory.h).
    void save_in_rooms(std::vector<bool> outputs);
    /// What this forward and its backward need in a room, with the backward's results or without.
    std::int64_t room_bytes(const CompiledFunction& backward, const std::vector<bool>& dying,
                            bool results) const;
    /// For that backward, by caller's input: the same values.
    void enter_rooms(const std::vector<bool>& inputs);
    /// The symbols of this program; empty when it serves one set of sizes only.
    std::span<const Expr> symbols() const { return symbols_; }
    /// The relations between them under which it is valid, as text, for people.
    std::vector<std::string> guards() const;
    /// Runs the recorded ATen calls one by one, as eager does; raises what eager raises. Inputs
    /// must have the recorded metadata.
    std::vector<at::Tensor> replay(std::span<c10::TensorImpl* const> inputs,
                                   std::span<const std::int64_t> numbers = {}) const;
    /// The same; the results `cuts` are leaves to what is computed from them, which `leaves`
    /// become.
    std::vector<at::Tensor> replay_cut(std::span<c10::TensorImpl* const> inputs,
                                       std::span<const std::int64_t> numbers,
                                       std::span<const std::size_t> cuts,
                                       std::vector<at::Tensor>& leaves) const;

    /// What the latest KernelFailure was; once.
    std::optional<Failure> take_failure();
    /// What it was made from, as others are to be made that do a part of it.
    const Graph& graph() const { return graph_; }
    std::span<const OutputRecipe> recipes() const { return recipes_; }
    const std::vector<ExternCallee>& externs() const { return externs_->table(); }

    /// True if a call is so short that giving up Python's lock costs more than it is worth.
    bool is_short() const { return short_; }
    const runtime::CompileReport& report() const { return report_; }
    /// Frees arenas' and frozen memory; later calls make it again.
    void release_memory();
    std::int64_t frozen_bytes() const;
    /// Whether calls go through a CUDA graph, or why not.
    std::string graph_state() const;
    /// What a call needs for values that live only while it runs; 0 when sizes are symbolic.
    std::int64_t arena_bytes() const;
    /// Calls of libraries that the latest program carries out without them; null before it knows.
    std::shared_ptr<const runtime::DirectCalls> direct_calls() const;
    /// What measuring the forms of kernels has come to.
    std::string tuning_state() const;
    /// How often frozen values were computed.
    std::int64_t freeze_count() const { return freezes_.load(std::memory_order_relaxed); }

  private:
    struct Slot {
        Sizes sizes, strides;
        c10::ScalarType dtype;
        c10::Device device{c10::kCPU};
        c10::DispatchKeySet keys;  // those that change what an operator means
        std::int32_t graph_input = -1;
        std::int64_t offset = -1;  // see InputSource
    };
    using Numbers = std::vector<std::int64_t>;
    /// The program for one set of sizes: everything symbolic as numbers.
    struct Sized {
        Numbers values;  // by symbol
        std::shared_ptr<const runtime::Instance> instance;
        struct View {
            Numbers sizes, strides;
            std::int64_t offset = 0;
            std::shared_ptr<const ViewSteps> steps;  // without symbols
        };
        std::vector<View> inputs;  // by caller's input
        std::vector<View> views;   // by recipe
        Numbers computed;
    };
    /// One compiled form; replaced by one with packed weights, and when parameters turn out to
    /// change at every call.
    struct Variant {
        std::shared_ptr<const runtime::Program> program;
        std::shared_ptr<const Sized> fixed;  // without symbols: the only one
        // With symbols: the latest few, newest first.
        mutable std::mutex mutex;
        mutable std::vector<std::shared_ptr<const Sized>> recent;
    };
    /// Where a symbol's value is read from.
    struct Source {
        std::int32_t number = -1;  // >= 0: the caller's number
        std::int32_t input = -1;   // otherwise: size `dim` of the caller's input
        std::int32_t dim = -1;
    };
    struct GraphUse {
        bool allowed = true, served = false;
    };
    struct CallFrame;
    struct Captured;
    /// CUDA graphs of this function (graph_calls.cpp).
    struct GraphCalls {
        GraphCalls();
        ~GraphCalls();
        std::atomic<bool> wanted{false};
        mutable std::mutex mutex;  // of what follows
        std::string reason;        // what became of them, in words
        int calls = 0, recordings = 0;
        std::size_t most = 3;     // at once
        bool alternates = false;  // inputs lie in one of several places by turns
        std::vector<bool> saved;  // of a forward with rooms, by graph output
        std::vector<bool> dying;  // of a backward with rooms, by graph input
        std::vector<std::unique_ptr<Captured>> list;
    };
    class GivenMemory;

    /// The device to make current for a call, if that matters.
    std::optional<c10::Device> gpu() const {
        return device_.is_cuda() ? std::optional(device_) : std::nullopt;
    }
    void add_slots(std::span<const at::Tensor> examples, std::span<const at::Tensor> promises);
    void prepare_graph(std::span<const at::Tensor> examples);
    std::shared_ptr<const Variant> compile(const Graph& graph, bool pack,
                                           runtime::CompileReport* report,
                                           const runtime::InterruptCheck& interrupted,
                                           const MakingEvents& events = {});
    void find_symbols();
    /// Which symbols an instance of the program depends on, not only guards and `computed_`.
    void find_what_matters(const runtime::Program& program);
    bool serves(const Sized& sized, std::span<const std::int64_t> values) const;
    bool read_values(std::span<c10::TensorImpl* const> inputs,
                     std::span<const std::int64_t> numbers, std::span<std::int64_t> values) const;
    bool guards_hold(std::span<const std::int64_t> values) const;
    std::shared_ptr<const Sized> sized(const Variant& variant,
                                       std::span<const std::int64_t> values) const;
    std::shared_ptr<const Sized> find_sized(const Variant& variant,
                                            std::span<c10::TensorImpl* const> inputs,
                                            std::span<const std::int64_t> numbers) const;
    bool accepts(const Sized& sized, std::span<c10::TensorImpl* const> inputs) const;
    bool aliases_as_recorded(std::span<c10::TensorImpl* const> inputs) const;
    CallStatus call(std::span<c10::TensorImpl* const> inputs, std::vector<at::Tensor>& outputs,
                    std::span<const std::int64_t> numbers, std::vector<std::int64_t>* computed,
                    std::vector<at::Tensor>* given, GraphUse& use);
    void bind_inputs(CallFrame& frame) const;
    void bind_outputs(CallFrame& frame) const;
    at::Tensor make_result(const runtime::OutputSlot& slot, std::size_t output) const;
    void freeze(CallFrame& frame);
    /// How far a call has come.
    enum class Stage : std::uint8_t { Binding, Running, Collecting };
    bool can_put_back(const CallFrame& frame, Stage stage) const;
    /// Of the exception being handled.
    void note_failure(const std::exception& failure);
    void make_ready(const Variant& variant, const std::function<std::int64_t(Expr)>& hint) const;
    void note_change(const CallFrame& frame, std::span<const runtime::InputState> states);
    void unfreeze();
    /// Whether so much is to be packed that a first call does better without.
    bool should_pack_later() const;
    /// Has the packed form made if all weights are what they were at the last call, and goes over
    /// to it when it is there; true if it did.
    bool pack_if_unchanged(std::span<c10::TensorImpl* const> inputs);
    bool pack_now(std::unique_lock<std::mutex> lock);
    /// Has the forms of kernels measured from the second call on, and goes over to the program with
    /// the best ones when it is there; true if it did.
    bool tune();
    bool should_tune();
    runtime::CompileOptions options_for(bool pack) const;
    std::shared_ptr<const Variant> variant_of(
        std::shared_ptr<const runtime::Program> program) const;
    void collect(CallFrame& frame) const;
    void collect(CallFrame& frame, std::size_t output) const;
    void write_back(CallFrame& frame) const;
    /// The program has written to this input: its version counter notices, as in eager.
    void note_written(std::int32_t input, c10::TensorImpl& tensor) const;
    void build_outputs(CallFrame& frame, std::vector<at::Tensor>& outputs) const;
    /// Result `i`; `before`: those before it.
    at::Tensor build_output(const CallFrame& frame, std::size_t i,
                            std::span<const at::Tensor> before) const;
    void prepare_graphs(std::span<const at::Tensor> examples);
    void drop_graphs();
    void give_up_graphs(std::string reason);
    bool call_graph(std::span<c10::TensorImpl* const> inputs,
                    const std::shared_ptr<const Variant>& variant,
                    const std::shared_ptr<const Sized>& sized, std::vector<at::Tensor>& outputs);
    void record_graph(std::span<c10::TensorImpl* const> inputs,
                      const std::shared_ptr<const Variant>& variant,
                      const std::shared_ptr<const Sized>& sized);
    bool replay_graph(Captured& graph, std::span<c10::TensorImpl* const> inputs,
                      const std::shared_ptr<const Variant>& variant,
                      const std::shared_ptr<const Sized>& sized, std::vector<at::Tensor>& outputs);
    void find_ahead(Captured& graph) const;
    void drop_unusable(std::span<c10::TensorImpl* const> inputs,
                       const std::shared_ptr<const Sized>& sized);
    bool serves(const Captured& graph, std::span<c10::TensorImpl* const> inputs,
                const std::shared_ptr<const Sized>& sized) const;
    bool make_space(std::span<c10::TensorImpl* const> inputs,
                    const std::shared_ptr<const Sized>& sized);
    std::shared_ptr<GraphRoom> room_of(std::span<c10::TensorImpl* const> inputs) const;
    bool gives_inputs_away(std::span<c10::TensorImpl* const> inputs) const;
    bool reads_in_place(const Captured& graph, std::span<c10::TensorImpl* const> inputs,
                        bool movable = true) const;
    c10::TensorImpl* graph_input(std::span<c10::TensorImpl* const> inputs, std::size_t i) const;

    Graph graph_;
    std::vector<Slot> slots_;                 // by caller's input
    std::vector<std::int32_t> from_caller_;   // by graph input: the caller's position or -1
    std::vector<at::Tensor> captured_;        // by graph input, where no caller gives it
    std::vector<std::uint8_t> silent_;        // by graph input: see InputSource
    std::vector<std::int64_t> offsets_;       // likewise
    std::vector<Reading> reading_;            // by graph input
    std::vector<bool> copied_out_;            // by graph output: of a graph's calls
    std::vector<std::string> names_;          // by graph input: see name_inputs
    std::vector<bool> returned_;              // by graph output: see return_results; empty: none
    std::vector<at::Tensor> input_promises_;  // by graph input
    std::vector<at::Tensor> output_promises_;
    std::vector<OutputRecipe> recipes_;
    std::vector<LoggedCall> log_;
    std::vector<Expr> numbers_;          // the symbols that the caller gives as numbers
    std::vector<Expr> computed_;         // numbers the caller gets
    c10::Device device_;                 // of every tensor
    std::vector<std::int32_t> written_;  // graph inputs that the program writes
    std::vector<Expr> symbols_;
    std::vector<Source> sources_;  // by symbol
    std::vector<bool> matters_;    // by symbol
    bool draws_ = false;           // random numbers
    bool all_matter_ = false;      // extern calls have symbolic arguments
    bool short_ = false;

    std::shared_ptr<const runtime::Compiler> compiler_;
    runtime::CompileOptions options_;
    std::unique_ptr<TorchExterns> externs_;
    TorchThreads threads_;
    std::shared_ptr<runtime::SharedArena> arena_;  // or null
    std::shared_ptr<GraphMemory> graph_memory_;    // where there may be CUDA graphs
    runtime::CompileReport report_;

    std::atomic<std::shared_ptr<const Variant>> variant_;
    std::atomic<bool> packs_later_{false};
    std::atomic<bool> tunes_{false};
    std::atomic<int> changes_in_a_row_{0};
    std::atomic<std::int64_t> freezes_{0};
    mutable std::mutex mutex_;  // of what follows, and of variant_'s replacement
    std::optional<Failure> failure_;
    std::vector<runtime::InputState> last_states_;      // by graph input
    std::vector<int> changes_;                          // by graph input, since the last quiet call
    std::vector<runtime::InputState> seen_states_;      // while packs_later_: of frozen inputs
    std::unique_ptr<runtime::PendingProgram> packing_;  // the packed form, while it is made
    int calls_untuned_ = 0;
    std::unique_ptr<runtime::PendingProgram> tuning_;  // while forms are measured
    std::shared_ptr<runtime::TuningReport> tuning_report_;
    std::string tuning_state_ = "not asked for";
    GraphCalls graphs_;
};

}  // namespace ingot::trace
