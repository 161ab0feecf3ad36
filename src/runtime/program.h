// A compiled graph as a flat list of steps that a loop walks: kernels and extern calls, over one
// arena.
//
// A Program holds a plan and its machine code. An Instance is the program for one set of values of
// the plan's symbols: every size, offset and amount of work is a number in it. A Context is what
// one call needs for itself (arena, scratch, argument pointers); instances keep a few for reuse, so
// a call allocates nothing, and any number of threads may call at once. A call costs a comparison
// per input plus, for each launch, a loop iteration; launches too small for threads run inline.
//
// Last stage of the flow: made by driver.h, called by the PyTorch layer or by tests.
#pragma once
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "codegen/compiled.h"
#include "runtime/arena_pieces.h"
#include "runtime/cuda/driver_api.h"
#include "runtime/cuda/recorded_work.h"
#include "runtime/fingerprint.h"
#include "runtime/host.h"
#include "runtime/memory.h"
#include "schedule/plan.h"

namespace ingot::runtime {

/// One parallel region of a kernel: its code and what the runtime must know to call it.
struct LaunchCode {
    KernelFn function = nullptr;
    Launch launch;
    cuda::Handle gpu_function = nullptr;  // on a GPU, instead of the two above
    GpuLaunch gpu;
};
/// The machine code of one of Plan::kernels.
struct KernelLaunches {
    std::vector<LaunchCode> launches;
};

/// What the graph says about one of its outputs.
struct ProgramOutput {
    Type type;
    Sizes strides;                   // what the caller expects
    std::int32_t writes_input = -1;  // >= 0: the new contents of that input
};

/// How a graph output reaches its caller.
enum class OutputMode : std::uint8_t {
    Direct,  // the caller hands memory over with Context::set_output
    Adopt,   // an extern call makes it; the caller takes Context::take_owner(buffer)
    Copy,    // the caller copies it from Context::pointer(buffer) after the run
    Done,    // an input, written in place by the program itself
};
struct OutputSlot {
    OutputMode mode = OutputMode::Direct;
    std::int32_t buffer = -1;
    Layout layout;                   // what the caller expects
    Layout source;                   // Copy: the layout of `buffer`
    std::int32_t writes_input = -1;  // >= 0: to be copied into this input after the run
};

/// Identity and contents' version of a frozen input at one call. `storage` and `data` may be
/// compared only while what `pin` returned is alive. `event`: the last one that may have written
/// the input without a version's knowing.
struct InputState {
    const void* storage = nullptr;
    const void* data = nullptr;
    std::uint64_t version = 0;
    std::uint64_t event = 0;
    friend bool operator==(const InputState&, const InputState&) = default;
};

/// Folded and packed values, and the inputs they were made from. Immutable once published.
struct FrozenState {
    std::vector<InputState> keys;  // by frozen input
    std::vector<std::shared_ptr<const void>> pins;
    Block block;                              // all of them, one behind the other
    std::vector<DeviceMemory> device_blocks;  // instead, on a GPU
    std::vector<std::shared_ptr<void>> owners;
    std::vector<void*> pointers;  // by position in Instance's list of frozen buffers
    std::unique_ptr<const Fingerprint> fingerprint;  // of the inputs; or null
    // The event up to which no input has changed.
    mutable std::atomic<std::uint64_t> unchanged_at{0};
};

/// How a call makes sure that frozen values are those of the inputs beyond their states.
struct FrozenCheck {
    bool fingerprint = false;  // take one of the inputs when they are made
    bool always = false;       // compare all of it at every call
    std::uint64_t event = 0;   // grows when something may have written unseen: compare all of it
};

/// Where the elements of one of a plan's buffers lie, with these values of its symbols.
Layout layout_of(const Buffer& buffer, const std::function<std::int64_t(Expr)>& symbols);

class DirectCalls;
class Instance;
class Program;

/// An arena that several programs work in by turns, as a forward and its backward do. Keeps one
/// block, the biggest there was. Safe from many threads: whoever comes second gets a fresh one.
class SharedArena {
  public:
    SharedArena() = default;
    /// Keeps none of more than `most_kept` bytes: it is there while a program runs, and no longer.
    explicit SharedArena(std::size_t most_kept) : most_kept_(most_kept) {}
    Block take(std::size_t bytes);
    void give_back(Block block);
    void clear();

