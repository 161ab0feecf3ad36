// How segments begin and end, and what a break does; the other half of recording.h.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "bindings/errors.h"
#include "bindings/lock.h"
#include "bindings/recorder_object.h"
#include "capture/captured.h"
#include "capture/graph_end.h"
#include "capture/keys.h"
#include "capture/news.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"
#include "capture/resumption.h"
#include "capture/transcript.h"
#include "capture/violations.h"
#include "trace/view_history.h"

namespace ingot::capture {
namespace {

using bindings::Pending;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

bool makes_generators(const Recipes& recipes) {
    return std::ranges::any_of(recipes.instructions,
                               [](const Instruction& i) { return i.make == Make::Generator; });
}

std::string slot_name(PyCodeObject* code, std::size_t i) {
    if (i >= static_cast<std::size_t>(PyTuple_GET_SIZE(code->co_localsplusnames))) return "stack";
    return PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_localsplusnames, static_cast<Py_ssize_t>(i)));
}

/// Whether what stands at this place is another object than at the first recording, or a tensor of
/// other sizes. It is known by a number alone, so that nothing is kept alive.
bool is_replaced(SizeHistory& history, PyObject* object, const std::string& path, Dynamic dynamic) {
    constexpr std::size_t kLess = (std::size_t{1} << 30) - 1;
    std::size_t mark = reinterpret_cast<std::uintptr_t>(object) / alignof(std::max_align_t);
    if (is_tensor(object)) {
        const at::Tensor& t = THPVariable_Unpack(object);
        if (t.layout() != c10::kStrided) return false;
        mark = static_cast<std::size_t>(t.dim());
        for (const std::int64_t size : t.sizes())
            mark = mark * 1000003 + static_cast<std::size_t>(size);
    }
    if (dynamic == Dynamic::Always) dynamic = Dynamic::WhenChanged;
    const auto number = static_cast<std::int64_t>(mark & kLess) + 2;
    return !history.number_of(path + " replaced", number, dynamic).name.empty();
}

}  // namespace

void Recording::begin_segment(std::shared_ptr<SegmentList> list) {
    list_ = std::move(list);
    segment_ = std::make_shared<Segment>();
    segment_->number = context_.tree->recorded++;
    segment_->guards.modes = Modes::now();
    histories_.restore();
    backwards_ = {};
    functions_.clear();
    contexts_.clear();
    level_functions_.clear();
    recorded_.clear();
    unfinished_.clear();
    numbers_.reset();
    rounded_ = 0;
    specialised_at_.clear();
    holds_locks_ = false;
    recorder_ = std::make_unique<trace::Recorder>();
    recorder_->set_number_reader(bindings::read_number, bindings::own_float);
    recorder_->set_giver([this](std::string_view reason) { return go_on_for_real(reason); });
    numbers_ = std::make_unique<Numbers>(*recorder_, segment_->guards);
    segment_->guards.begin_sizes(recorder_->symbols());
    std::function<void(PyObject*)> met;
    if (context_.settings.training) {
        recorder_->follow_gradients();
        met = [this](PyObject* o) { histories_.cut(THPVariable_Unpack(o)); };
    } else {
        recorder_->refuse_gradients();
    }
    world_ = std::make_unique<World>(
        segment_->guards, constants_, std::move(met),
        [this](PyObject* o, std::int32_t node) { met_tensor(o, node); },
        [this](PyObject* number, const std::string& path,
               const std::function<std::int32_t()>& add_node) {
            return met_number(number, path, add_node, false);
        },
        [this](PyObject* tuple, const std::string& path) { return varies(tuple, path); });
    history().begin_recording();
    ++context_.counters.recordings;
    began_ = Clock::now();
}

void Recording::keep_segment() {
    // What is refused for a while (error_on_graph_break) is asked again at the next call.
    if (segment_->refused && !context_.fullgraph) return;
    segment_->unusual = history().is_unusual();
    list_->push_back(segment_);
}

bool Recording::varies(PyObject* tuple, const std::string& path) {
    if (!is_tuple_of_numbers(tuple)) return is_replaced(history(), tuple, path, context_.dynamic);
    const std::span<PyObject* const> items(PySequence_Fast_ITEMS(tuple),
                                           static_cast<std::size_t>(PyTuple_GET_SIZE(tuple)));
    bool first = false;
    const bool varied = history().varies(path, tuple, context_.dynamic, first);
    // What its numbers were decides which of them change.
    for (std::size_t i = 0; first && i < items.size(); ++i) {
        const std::string way = World::path_within(path, Reach::Item, static_cast<Py_ssize_t>(i));
        if (PyFloat_CheckExact(items[i]))
            (void)history().float_of(way, PyFloat_AS_DOUBLE(items[i]), Dynamic::WhenChanged);
        else if (const auto number = numbers_->value_of(items[i]))
            (void)history().number_of(way, number->as_int_unchecked(), Dynamic::WhenChanged);
    }
    return varied;
}

