// The recorder of Python: observes the interpreter, guards what is read, lets PyTorch's operators
// run on promises, and ends segments.
//
// Flow: `Recording` is made for a call (or for rebuilt frames behind a break), the interpreter runs
// the function under a Session with it, and `conclude` ends the last segment once the frames are
// gone. At a break the segment is compiled, run, and its promises are filled in place; the breaking
// operation runs for real; a new segment begins. What cannot be understood at a place where frames
// cannot be rebuilt ends the recording: the rest runs in CPython, and the segment says so.
//
// Cost: some 100 ns an instruction beyond the interpreter, and trace's cost an operator.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "bindings/settings.h"
#include "capture/backwards.h"
#include "capture/callables.h"
#include "capture/custom_function.h"
#include "capture/histories.h"
#include "capture/interpreter/observer.h"
#include "capture/numbers.h"
#include "capture/segment.h"
#include "capture/state.h"
#include "capture/transcript.h"
#include "capture/world.h"
#include "trace/mode.h"
#include "trace/recorder.h"

namespace ingot::capture {

/// What a recording needs of the captured function it belongs to.
struct RecordingContext {
    const bindings::Settings& settings;
    Counters& counters;
    bool fullgraph = false;
    // Borrowed from the captured function's options; see capture.h.
    PyObject *backend = nullptr, *reproduce = nullptr;
    std::size_t limit = 8;  // segments of one list
    Dynamic dynamic = Dynamic::WhenChanged;
    std::shared_ptr<SegmentTree> tree;
    std::string name, place;  // of the function: what messages call it, and its "file:line"
    std::shared_ptr<ArenaOfSteps> arena_of_steps;
};

/// The line that the frame is at: "file:line in function".
std::string place_of(Frame frame);
/// Why a call under `fullgraph` that handles the failure of an operator is refused.
inline constexpr const char* kHandledFailure =
    "an operator of the graph fails, and the program goes on";
/// The name of the module whose code the frame runs; "" where it has none. Lives as long as the
/// frame.
std::string_view module_of(Frame frame);
/// Whether `object` is a lock that functools takes for itself, around a value it computes once: the
/// lock is taken while recording, and no replay computes the value.
bool is_lock_of_functools(Frame frame, PyObject* object);
/// The arguments of a call, those in an expanded tuple and dict one by one; reads nothing of them.
/// `named`: whether some are given by name.
std::vector<PyObject*> arguments_of(const Event& event, bool* named = nullptr);

/// Which of Python's binary operators (NB_ADD, ...) it is, in place or not.
int operator_of(int detail);

class Recording final : public Observer {
  public:
    /// `list`: where the first segment goes.
    Recording(RecordingContext context, std::shared_ptr<SegmentList> list);
    ~Recording() override;

    /// A value of slot `index`; all are given before `start`. The result, which the recording
    /// holds, takes its place in what is recorded if `replaceable`: an integer that is symbolic.
    PyObject* add_slot(Py_ssize_t index, PyObject* value, const std::string& name,
                       bool replaceable);
    /// The result of the operation that broke, as the last slot. False: it may go any time, and is
    /// not to be held.
    bool add_result(Py_ssize_t index, PyObject* result);
    /// An object that the caller knows by identity.
    void pin(PyObject* object, const char* name);
    /// What is recorded is a call from its beginning, and not what is behind a break.
    void begins_call() { at_call_ = true; }
    /// How what is recorded is carried out without a recording, from where this one begins: what it
    /// gives, or nullptr with the error set. May be asked for in `conclude`.
    void begin_again_by(std::function<PyObject*()> again) { again_ = std::move(again); }
    /// Begins to record operators. Call right before the session is used. False: the call is not to
    /// be made, `conclude` gives the error.
    bool start();
    /// The error for which `start` gives false.
    PyObject* take_error() { return error_.release(); }
    /// The function has returned (nullptr: raised; the error is set) and its frames are gone: ends
    /// the last segment. Returns `result`, or nullptr with an error set. Where an operator fails by
    /// its data, what the last segment did is taken back and done again by eager.
    PyObject* conclude(PyObject* result);
    /// Rebuilt frames are going to execute an operation again that has been carried out: this is
    /// its result.
    void answer_first(Operation operation, PyObject* result);