  private:
    const std::size_t most_kept_ = std::numeric_limits<std::size_t>::max();
    std::mutex mutex_;
    Block block_;
};

/// What one call at a time works in. Obtained from Instance::lease.
class Context {
  public:
    /// Where graph input `input` lies. Cheap when it has not changed since this context's last
    /// call.
    void set_input(std::size_t input, void* data);
    void set_output(std::size_t output, void* data);
    void* pointer(std::int32_t buffer) const { return table_[buffer]; }
    /// On a GPU: works in `memory`, which must be as big as the instance's arena, until the lease
    /// ends.
    void lend_arena(void* memory);
    /// The owner of an extern call's result; moves it out.
    std::shared_ptr<void> take_owner(std::int32_t buffer);
    std::int64_t error() const { return error_; }
    /// Which frozen values it reads: equal pointers mean the same memory.
    const void* frozen() const { return frozen_.get(); }

  private:
    friend class Instance;
    explicit Context(const Instance& instance);
    void patch(std::int32_t buffer, void* data);
    /// Makes the arena big enough for the scratch memory of all threads there are now.
    void begin_steps(const Threads& threads);
    void take_arena(const DeviceHost& device);
    void place_device_arena(void* memory);
    void take_scratch(const DeviceHost& device);
    void take_results(const DeviceHost& device, const DirectCalls& direct);
    /// Works in `arena` from now on, which must be as big as the instance's.
    void set_arena(Block arena);
    void place_piece(const ArenaPiece& piece, void* memory);
    void prepare_memory(bool pieces);

    const Instance& instance_;
    Block arena_;
    void* arena_base_ = nullptr;  // where the pointers into the arena lead
    int threads_ = 1;             // at most, in the run under way
    std::vector<void*> table_;    // by buffer
    std::vector<void*> arguments_;
    std::vector<std::shared_ptr<void>> owners_;       // by buffer
    std::vector<std::shared_ptr<void>> step_owners_;  // of the extern call that runs
    std::shared_ptr<const FrozenState> frozen_;
    std::int64_t error_ = kNoError;
    // On a GPU: memory of the call under way, the parameters of all launches (pointers to
    // arguments_, sizes and the error word).
    DeviceMemory device_arena_, device_scratch_, device_results_;
    void* results_base_ = nullptr;  // where all placed results of direct calls lie, if they do
    bool lent_ = false;             // the arena is somebody else's
    void* gpu_scratch_ = nullptr;   // where device_scratch_ lies
    std::vector<void*> parameters_;
    // What direct calls write addresses into, by extern call, and whose they are.
    std::shared_ptr<const DirectCalls> direct_;
    std::vector<std::optional<cuda::DirectCall::Launches>> direct_launches_;
};

/// The program for one set of sizes. Immutable apart from its caches; safe from many threads.
class Instance {
  public:
    /// `symbols` gives the value of each of the plan's symbols.
    Instance(std::shared_ptr<const Program> program, const ExternHost& externs,
             const std::function<std::int64_t(Expr)>& symbols);
    ~Instance();
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;

    std::span<const Layout> inputs() const { return inputs_; }
    std::span<const OutputSlot> outputs() const { return outputs_; }
    /// Positions of the inputs that the frozen values are made from.
    std::span<const std::int32_t> frozen_inputs() const { return frozen_inputs_; }
    /// Whether calls must `freeze` before they run.
    bool has_frozen_steps() const { return !frozen_steps_.empty(); }
    std::int64_t arena_bytes() const { return arena_bytes_; }
    /// The most bytes of blocks of 1 MiB and more that a run with pieces has at once: pieces, what
    /// extern calls make, results unless they lie elsewhere, and those inputs that are `given`, by
    /// input, which go after their last use. What libraries need inside is not known.
    std::int64_t most_lent(const std::vector<bool>& given, bool results) const;
    std::int64_t frozen_bytes() const { return frozen_bytes_; }
    /// Whether a kernel that checks indices, so that error() may be set, runs when graph input
    /// `input` has been written: it then needs a copy to go back to.
    bool may_spoil(std::size_t input) const { return may_spoil_[input]; }
    /// Whether it is, or may be, written before the last call of a library, which may want memory.
    bool is_written_early(std::size_t input) const { return written_early_[input]; }
    std::size_t launch_count() const { return launches_.size(); }
    std::size_t extern_count() const { return externs_.size(); }
    /// On a GPU: which of the extern calls are carried out without their library, once that is
    /// known (see direct_calls.h).
    std::shared_ptr<const DirectCalls> direct() const;