void Recording::note_reason(const std::string& reason) {
    if (recorder_->refused_gradient()) {
        const Quiet quiet;
        say("ingot: inputs need a gradient and training is off; such graphs run eagerly");
    }
    segment_->reason = reason;
    ++state().reasons[reason];
}

bool Recording::end_segment(Segment::End end, const std::vector<PyObject*>& roots) {
    scope_.reset();
    context_.counters.record_seconds += seconds_since(began_);
    Transcript transcript(*recorder_);
    transcript.kept = world_->undo().promised_gradients();
    const std::vector<Ref> gradients = backwards_.gradients();  // live on in their leaves
    const std::vector<at::Tensor> live = still_held(transcript);
    contexts_.clear();
    level_functions_.clear();
    const Frames frames = end == Segment::End::Return ? Frames::Gone : Frames::Known;
    std::string reason;
    try {
        segment_->after = Modes::now();
        if (!segment_->after.reachable_from(segment_->guards.modes))
            throw NotSupported("a mode is left changed: " +
                               segment_->after.difference(segment_->guards.modes));
        if (!world_->variables_are_back()) throw NotSupported("a context variable is left changed");
        GraphEnd graph(*recorder_, *world_, *numbers_, backwards_, *segment_, histories_);
        RecipeBuilder builder([&](PyObject* o) { return graph.origin_of(o); });
        for (PyObject* root : roots) builder.add_root(root);
        world_->add_effects(builder);
        if (end != Segment::End::Return && !unfinished_.empty())  // what is behind holds it
            throw NoRecipe("an object with a finalizer lives at a break");
        refuse_left_behind(builder);
        segment_->has_effects = world_->has_writes();
        segment_->recipes = builder.finish();
        if (must_be_whole() && makes_generators(segment_->recipes))
            throw NoRecipe("a generator is given back, whose code nothing compiles");
        refuse_fixed_marks(*recorder_->symbols(), segment_->guards, specialised_at_);
        for (const at::Tensor& t : live) graph.add_output(t);
        bool ran = true;
        const bool may_fail = may_begin_again(transcript, frames, false);
        {
            // Backwards of custom functions are recorded with the others now.
            const Strictly strictly(*this, Strict::Backward);
            const bool over = std::exchange(over_, false);
            try {
                ran = graph.run(context_, transcript, context_.counters,
                                functions_.empty() ? nullptr : this, may_fail);
            } catch (...) {
                over_ = over;
                throw;
            }
            over_ = over;
        }
        if (!abandoned_.empty()) throw NeedsBreaks(abandoned_);
        segment_->end = end;
        for (const std::string& symbol :
             segment_->guards.sizes().specialised(segment_->guards.floats))
            history().fix(symbol);
        fix_floats();
        if (!numbers_->any()) segment_->guards.drop_sizes();
        keep_segment();
        tell_compiled();
        if (ran) return true;
        histories_.restore();
        throw BeginsAgain();
    } catch (const PutOff& e) {
        histories_.restore();
        if (may_begin_again(transcript, frames, true)) throw BeginsAgain();
        world_->undo().take_back_gradients(e.calls_made);
        throw;
    } catch (const pybind11::error_already_set&) {  // a backend's, or no fallback is wanted
        const Pending pending;
        histories_.restore();
        fill_all(transcript, live, frames);
        throw;
    } catch (const NeedsNumbers& e) {
        // This call goes on without a recording; the next one is recorded with numbers.
        if (e.sizes_only)
            history().fix_sizes();
        else
            history().fix_all();
        histories_.restore();
        fill_all(transcript, live, frames);
        segment_->reason = e.what();
        segment_->later = true;
        context_.tree->abandoned.push_back({segment_->reason, "", segment_->number});
        ++state().reasons["numbers that changed are fixed: " + segment_->reason];
        return false;
    } catch (const NeedsBreaks& e) {
        const std::string why = !abandoned_.empty() ? std::exchange(abandoned_, {}) : e.what();
        for (const Ref& f : functions_)
            refuse_function(f.get(), "a custom autograd.Function (" + why + ")");
        histories_.restore();
        fill_all(transcript, live, frames);
        segment_->reason = why;
        context_.tree->abandoned.push_back({why, "", segment_->number});
        return false;
    } catch (const NoRecipe& e) {
        reason = e.what();
    } catch (const Puzzle& e) {
        reason = e.what();
    } catch (const Error& e) {
        reason = e.what();
    }
    histories_.restore();
    fill_all(transcript, live, frames);
    end_of_sizes();
    segment_->end = Segment::End::Eager;
    segment_->program.reset();
    segment_->inputs.clear();
    segment_->recipes = {};
    for (PinnedTensor& t : segment_->guards.tensors) t.covered = false;
    segment_->refused = must_be_whole();
    note_reason(reason);
    keep_segment();
    if (end == Segment::End::Return) tell_eager(reason);
    return false;
}