    Verdict entered(Frame frame, Entry entry) override;
    void left(Frame frame, Exit exit, PyObject* result) override;
    void raised(Frame frame, const Event& event) override;
    Verdict before(Frame frame, const Event& event, PyObject** result) override;
    bool after(Frame frame, const Event& event, PyObject* result) override;

    /// The recording of this thread that was begun last.
    static Recording* current();
    /// Whether operators are being recorded just now (not during a break).
    bool follows_operators() const { return scope_ != nullptr; }

  private:
    Verdict enter(Frame frame, Entry entry);
    Verdict guarded(Frame frame, const Event& event, PyObject** result);
    Verdict on_call(Frame frame, const Event& event, PyObject** result);
    /// What an expanded call's arguments are taken from.
    void read_expanded(const Event& event);
    Verdict on_expanded_call(Frame frame, const Event& event, PyObject** result);
    Verdict dispatch_call(Frame frame, const Event& event, PyObject* callable, PyObject* self,
                          std::span<PyObject* const> arguments, PyObject** result);
    // PyTorch's own words (torch_calls.cpp).
    /// `forward_of_torch`, with guards that a call of the module is one of that; nullptr if not.
    PyObject* read_forward_of_torch(PyObject* callable);
    Verdict on_allowed(const Event& event, std::span<PyObject* const> arguments, PyObject** result);
    bool holds_promise(std::span<PyObject* const> objects, int depth) const;
    Verdict on_constant(const Event& event, std::span<PyObject* const> arguments,
                        PyObject** result);
    /// Throws a Puzzle for an operation of a function that is not to be compiled, though what it
    /// calls is: it is carried out for real.
    void leave_out(Frame frame, const Event& event);
    Verdict on_partial(Frame frame, const Event& event, PyObject* callable,
                       std::span<PyObject* const> arguments, PyObject** result);
    Verdict on_class(PyTypeObject* type, std::span<PyObject* const> arguments);
    Verdict on_c_function(Frame frame, const Event& event, PyObject* callable, PyObject* self,
                          std::span<PyObject* const> arguments, PyObject** result);
    Verdict on_cached_function(const Event& event, PyObject* callable,
                               std::span<PyObject* const> all, PyObject** result);
    Verdict on_warning(Frame frame, const Event& event, std::span<PyObject* const> arguments,
                       PyObject** result);
    /// The function of PyTorch behind `backward` and `torch.autograd.grad`.
    static bool is_engine(PyObject* function);
    Verdict on_backward(const Event& event, PyObject** result);
    BackwardCall parse_backward(const Event& event) const;
    /// Whether this is `tensor.backward`, which PyTorch's engine can carry out on promises.
    bool may_go_backward(PyObject* tensor, PyObject* method) const;
    // Custom functions (custom_calls.cpp).
    enum class Strict : std::uint8_t { No, Forward, Backward, Transform, Region };
    /// Code that runs while it lives is that of a custom function or of a transform.
    class Strictly {
      public:
        Strictly(Recording& recording, Strict strict)
            : recording_(recording), before_(std::exchange(recording.strict_, strict)) {}
        ~Strictly() { recording_.strict_ = before_; }
        Strictly(const Strictly&) = delete;
        Strictly& operator=(const Strictly&) = delete;