    /// A context nobody else uses; goes back to the instance when the lease ends.
    class Lease {
      public:
        Lease(const Instance& instance, std::unique_ptr<Context> context, SharedArena* arena)
            : instance_(&instance), context_(std::move(context)), arena_(arena) {}
        Lease(Lease&&) = default;
        Lease& operator=(Lease&&) = delete;
        ~Lease() {
            if (context_) instance_->give_back(std::move(context_), arena_);
        }
        Context& operator*() const { return *context_; }
        Context* operator->() const { return context_.get(); }

      private:
        const Instance* instance_;
        std::unique_ptr<Context> context_;
        SharedArena* arena_;
    };
    /// With `arena`, which must outlive the lease, the context works in that one while it is lent;
    /// give an instance's leases always or never one.
    Lease lease(SharedArena* arena = nullptr) const;

    /// Whether the program runs on a GPU. The caller then makes its device current before any call,
    /// and run() returns when the work has been handed to the current stream.
    bool on_gpu() const { return gpu_ != nullptr; }

    /// On a GPU: throws Error if an index was out of range in an earlier call. run() does this too.
    void check_gpu_error() const;
    /// Runs all steps: inputs, outputs (Direct ones) and frozen values must be set. A nonzero
    /// Context::error() afterwards means that the outputs are void; on the processor, the step that
    /// set it was the last one. Exceptions of extern calls
    /// pass. With `memory`, results' memory is asked for and inputs are given back on the way, and
    /// there is no arena if it lends pieces.
    /// `direct`: whether a GPU's extern calls may be carried out without their libraries.
    void run(Context& context, const Threads& threads, RunMemory* memory = nullptr,
             bool direct = true) const;
    /// By graph output: how many steps have been run when none of the others touches it. All of
    /// them for one that is copied.
    std::vector<std::size_t> settled() const;
    std::size_t step_count() const { return steps_.size(); }
    /// On the processor: run() of steps `begin` to `end` only; those before have been run.
    void run_part(Context& context, const Threads& threads, RunMemory& memory, std::size_t begin,
                  std::size_t end) const;

    /// On a GPU: of the first steps those up to the last that reads input `input`, if they are few
    /// and all of them kernels; else 0.
    std::size_t steps_until_read(std::size_t input) const;
    /// Launches that many first steps, in memory that a run with pieces has lent to `context`.
    void run_first(Context& context, std::size_t steps) const;

    /// The frozen values for the inputs as they are now: those at hand if `states` (by
    /// frozen_inputs()) are the ones they were made from, else made anew from the context's inputs.
    /// `pin(i)` keeps the storage of frozen input i from being reused by another. True: made anew.
    bool freeze(Context& context, std::span<const InputState> states, const Threads& threads,
                const std::function<std::shared_ptr<const void>(std::size_t)>& pin,
                const FrozenCheck& check = {}) const;
    /// After freeze() has made nothing: which frozen inputs (positions in frozen_inputs()) are no
    /// longer those that the context's frozen values were made from, as far as it looks: at a part
    /// of them, at all of them where `check` wants it.
    std::vector<std::size_t> changed_unseen(const Context& context, const Threads& threads,
                                            const FrozenCheck& check) const;
    /// Frees the frozen values; the next call makes them again.
    void drop_frozen() const;