/// What the recording leaves behind is computed by eager.
void Recording::fill_all(const Transcript& transcript, const std::vector<at::Tensor>& live,
                         Frames frames) const {
    std::vector<at::Tensor> freed;
    for (const at::Tensor& t : live) {
        if (backwards_.any()) trace::settle_history(t);
        if (!backwards_.spent(t).empty()) freed.push_back(t);
    }
    try {
        transcript.fill_all(live);
    } catch (const PutOff& e) {
        if (may_begin_again(transcript, frames, true)) throw BeginsAgain();
        world_->undo().take_back_gradients(e.calls_made);
        throw;
    }
    for (const at::Tensor& t : freed) Backwards::release(t);
}

/// Floats that PyTorch or the program has needed are guarded, and fixed from now on.
void Recording::fix_floats() {
    numbers_->fix_read_floats();
    std::vector<std::int32_t> integers;
    for (const std::string& name : segment_->guards.floats.specialised(integers))
        history().fix(name);
}

/// The relations of sizes belong to the guards of a segment that means eager, too.
void Recording::end_of_sizes() {
    fix_floats();
    if (numbers_->any())
        segment_->guards.sizes().close();
    else
        segment_->guards.drop_sizes();
}

void Recording::end_eagerly(const std::string& reason, Frames frames) {
    scope_.reset();
    context_.counters.record_seconds += seconds_since(began_);
    histories_.restore();
    Transcript transcript(*recorder_);
    transcript.kept = world_->undo().promised_gradients();
    const std::vector<Ref> gradients = backwards_.gradients();
    try {
        fill_all(transcript, still_held(transcript), frames);
    } catch (const pybind11::error_already_set&) {
        if (!error_) throw;  // else it is told why the program ends already
    }
    end_of_sizes();
    segment_->end = Segment::End::Eager;
    note_reason(reason);
    keep_segment();
}

Verdict Recording::give_up(const std::string& reason) {
    if (over_) return Verdict::run;
    if (strict_ != Strict::No) {
        if (abandoned_.empty()) abandoned_ = reason;
        return Verdict::run;
    }
    if (const Session* session = Session::current(); session != nullptr)
        note_place(session->innermost());
    if (must_be_whole()) return refuse(reason);
    // Where a branch was taken for granted the calls so far may raise in other words than eager.
    if (recorder_->assumes() && Session::current() != nullptr) {
        scope_.reset();
        if (may_begin_again(Transcript(*recorder_), Frames::Known, false)) {
            context_.tree->abandoned.push_back({reason, segment_->line, segment_->number});
            (void)drop_frames();
            throw pybind11::error_already_set();
        }
        open_scope();
    }
    over_ = true;
    const struct Stop {  // whatever comes
        ~Stop() {
            if (Session* session = Session::current()) session->stop();
        }
    } stop;
    const Pending pending;
    end_eagerly(reason, Frames::Stay);
    tell_eager(reason);
    world_->let_go();
    return Verdict::run;
}

bool Recording::may_begin_again(const Transcript& transcript, Frames frames,
                                bool calls_made) const {
    if (!again_ || frames == Frames::Stay || strict_ != Strict::No) return false;
    // What code of the program would run as its objects go, and what nobody can take back. (A
    // custom function was recorded on approval: it has done nothing that is seen outside.)
    if (has_finalizers_ || !suspended_.empty() || !world_->undo().possible() ||
        !world_->variables_are_back())
        return false;
    const Modes now = Modes::now();
    if (!segment_->guards.modes.reachable_from(now)) return false;
    if (frames == Frames::Known && (holds_locks_ || now.autocast_cpu || now.autocast_cuda))
        return false;
    // A program gives what it has written its old contents, and draws again; on GPUs nothing does.
    const auto is_on_gpu = [](const trace::InputSource& s) {
        return s.promise.defined() && s.promise.is_cuda();
    };
    const bool restored = !calls_made && std::ranges::none_of(transcript.inputs, is_on_gpu);
    return restored || !(transcript.writes() || transcript.draws());
}