      private:
        Recording& recording_;
        Strict before_;
    };
    static bool is_custom_function(std::string_view name, std::span<PyObject* const> arguments);
    Verdict on_custom_function(const Event& event, PyObject* function,
                               std::span<PyObject* const> arguments, PyObject** result);
    void note_custom_function(RecordedFunction::Parts parts, std::size_t calls, PyObject* result);
    void note_context_store(const Event& event);
    /// The recording comes to nothing: what it has promised becomes real, but for what the calls
    /// from `calls` on have given, and CPython goes on.
    void drop_recording(std::size_t calls, const std::string& reason, const std::string& line);
    // C code that runs operators unseen (unseen_calls.cpp).
    /// Whether carrying the event out a second time does what the first time would have done.
    static bool is_repeatable(const Event& event);
    /// An operator that C code runs cannot be recorded: true if it may go on with real tensors.
    bool go_on_for_real(std::string_view reason);
    /// Throws a Puzzle where C code has asked for that before.
    void refuse_known_asking(Frame frame) const;
    Verdict without_recording(const Event& event, std::size_t calls, PyObject* function,
                              const std::string& name, PyObject** result);
    void refuse_function(PyObject* function, const std::string& reason);
    void refuse_effects(Frame frame, const Event& event);
    void refuse_what_may_change(Frame frame, const Event& event);
    void note_reading_of_saved(const Event& event);
    Verdict strictly(Frame frame, const Event& event, PyObject** result);
    static Verdict abandoned();
    bool is_cleanup(Frame frame) const;
    /// `torch.utils.checkpoint.checkpoint` (checkpoint_calls.cpp): `function` is PyTorch's.
    Verdict on_checkpoint(Frame frame, const Event& event, PyObject* function, PyObject** result);
    /// What this recording has made and the frames, or what it has written to, still hold; nothing
    /// if that is too much.
    std::optional<std::unordered_set<PyObject*>> objects_made(Frame innermost) const;
    // torch.func (transforms.cpp).
    /// Whether a function of PyTorch's runs a program's function at a level of its own.
    static bool is_transform(PyObject* function);
    Verdict on_transform(Frame frame, const Event& event, PyObject** result);
    Verdict on_backward_of_level(const Event& event, PyObject** result);
    /// The promises that are held when a segment ends: by Python, and by what a transform has
    /// returned to be called later, whose tensors hold them out of sight.
    std::vector<at::Tensor> still_held(const Transcript& transcript) const;
    void note_functions_of_level(PyObject* result);
    bool marks_for_level(std::string_view name, std::span<PyObject* const> all) const;
    Verdict on_level(const std::string& name, Frame frame, const Event& event,
                     std::span<PyObject* const> all, PyObject** result);
    /// What becomes of the frames when a segment ends.
    enum class Frames : std::uint8_t {
        Gone,   // there are none
        Known,  // the interpreter has all of them and can drop them
        Stay,
    };
    /// Thrown: an operator has failed by its data, and the segment is to begin again.
    struct BeginsAgain {};
    /// While it lives, operators are no longer recorded: of the segment, or, where that has ended,
    /// of its backward.
    class Pause {
      public:
        explicit Pause(Recording& recording);
        ~Pause();
        Pause(const Pause&) = delete;
        Pause& operator=(const Pause&) = delete;