  private:
    friend class Context;
    friend class Program;
    struct LaunchStep {
        KernelFn function;
        std::uint32_t arguments, argument_count;  // positions in Context::arguments_
        std::uint32_t sizes;                      // first position in sizes_
        std::int64_t work, grain, scratch_bytes;  // scratch: of a thread
        std::int64_t scratch_offset = 0;          // where it begins in the arena
        cuda::Handle gpu_function = nullptr;
        bool overlaps = false;
        unsigned blocks = 0, instances = 1, threads = 0, shared = 0;
        std::uint32_t parameters = 0;  // first position in Context::parameters_
        std::uint32_t size_count = 0;
    };
    struct ExternStepCall {
        std::unique_ptr<ExternCall> call;
        std::uint32_t inputs, input_count;  // positions in Context::arguments_
        std::uint32_t outputs, output_count;
    };
    struct StepRef {
        bool is_extern;
        std::uint32_t index;
        std::vector<std::int32_t> drops;     // extern buffers that die after this step
        std::vector<std::int32_t> makes;     // Direct outputs that this step is the first to touch
        std::vector<std::int32_t> releases;  // inputs that no later step touches
        std::vector<std::int32_t> opens;     // pieces of the arena that it is the first to touch
        std::vector<std::int32_t> closes;    // and those that no later step touches
    };
    struct BufferInfo {
        BufferPlace place;
        std::int32_t index;
        std::int64_t offset, bytes;
        Layout layout;
        const void* constant = nullptr;
        std::int32_t base = -1;                      // a view into that buffer, at `offset`
        std::vector<std::int32_t> views;             // into this buffer
        std::uint32_t first_use = 0, use_count = 0;  // range of uses_
    };
    using Symbols = std::function<std::int64_t(Expr)>;

    void add_buffers(const Plan& plan, const Symbols& symbols);
    void add_outputs(const Plan& plan, const Symbols& symbols);
    void adopt_extern_outputs(const Plan& plan);
    bool makes_own_memory(std::int32_t buffer) const {
        return buffers_[buffer].place == BufferPlace::Extern && buffers_[buffer].base < 0;
    }
    std::int32_t root(std::int32_t buffer) const {
        return buffers_[buffer].base < 0 ? buffer : buffers_[buffer].base;
    }
    void find_frozen(const Plan& plan);
    void find_drops();
    void find_memory_events();
    void find_pieces();
    /// Scratch memory lies behind what is alive in the arena at its step.
    void place_scratch();
    void find_spoiled(const Plan& plan);
    /// The buffers of a step, views among them.
    std::span<const std::int32_t> buffers_of(const StepRef& step) const;
    void add_steps(const Plan& plan, const std::vector<Step>& steps, const ExternHost& externs,
                   const Symbols& symbols, std::vector<StepRef>& into);
    void add_kernel(const Plan& plan, const KernelStep& step, const Symbols& symbols,
                    std::vector<StepRef>& into);
    void add_extern(const ExternStep& step, const ExternHost& externs, std::vector<StepRef>& into);
    void index_uses();
    void prepare_gpu(const ExternHost& externs);
    void add_gpu_launch(const LaunchCode& code, LaunchStep step, const Symbols& by_kernel,
                        std::vector<StepRef>& into);
    void allocate_frozen(FrozenState& state) const;
    /// Where the frozen inputs lie.
    std::vector<const void*> frozen_data(const Context& context) const;
    std::shared_ptr<FrozenState> reusable_state(Context& context) const;
    void forget_frozen() const;
    void launch(const LaunchStep& step, Context& context, void* stream) const;
    void before_step(const StepRef& step, Context& context, RunMemory& memory) const;
    void after_step(const StepRef& step, RunMemory& memory) const;
    void run_steps(std::span<const StepRef> steps, Context& context, const Threads& threads,
                   RunMemory* memory) const;
    void run_gpu_steps(const std::vector<StepRef>& steps, Context& context, RunMemory* memory,
                       const DirectCalls* direct = nullptr) const;
    bool run_direct(std::uint32_t index, Context& context, const DirectCalls& direct,
                    void* stream) const;
    void adopt_results(const ExternStepCall& step, Context& context) const;
    std::shared_ptr<const DirectCalls> direct_calls(Context& context) const;
    std::shared_ptr<const DirectCalls> learn_direct_calls(const Context& context, void* stream,
                                                          std::uint64_t settings) const;
    const char* why_not_direct(const ExternStepCall& step) const;
    void place_results(DirectCalls& direct) const;
    void run_launch(const LaunchStep& launch, Context& context, const Threads& threads,
                    int available) const;
    void run_extern(const ExternStepCall& step, Context& context) const;
    void attach(Context& context, std::shared_ptr<const FrozenState> state) const;
    void give_back(std::unique_ptr<Context> context, SharedArena* arena) const;