Verdict Recording::drop_frames() {
    over_ = true;
    begins_again_ = true;
    if (Session* session = Session::current()) session->drop();
    PyErr_SetString(PyExc_SystemError, "a recording begins again");
    return Verdict::raise;
}

PyObject* Recording::begin_again() {
    PyErr_Clear();
    PyErr_SetHandledException(handled_.get());
    const auto again = std::exchange(again_, nullptr);
    segment_->guards.modes.establish(Modes::now());
    world_->undo().take_back();
    functions_.clear();
    contexts_.clear();
    level_functions_.clear();
    recorded_.clear();
    backwards_ = {};
    numbers_.reset();
    world_.reset();
    recorder_.reset();
    return again();
}

PyObject* Recording::conclude(PyObject* result) {
    if (error_) return conclude_with_error(result);
    if (over_ && !begins_again_) return result;
    over_ = true;
    return bindings::with_python_errors([&]() -> PyObject* {
        Ref returned = Ref::steal(result);
        try {
            if (begins_again_) throw BeginsAgain();
            if (!returned) {
                const Pending pending;
                segment_->raises = true;
                end_eagerly("an exception leaves the function", Frames::Gone);
                return nullptr;
            }
            const bool whole = end_segment(Segment::End::Return, {result});
            if (!whole && must_be_whole() && !segment_->later)
                return refuse_result(returned.release(), segment_->reason);
            return returned.release();
        } catch (const BeginsAgain&) {
            returned = Ref();
        }
        PyObject* const again = begin_again();
        return must_be_whole() ? refuse_result(again, kHandledFailure) : again;
    });
}

namespace {

/// Whether frames can be built from these values after others have used them: what is written to
/// them is taken back, and iterators break where they move, but generators run code of theirs.
bool can_be_used_again(std::span<const Ref> slots) {
    return std::ranges::none_of(slots,
                                [](const Ref& slot) { return slot && is_generator(slot.get()); });
}

}  // namespace

bool Recording::snapshot(Frame innermost, const Event& event, bool leaves,
                         std::vector<PyObject*>& roots, BreakPoint& point) {
    std::vector<Frame> chain;
    for (std::optional<Frame> f = innermost; f; f = f->caller()) {
        chain.push_back(*f);
        if (f->is_generator()) return false;
        if (f->caller() && !f->is_direct()) return false;
    }
    std::reverse(chain.begin(), chain.end());
    for (std::size_t i = 0; i < chain.size(); ++i) {
        const Frame& f = chain[i];
        FrameShape shape;
        shape.offset = f.offset();
        const bool last = i + 1 == chain.size();
        shape.resume = leaves && last ? Resume::execute : Resume::complete;
        if (!can_rebuild(f.code(), shape.offset, shape.resume)) {
            if (shape.resume == Resume::execute || !last || event.operation != Operation::truth)
                return false;
            shape.resume = Resume::execute;
            if (!can_rebuild(f.code(), shape.offset, shape.resume)) return false;
        }
        if (f.function() == nullptr) return false;
        shape.slots = f.slots().size();
        shape.stack = f.stack().size();
        roots.push_back(reinterpret_cast<PyObject*>(f.function()));
        roots.insert(roots.end(), f.slots().begin(), f.slots().end());
        roots.insert(roots.end(), f.stack().begin(), f.stack().end());
        point.frames.push_back(shape);
    }
    if (leaves) return true;
    roots.insert(roots.end(), event.operands.begin(), event.operands.end());
    point.operation = event.operation;
    point.detail = event.detail;
    point.name = Ref::borrow(event.name);
    point.keyword_names = Ref::borrow(event.keyword_names);
    point.operands = event.operands.size();
    return true;
}

bool Recording::is_error(Frame frame, const std::string& reason) {
    note_place(frame);
    ++context_.counters.breaks;
    return must_be_whole() && give_up(reason) == Verdict::raise;
}

/// Of an operator that was put off: the program's own, which may handle it. Any other is the
/// backend's or the interface's and ends the call whatever the program handles; a signal's is left
/// to the program.
Verdict Recording::raised(pybind11::error_already_set& error) {
    const bool own = begins_again_ || dynamic_cast<PutOff*>(&error) != nullptr ||
                     !error.matches(PyExc_Exception);
    if (!own) {
        PyObject* const value = error.value().ptr();
        if (error.trace()) PyException_SetTraceback(value, error.trace().ptr());
        return end_program(Py_NewRef(value));
    }
    error.restore();
    over_ = true;
    if (Session* session = Session::current()) session->stop();
    return Verdict::raise;
}