      private:
        Recording& recording_;
        const bool open_;
        std::unique_ptr<trace::WithoutMode> backward_;
    };
    Verdict on_operator(Frame frame, const Event& event, PyObject** result);
    Verdict on_tensor_attribute(Frame frame, const Event& event, PyObject** result);
    void on_store(const Event& event);
    /// What `work` gives, neither observed nor recorded: the next call finds it done.
    template <class Work>
    auto unrecorded(Work&& work) {
        const Quiet quiet;
        const Pause pause(*this);
        return work();
    }
    void read_class_pattern(const Event& event);
    // Finalizers (finalizers.cpp).
    void note_made(PyObject* object);
    void note_finalizer(Frame frame, PyObject* function);
    /// Whether these frames have such objects of their own.
    static bool holds_finalizers(Frame innermost);
    /// Throws NoRecipe if one has been left to the collector: nothing would make it at replays.
    void refuse_left_behind(const RecipeBuilder& builder) const;
    void resolve_operator(PyObject* object, PyObject* name);
    /// An import for the first time, with what the module does when it is made.
    PyObject* import_first(const Event& event);
    // Generators (iteration.cpp).
    /// The generator whose items the event only moves; nullptr if there is none.
    static PyObject* generator_moved_by(const Event& event);
    void note_moved(const Event& event);
    void forget_moved(const Event& event);
    /// Whether what the generator of this frame yields is only moved.
    bool is_moved(Frame frame) const;
    /// `any`, `all`, `sum`, ... over a generator or over symbolic numbers.
    bool follow_fold(const Event& event, const std::string& name, std::span<PyObject* const> given,
                     PyObject** result);
    // Symbolic numbers (arithmetic.cpp, number_functions.cpp). True: the result is there, nullptr
    // for an exception.
    bool follow_numbers(Frame frame, const Event& event, PyObject** result);
    bool follow_binary(const Event& event, PyObject** result);
    bool follow_float_binary(const Event& event, PyObject** result);
    /// The object of a float that was computed becomes the result; false without one.
    bool give_float(std::optional<FloatGuards::Index> value, PyObject** result);
    /// The integer that the function of `math` of this name rounds a float to becomes the result.
    bool give_rounded(std::string_view function, PyObject* number, PyObject** result);
    bool follow_function_of_integer(const std::string& name, std::span<PyObject* const> given,
                                    PyObject** result);
    /// Built-in functions of numbers and those of `math`.
    bool follow_function(const std::string& name, std::span<PyObject* const> given,
                         PyObject** result);
    bool follow_comparison(const Event& event, PyObject** result);
    bool follow_truth(const Event& event, PyObject** result, bool negated);
    bool follow_extreme(std::span<PyObject* const> arguments, bool most, PyObject** result);
    bool follow_class(PyTypeObject* type, std::span<PyObject* const> arguments, PyObject** result);
    bool follow_call(const Event& event, PyObject** result);
    /// The event with promises and symbols in place of tensors and numbers.
    Event with_stand_ins(const Event& event, std::vector<Ref>& held,
                         std::vector<PyObject*>& operands);
    /// Carries the event out on promises and symbols.
    PyObject* perform_on_stand_ins(const Event& event);
    bool takes_stand_ins(const Event& event) const;
    /// A number came from outside, by the way `path` names: the object that takes its place if it
    /// may be another at the next call (held by the recording), else nullptr. `add_node`: makes the
    /// node that reaches it. `argument`: it came with the call itself.
    PyObject* met_number(PyObject* value, const std::string& path,
                         const std::function<std::int32_t()>& add_node, bool argument);
    /// Whether a tuple of numbers that a pinned container holds is another one at other calls.
    bool varies(PyObject* tuple, const std::string& path);
    /// A tensor came with the call: some of its sizes may be symbolic.
    void met_tensor(PyObject* tensor, std::int32_t node);
    SizeHistory& history() { return context_.tree->histories[list_.get()]; }
    /// Follows the event's numbers and guards what it reads. What was met by reading is followed,
    /// too, before the operation looks at it.
    Verdict followed_or_guarded(Frame frame, const Event& event, PyObject** result);
    /// Numbers that the guards of this event have met: true if they were followed to a result.
    bool follow_met(Frame frame, const Event& event, PyObject** result);
    /// Carries the event out under the recorder; a failure of the recorder is a break.
    Verdict carried(Frame frame, const Event& event, PyObject** result);
    /// The verdict on what an event carried out under the recorder has given, or raised. `calls`:
    /// of the log, before it.
    Verdict carried_out(const Event& event, std::size_t calls, PyObject** result);
    /// Ends the segment, carries the event out for real, begins the next segment.
    Verdict break_at(Frame frame, const Event& event, const std::string& reason, PyObject** result);
    /// Ends the recording with `error` as the program's.
    Verdict raised(pybind11::error_already_set& error);
    /// The exception being handled becomes the program's.
    static Verdict thrown();
    /// Ends the segment and the recording: CPython goes on, at replays with rebuilt frames.
    Verdict leave_at(Frame frame, const Event& event, const std::string& reason);
    /// Notes the break; under `fullgraph` it is an error: true with the error set.
    bool is_error(Frame frame, const std::string& reason);
    /// Ends the recording: everything is made real, CPython does the rest. What a hook answers:
    /// `run`, or under `fullgraph` `raise` with the error set.
    Verdict give_up(const std::string& reason);
    /// CPython goes on with the frame unseen: the call goes on without a recording.
    void lose(Frame frame);
    // fullgraph (whole.cpp).
    /// Whether a call that is no whole graph is an error.
    bool must_be_whole() const;
    /// The call is no whole graph: what is recorded becomes real, its guards mean an error from now
    /// on, and the program is ended by that error whatever it catches. `raise`, with it set.
    Verdict refuse(const std::string& reason);
    /// The program is ended by this error, which is taken over; it is set.
    Verdict end_program(PyObject* error);
    /// What the outermost frame has given is of no account: the error ends the call.
    PyObject* conclude_with_error(PyObject* result);
    /// A whole call has run, but not as one graph.
    PyObject* refuse_result(PyObject* result, const std::string& reason);
    /// Where the recording stands, unless that is noted already.
    void note_place(std::optional<Frame> frame);
    /// A segment that means eager is told of.
    void tell_eager(const std::string& reason) const;
    void tell_break(const std::string& reason) const;
    void tell_compiled() const;