    std::shared_ptr<const Program> program_;  // owns code and constants
    std::vector<BufferInfo> buffers_;
    std::vector<Layout> inputs_;
    std::vector<std::int32_t> input_buffers_;
    std::vector<OutputSlot> outputs_;
    std::vector<LaunchStep> launches_;
    std::vector<std::uint32_t> with_scratch_;  // of launches_
    std::vector<ExternStepCall> externs_;
    std::vector<std::int64_t> sizes_;
    std::vector<std::int32_t> argument_buffers_;  // by position in Context::arguments_
    std::vector<std::uint32_t> uses_;             // positions in arguments_, grouped by buffer
    std::vector<StepRef> steps_, frozen_steps_;
    std::vector<std::int32_t> untouched_outputs_;  // Direct outputs that no step touches
    std::vector<ArenaPiece> pieces_;
    std::vector<std::int32_t> frozen_inputs_, frozen_buffers_;
    std::int64_t arena_bytes_ = 0, frozen_bytes_ = 0;
    std::int64_t gpu_scratch_bytes_ = 0;  // that all launches on a GPU share
    std::uint32_t max_extern_outputs_ = 0, parameter_count_ = 0;
    std::vector<bool> may_spoil_, written_early_;  // by graph input
    std::shared_ptr<const cuda::Gpu> gpu_;         // null on the processor
    const DeviceHost* device_ = nullptr;           // of the caller
    std::unique_ptr<cuda::HostWord> gpu_error_;
    void* error_parameter_ = nullptr;  // the word's address, as kernels get it
    std::vector<DeviceMemory> constants_;
    std::vector<std::int32_t> arena_buffers_;

    mutable std::mutex mutex_;  // pool_
    mutable std::vector<std::unique_ptr<Context>> pool_;
    mutable std::mutex direct_mutex_;  // what follows
    mutable std::shared_ptr<const DirectCalls> direct_;
    mutable int direct_runs_ = 0, direct_learnings_ = 0;
};

/// A plan with its machine code.
class Program : public std::enable_shared_from_this<Program> {
  public:
    /// code: what keeps the functions in `kernels` alive.
    Program(Plan plan, std::vector<KernelLaunches> kernels, std::vector<ProgramOutput> outputs,
            std::vector<std::shared_ptr<const void>> code,
            std::shared_ptr<const cuda::Gpu> gpu = nullptr);

    /// The GPU it runs on, or null.
    const std::shared_ptr<const cuda::Gpu>& gpu() const { return gpu_; }
    const Plan& plan() const { return plan_; }
    const std::vector<KernelLaunches>& kernels() const { return kernels_; }
    const std::vector<ProgramOutput>& outputs() const { return outputs_; }
    /// The symbols of the plan, in the order that `instance` wants values.
    const std::vector<Expr>& symbols() const { return symbols_; }

    /// The instance for these values; the one in use
    /// if there is one.
    std::shared_ptr<const Instance> instance(const ExternHost& externs,
                                             std::span<const std::int64_t> values = {}) const;

    /// On the processor: has the memory for frozen values cleared ahead of the call that fills it,
    /// as the system takes longer for that than the call for the filling. `stop` is asked on the
    /// way.
    void reserve_frozen(const std::function<bool()>& stop) const;
    /// Gives it back if it has not been used.
    void drop_reserve() const;

  private:
    friend class Instance;
    /// The frozen values, out of the store and out of all idle contexts.
    std::shared_ptr<const FrozenState> take_frozen() const;
    Block take_reserve(std::size_t bytes) const;

    Plan plan_;
    std::vector<KernelLaunches> kernels_;
    std::vector<ProgramOutput> outputs_;
    std::vector<std::shared_ptr<const void>> code_;
    std::shared_ptr<const cuda::Gpu> gpu_;
    std::vector<Expr> symbols_;
    mutable std::mutex mutex_;
    // Weak: an instance owns its program; whoever calls often keeps the instance.
    mutable std::vector<std::pair<std::vector<std::int64_t>, std::weak_ptr<const Instance>>>
        instances_;
    // Frozen values depend on no symbol, so all instances share them.
    mutable std::mutex freezing_;  // the making of them
    mutable std::mutex frozen_mutex_;
    mutable std::shared_ptr<const FrozenState> frozen_;  // guarded by frozen_mutex_
    mutable Block reserve_;                              // the same
};

}  // namespace ingot::runtime