Verdict Recording::leave_at(Frame frame, const Event& event, const std::string& reason) {
    try {
        if (is_error(frame, reason)) return Verdict::raise;
        std::vector<PyObject*> roots;
        BreakPoint point;
        if (!snapshot(frame, event, true, roots, point)) {
            return give_up(reason);
        }
        segment_->at = std::move(point);
        std::vector<Ref> held;
        for (PyObject* o : roots) held.push_back(Ref::borrow(o));
        if (end_segment(Segment::End::Leave, roots))
            note_reason(reason);
        else
            segment_->reason = reason + "; " + segment_->reason;
        if (at_call_ && segment_->operators.empty())
            tell_eager(segment_->reason);
        else
            tell_break(segment_->reason);
        over_ = true;
        if (Session* session = Session::current()) session->stop();
        return Verdict::run;
    } catch (const BeginsAgain&) {
        return drop_frames();
    } catch (pybind11::error_already_set& e) {
        return raised(e);
    } catch (const std::exception& e) {
        const Verdict verdict = give_up(std::string("internal: ") + e.what());
        return PyErr_Occurred() ? Verdict::raise : verdict;
    }
}

Verdict Recording::break_at(Frame frame, const Event& event, const std::string& reason,
                            PyObject** result) {
    if (!can_perform(event)) return leave_at(frame, event, reason);
    try {
        if (is_error(frame, reason)) return Verdict::raise;
        std::vector<PyObject*> roots;
        BreakPoint point;
        if (!snapshot(frame, event, false, roots, point)) {
            return give_up(reason);
        }
        std::string key;
        for (std::optional<Frame> f = frame; f; f = f->caller())
            key += std::to_string(reinterpret_cast<std::uintptr_t>(f->code())) + ":" +
                   std::to_string(f->offset()) + "/" + std::to_string(f->stack().size()) + ";";
        segment_->children = context_.tree->list(key);
        scope_.reset();
        segment_->at = std::move(point);
        std::vector<Ref> held;
        for (PyObject* o : roots) held.push_back(Ref::borrow(o));
        const bool ended = end_segment(Segment::End::Break, roots);
        if (ended)
            note_reason(reason);
        else
            segment_->reason = reason + "; " + segment_->reason;
        tell_break(segment_->reason);
        const std::shared_ptr<const Segment> broken = segment_;
        const auto children = segment_->children;
        const std::size_t operands = event.operands.size();
        {
            const Quiet quiet;
            world_->let_go();  // what the operation lets go of goes there, and not later
        }
        *result = perform_unobserved(event);
        if (!ended || *result == nullptr || is_full(*children, context_.limit, Modes::now())) {
            over_ = true;
            if (Session* session = Session::current()) session->stop();
            return *result == nullptr ? Verdict::raise : finish_result(event, result);
        }
        begin_segment(children);
        at_call_ = false;
        std::size_t index = 0;
        std::vector<Frame> chain;
        for (std::optional<Frame> f = frame; f; f = f->caller()) chain.push_back(*f);
        for (auto f = chain.rbegin(); f != chain.rend(); ++f) {
            const std::size_t count = 1 + f->slots().size() + f->stack().size();
            for (std::size_t i = 0; i < count; ++i, ++index)
                add_slot(static_cast<Py_ssize_t>(index), roots[index],
                         i == 0 ? "function" : slot_name(f->code(), i - 1), false);
        }
        check(index + operands == roots.size(), "a break's frames changed");
        const bool stays = add_result(static_cast<Py_ssize_t>(index), *result);
        held.resize(index);
        again_ = nullptr;
        const Ref handled = Ref::steal(PyErr_GetHandledException());
        if (stays && can_be_used_again(held) && handled.get() == handled_.get())
            again_ = [broken, held, outcome = Ref::borrow(*result)] {
                std::vector<PyObject*> slots;
                for (const Ref& slot : held) slots.push_back(slot.get());
                return resume(broken->at, slots, Py_NewRef(outcome.get()));
            };
        start();
        return finish_result(event, result);
    } catch (const BeginsAgain&) {
        return drop_frames();
    } catch (pybind11::error_already_set& e) {
        return raised(e);
    } catch (const std::exception& e) {
        const Verdict verdict = give_up(std::string("internal: ") + e.what());
        return PyErr_Occurred() ? Verdict::raise : verdict;
    }
}

}  // namespace ingot::capture