    /// The line of what has been specialised since the last operation.
    void note_specialised(Frame frame);
    void open_scope();
    void begin_segment(std::shared_ptr<SegmentList> list);
    /// The segment is one of its list from now on.
    void keep_segment();
    /// Compiles and runs what is recorded; fills the promises. `roots`: objects that live on. False
    /// if the segment had to become one that runs eagerly.
    bool end_segment(Segment::End end, const std::vector<PyObject*>& roots);
    void fill_all(const Transcript& transcript, const std::vector<at::Tensor>& live,
                  Frames frames) const;
    void fix_floats();
    void end_of_sizes();
    void end_eagerly(const std::string& reason, Frames frames);
    /// Whether nothing of this segment need have happened. `calls_made`: eager has made its calls.
    bool may_begin_again(const Transcript& transcript, Frames frames, bool calls_made) const;
    /// Leaves the frames without running handlers, for `conclude` to begin again.
    Verdict drop_frames();
    /// Takes the segment back and does what it was to do without a recording.
    PyObject* begin_again();
    void note_reason(const std::string& reason);
    void read_arguments(std::span<PyObject* const> arguments, int depth);
    bool is_our_tensor(PyObject* object) const;
    /// Where one side of the branch raises, the graph is to fail there, and eager to raise: the
    /// other side goes on. Only on processors: a GPU's kernels behind the check would run as well,
    /// with what it was to keep from them.
    bool assume_no_raise(Frame frame, const Event& event, PyObject** result);
    /// Throws a Puzzle unless the number in each of the tensors is known while recording.
    void refuse_unknown(std::span<PyObject* const> tensors, const char* reason);
    static bool snapshot(Frame frame, const Event& event, bool leaves,
                         std::vector<PyObject*>& roots, BreakPoint& point);

    RecordingContext context_;
    std::shared_ptr<SegmentList> list_;
    std::shared_ptr<Segment> segment_;
    Histories histories_;
    Backwards backwards_;
    TupleConstants constants_;
    std::unique_ptr<World> world_;
    std::unique_ptr<trace::Recorder> recorder_;
    std::unique_ptr<Numbers> numbers_;
    std::unique_ptr<trace::Recorder::Scope> scope_;
    std::chrono::steady_clock::time_point began_;  // the segment
    Recording* outer_ = nullptr;
    std::vector<std::string> specialised_at_;  // the user's lines
    std::string refusal_;                      // why what came with the call cannot be recorded
    std::optional<Operation> first_;           // to be answered with first_result_
    Ref first_result_;
    std::optional<CustomForward> custom_;  // whose forward is running
    std::vector<Ref> functions_;           // custom ones of this segment
    std::vector<Ref> contexts_;            // and their `ctx`s
    std::unordered_map<PyObject*, std::shared_ptr<RecordedFunction>> recorded_;  // by `ctx`
    std::vector<Ref> level_functions_;  // what transforms return to be called later
    Strict strict_ = Strict::No;        // what runs is on approval: see Strictly
    std::optional<std::unordered_set<PyObject*>> made_before_;  // the region that is recorded
    bool reentrant_ = false;        // it is a region that eager runs without gradients first
    std::string abandoned_;         // why that is not recorded
    std::vector<Frame> carrying_;   // whose operation is carried out here, and may still break
    std::vector<PyObject*> moved_;  // generators that an operation in progress only moves from
    std::size_t met_ = 0;      // of the symbolic numbers, those that the event in progress knows
    std::size_t rounded_ = 0;  // integers of this segment that are rounded from floats
    bool over_ = false;
    bool at_call_ = false;                       // the segment begins with the call
    Ref error_;                                  // by which the program is ended
    std::function<PyObject*()> again_;           // without a recording from the segment's beginning
    bool begins_again_ = false;                  // the frames have been dropped for that
    bool has_finalizers_ = false;                // objects were made that do something when they go
    std::unordered_set<PyObject*> unfinished_;   // made in this segment, and have not done it yet
    bool holds_locks_ = false;                   // one was taken in this segment
    Ref handled_;                                // the exception that was being handled
    std::unordered_set<const void*> suspended_;  // frames of generators
    std::unordered_set<PyObject*> left_out_;     // functions, whose own operations are not recorded
    std::int64_t depth_ = 0;  // of the stack of dispatch modes while operators are recorded
};

}  // namespace ingot::capture
