// How segments begin and end, and what a break does; the other half of recording.h.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "bindings/errors.h"
#include "bindings/lock.h"
#include "bindings/recorder_object.h"
#include "capture/captured.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"
#include "trace/replay.h"
#include "trace/tensors.h"

namespace ingot::capture {
namespace {

using bindings::Pending;
using bindings::WithoutLock;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

PyObject* python_object(const at::Tensor& t) {
    return t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
}

/// The promises among the log's results that Python still holds. The log holds every result, so
/// PyTorch keeps one reference to its Python object, if there is one.
std::vector<at::Tensor> live_promises(std::span<const trace::LoggedCall> log,
                                      std::span<const trace::InputSource> inputs) {
    std::vector<at::Tensor> live;
    std::unordered_set<c10::TensorImpl*> seen;
    const auto look = [&](const at::Tensor& t) {
        if (!t.defined() || !trace::is_promise(t) || !seen.insert(t.unsafeGetTensorImpl()).second)
            return;
        PyObject* object = python_object(t);
        if (object != nullptr && Py_REFCNT(object) > 1) live.push_back(t);
    };
    for (const trace::LoggedCall& call : log)
        for (const c10::IValue& r : call.results) trace::for_each_tensor(r, look);
    for (const trace::InputSource& s : inputs) look(s.promise);  // stood in for the tensor
    return live;
}

/// Gives a promise its contents, and its place in PyTorch's graph; the Python object and all that
/// refer to it stay.
void fulfil(const at::Tensor& promise, at::Tensor real) {
    if (!trace::is_promise(promise)) return;
    if (real.use_count() > 1) {  // somebody else knows it
        at::AutoGradMode grad(true);
        real = real.requires_grad() ? real.alias() : real.detach();
    }
    c10::TensorImpl* impl = promise.unsafeGetTensorImpl();
    c10::TensorImpl* source = real.unsafeGetTensorImpl();
    impl->shallow_copy_from(real.getIntrusivePtr());
    if (!real.is_inference()) impl->set_version_counter(source->version_counter());
    autograd_meta_of(*impl) = std::move(autograd_meta_of(*source));
}

void fulfil_all(const std::vector<at::Tensor>& promises, std::vector<at::Tensor> reals) {
    for (std::size_t i = 0; i < promises.size(); ++i) fulfil(promises[i], std::move(reals[i]));
}

/// What a recording needs to be carried out again, taken before the recorder gives its graph away.
struct Transcript {
    std::vector<trace::LoggedCall> log;
    std::vector<trace::InputSource> inputs;
    std::shared_ptr<trace::SymbolicSizes> symbols;

    explicit Transcript(const trace::Recorder& r)
        : log(r.log().begin(), r.log().end()),
          inputs(r.inputs().begin(), r.inputs().end()),
          symbols(r.symbols()) {}
    std::vector<at::Tensor> live() const { return live_promises(log, inputs); }

    /// Carries the calls out eagerly and fills the promises.
    void fill_all(const std::vector<at::Tensor>& promises) const {
        if (log.empty() && promises.empty()) return;
        std::vector<at::Tensor> reals;
        {
            trace::Replay replay([this](Expr symbol) { return symbols->hint(symbol); });
            for (const trace::InputSource& s : inputs)
                if (s.captured.defined()) replay.bind(s.promise, s.captured);
            at::AutoGradMode grad(true);  // each call knows whether it was on
            reals = replay.run(log, promises);
        }
        fulfil_all(promises, std::move(reals));
    }
};

std::string place_of(Frame frame) {
    PyCodeObject* code = frame.code();
    return std::string(PyUnicode_AsUTF8(code->co_filename)) + ":" + std::to_string(frame.line()) +
           " in " + PyUnicode_AsUTF8(code->co_qualname);
}

std::string slot_name(PyCodeObject* code, std::size_t i) {
    if (i >= static_cast<std::size_t>(PyTuple_GET_SIZE(code->co_localsplusnames))) return "stack";
    return PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_localsplusnames, static_cast<Py_ssize_t>(i)));
}

}  // namespace

void Recording::begin_segment(std::shared_ptr<SegmentList> list) {
    list_ = std::move(list);
    segment_ = std::make_shared<Segment>();
    segment_->guards.modes = Modes::now();
    histories_.restore();
    numbers_.reset();
    recorder_ = std::make_unique<trace::Recorder>();
    recorder_->set_number_reader(bindings::read_number);
    numbers_ = std::make_unique<Numbers>(*recorder_);
    segment_->guards.begin_sizes(recorder_->symbols());
    // Programs with a backward serve one set of sizes.
    if (std::ranges::any_of(*list_, [](const auto& s) {
            return s->program != nullptr && s->program->has_backward();
        }))
        history().fix_all();
    std::function<void(PyObject*)> met;
    if (context_.settings.training) {
        recorder_->follow_gradients();
        met = [this](PyObject* o) { histories_.cut(THPVariable_Unpack(o)); };
    } else {
        recorder_->refuse_gradients();
    }
    world_ =
        std::make_unique<World>(segment_->guards, std::move(met),
                                [this](PyObject* o, std::int32_t node) { met_tensor(o, node); });
    ++context_.counters.recordings;
    began_ = Clock::now();
}

void Recording::note_reason(const std::string& reason) {
    if (recorder_->refused_gradient()) {
        const Quiet quiet;
        say("ingot: inputs need a gradient and training is off; such graphs run eagerly");
    }
    segment_->reason = reason;
    ++state().reasons[reason];
}

namespace {

/// What is recorded cannot be compiled for many sizes; for one it may.
class NeedsNumbers : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The exception being handled as a Python error that is thrown through the recording.
[[noreturn]] void raise_in_python() {
    bindings::with_python_errors([]() -> PyObject* { throw; });
    throw pybind11::error_already_set();
}

/// The graph of a segment: its inputs, outputs and program.
class GraphEnd {
  public:
    GraphEnd(trace::Recorder& recorder, const World& world, const Numbers& numbers,
             Segment& segment, Histories& histories)
        : recorder_(recorder),
          world_(world),
          numbers_(numbers),
          segment_(segment),
          histories_(histories) {}

    Origin origin_of(PyObject* o) {
        if (const c10::SymInt* number = numbers_.find(o)) {
            if (const Known* k = world_.find(o); k != nullptr) return world_.origin_of(o);
            return {Origin::Kind::Number,
                    segment_.guards.sizes().add_computed(trace::unwrap(*number))};
        }
        if (!is_tensor(o)) return world_.origin_of(o);
        const at::Tensor& t = THPVariable_Unpack(o);
        if (recorder_.owns(t)) {
            if (!THPVariable_CheckExact(o))
                return {Origin::Kind::Unknown, -1, "a tensor subclass that was made"};
            return {Origin::Kind::Output, add_output(t)};
        }
        Origin origin = world_.origin_of(o);
        if (origin.kind == Origin::Kind::Fresh)
            return {Origin::Kind::Unknown, -1, "a tensor that no operator made"};
        return origin;
    }

    std::int32_t add_output(const at::Tensor& t) {
        const auto [it, fresh] = index_.try_emplace(t.unsafeGetTensorImpl(), outputs_.size());
        if (fresh) outputs_.push_back(t);
        return static_cast<std::int32_t>(it->second);
    }

    /// Compiles, runs and fills.
    void run(const RecordingContext& context, const Transcript& transcript, Counters& counters) {
        if (numbers_.any() && recorder_.needs_backward(outputs_))
            throw NeedsNumbers("a program with a backward");
        assign_inputs();
        const std::size_t operators = recorder_.log().size();
        for (const trace::LoggedCall& call : recorder_.log())
            segment_.operators.push_back(call.op.schema().name());
        segment_.outputs = outputs_.size();
        std::vector<at::Tensor> results;
        trace::CallStatus status = trace::CallStatus::Done;
        const auto start = Clock::now();
        {
            const Quiet quiet;
            if (context.backend != nullptr) {
                histories_.restore();
                order_inputs();
                segment_.program = SegmentProgram::compile_by(
                    context.backend,
                    {transcript.log, transcript.inputs, examples_, promises_, outputs_},
                    segment_.guards.modes.grad);
            } else {
                if (!context.settings.compile.debug.empty()) reproduce(context, transcript, false);
                compile(context, transcript);
            }
        }
        histories_.restore();
        segment_.guards.sizes().close();
        if (segment_.program == nullptr) {
            segment_.inputs.clear();
            return;
        }
        counters.compile_seconds += seconds_since(start);
        std::vector<c10::TensorImpl*> inputs;
        for (const at::Tensor& t : examples_) inputs.push_back(t.unsafeGetTensorImpl());
        const SymbolValues numbers = segment_.guards.sizes().example_numbers();
        {
            const Quiet quiet;
            WithoutLock unlocked;
            status = segment_.program->call(inputs, results, numbers);
        }
        if (status != trace::CallStatus::Done)
            throw NotSupported("an index is out of range, or inputs overlap");
        fulfil_all(outputs_, std::move(results));
        if (segment_.program->is_compiled())
            ++counters.graphs;
        else
            ++state().reasons["not compiled, its calls are made one by one: " + reason_];
        if (bug_) {  // eager could: no mistake of the user's
            const Quiet quiet;
            reproduce(context, transcript, true);
        }
        if (segment_.program->has_backward()) ++counters.training;
        counters.operators += static_cast<std::int64_t>(operators);
        for (const Segment::Input& in : segment_.inputs)
            if (in.pinned) {
                PinnedTensor& t = segment_.guards.tensors[static_cast<std::size_t>(in.index)];
                t.covered = !t.inspected && segment_.program->checks_inputs();
            }
    }

  private:
    void compile(const RecordingContext& context, const Transcript& transcript) {
        try {
            const WithoutLock unlocked;
            segment_.program = SegmentProgram::compile(recorder_, examples_, promises_, outputs_,
                                                       context.settings);
            return;
        } catch (const NotSupported& e) {
            if (!context.settings.fallback) raise_in_python();
            reason_ = e.what();
        } catch (const runtime::Interrupted&) {
            raise_in_python();
        } catch (const std::exception& e) {
            if (!context.settings.fallback) raise_in_python();
            reason_ = e.what();
            bug_ = true;
        }
        if (numbers_.any()) throw NeedsNumbers(reason_);
        const WithoutLock unlocked;
        segment_.program =
            SegmentProgram::of_log(transcript.log, transcript.inputs, promises_, outputs_);
    }

    /// Leaves a program that repeats the recording, with a line in the log if compiling it failed.
    void reproduce(const RecordingContext& context, const Transcript& transcript, bool failed) {
        if (context.reproduce == nullptr) return;
        try {
            std::vector<at::Tensor> examples = examples_, promises = promises_;
            const std::vector<std::size_t> order = readable_order();
            permute(examples, order);
            permute(promises, order);
            const pybind11::tuple log =
                describe({transcript.log, transcript.inputs, examples, promises, outputs_},
                         segment_.guards.modes.grad);
            pybind11::reinterpret_borrow<pybind11::object>(context.reproduce)(
                failed ? pybind11::object(pybind11::str(reason_)) : pybind11::none(), *log);
        } catch (const std::exception&) {
            PyErr_Clear();  // the run goes on without it
        }
    }

    void assign_inputs() {
        const auto sources = recorder_.inputs();
        const bool training = recorder_.needs_backward(outputs_);
        for (std::size_t i = 0; i < sources.size(); ++i) {
            const at::Tensor real = sources[i].captured;
            if (!real.defined()) continue;
            PyObject* object = python_object(real);
            const Known* known = object == nullptr ? nullptr : world_.find(object);
            if (known == nullptr) continue;
            const at::Tensor promise = sources[i].promise;
            if (known->tensor >= 0) {
                segment_.inputs.push_back({true, known->tensor});
                // What is being trained changes too often to be folded or packed.
                recorder_.give(i, !training || !real.requires_grad());
            } else if (known->dynamic()) {
                segment_.inputs.push_back({false, known->node});
                recorder_.give(i, false);
            } else {
                continue;
            }
            examples_.push_back(real);
            promises_.push_back(promise);
        }
    }

    /// The inputs with the call's tensors first, in the order in which they come; for people who
    /// read the graph. Operators ask for them in an order of their own.
    std::vector<std::size_t> readable_order() const {
        std::vector<std::size_t> order(examples_.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            const Segment::Input &x = segment_.inputs[a], &y = segment_.inputs[b];
            return std::pair(x.pinned, x.index) < std::pair(y.pinned, y.index);
        });
        return order;
    }
    template <class T>
    static void permute(std::vector<T>& values, const std::vector<std::size_t>& order) {
        const std::vector<T> before = values;
        for (std::size_t i = 0; i < order.size(); ++i) values[i] = before[order[i]];
    }
    void order_inputs() {
        const std::vector<std::size_t> order = readable_order();
        permute(segment_.inputs, order);
        permute(examples_, order);
        permute(promises_, order);
    }

    trace::Recorder& recorder_;
    const World& world_;
    const Numbers& numbers_;
    Segment& segment_;
    Histories& histories_;
    std::unordered_map<c10::TensorImpl*, std::size_t> index_;
    std::vector<at::Tensor> outputs_, examples_, promises_;
    std::string reason_;  // why the program is not compiled
    bool bug_ = false;    // it should have been
};

}  // namespace

bool Recording::end_segment(Segment::End end, const std::vector<PyObject*>& roots) {
    scope_.reset();
    context_.counters.record_seconds += seconds_since(began_);
    const Transcript transcript(*recorder_);
    const std::vector<at::Tensor> live = transcript.live();
    std::string reason;
    try {
        segment_->after = Modes::now();
        if (!segment_->after.reachable_from(segment_->guards.modes))
            throw NotSupported("a mode is left changed: " +
                               segment_->after.difference(segment_->guards.modes));
        if (!world_->variables_are_back()) throw NotSupported("a context variable is left changed");
        GraphEnd graph(*recorder_, *world_, *numbers_, *segment_, histories_);
        RecipeBuilder builder([&](PyObject* o) { return graph.origin_of(o); });
        for (PyObject* root : roots) builder.add_root(root);
        world_->add_effects(builder);
        segment_->has_effects = world_->has_writes();
        segment_->recipes = builder.finish();
        for (const at::Tensor& t : live) graph.add_output(t);
        graph.run(context_, transcript, context_.counters);
        segment_->end = end;
        for (const std::string& symbol : segment_->guards.sizes().specialised())
            history().fix(symbol);
        if (!numbers_->any()) segment_->guards.drop_sizes();
        list_->push_back(segment_);
        return true;
    } catch (const pybind11::error_already_set&) {  // a backend's, or no fallback is wanted
        const Pending pending;
        histories_.restore();
        transcript.fill_all(live);
        throw;
    } catch (const NeedsNumbers& e) {
        // This call goes on without a recording; the next one is recorded with numbers.
        history().fix_all();
        histories_.restore();
        transcript.fill_all(live);
        segment_->reason = e.what();
        return false;
    } catch (const NoRecipe& e) {
        reason = e.what();
    } catch (const Puzzle& e) {
        reason = e.what();
    } catch (const Error& e) {
        reason = e.what();
    }
    histories_.restore();
    transcript.fill_all(live);
    end_of_sizes();
    segment_->end = Segment::End::Eager;
    segment_->program.reset();
    segment_->inputs.clear();
    segment_->recipes = {};
    for (PinnedTensor& t : segment_->guards.tensors) t.covered = false;
    note_reason(reason);
    list_->push_back(segment_);
    return false;
}

/// The relations of sizes belong to the guards of a segment that means eager, too.
void Recording::end_of_sizes() {
    if (numbers_->any())
        segment_->guards.sizes().close();
    else
        segment_->guards.drop_sizes();
}

void Recording::end_eagerly(const std::string& reason) {
    scope_.reset();
    context_.counters.record_seconds += seconds_since(began_);
    histories_.restore();
    const Transcript transcript(*recorder_);
    transcript.fill_all(transcript.live());
    end_of_sizes();
    segment_->end = Segment::End::Eager;
    note_reason(reason);
    list_->push_back(segment_);
}

void Recording::give_up(const std::string& reason) {
    if (over_) return;
    over_ = true;
    const Pending pending;
    end_eagerly(reason);
    if (Session* session = Session::current()) session->stop();
}

PyObject* Recording::conclude(PyObject* result) {
    if (over_) return result;
    over_ = true;
    return bindings::with_python_errors([&]() -> PyObject* {
        if (result == nullptr) {
            const Pending pending;
            end_eagerly("an exception leaves the function");
            return nullptr;
        }
        Ref returned = Ref::steal(result);
        end_segment(Segment::End::Return, {result});
        return returned.release();
    });
}

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
    segment_->line = place_of(frame);
    ++context_.counters.breaks;
    if (!context_.fullgraph) return false;
    give_up(reason);
    PyErr_SetString(bindings::error_types().unsupported,
                    (reason + "\n  " + segment_->line).c_str());
    return true;
}

Verdict Recording::raised(pybind11::error_already_set& error) {
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
            give_up(reason);
            return Verdict::run;
        }
        segment_->at = std::move(point);
        std::vector<Ref> held;
        for (PyObject* o : roots) held.push_back(Ref::borrow(o));
        if (end_segment(Segment::End::Leave, roots))
            note_reason(reason);
        else
            segment_->reason = reason + "; " + segment_->reason;
        over_ = true;
        if (Session* session = Session::current()) session->stop();
        return Verdict::run;
    } catch (pybind11::error_already_set& e) {
        return raised(e);
    } catch (const std::exception& e) {
        give_up(std::string("internal: ") + e.what());
        return PyErr_Occurred() ? Verdict::raise : Verdict::run;
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
            give_up(reason);
            return Verdict::run;
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
        const auto children = segment_->children;
        const std::size_t operands = event.operands.size();
        *result = perform_unobserved(event);
        if (!ended || *result == nullptr || children->size() >= context_.limit) {
            over_ = true;
            if (Session* session = Session::current()) session->stop();
            return *result == nullptr ? Verdict::raise : finish_result(event, result);
        }
        begin_segment(children);
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
        add_slot(static_cast<Py_ssize_t>(index), *result, "the result", false);
        start();
        return finish_result(event, result);
    } catch (pybind11::error_already_set& e) {
        return raised(e);
    } catch (const std::exception& e) {
        give_up(std::string("internal: ") + e.what());
        return PyErr_Occurred() ? Verdict::raise : Verdict::run;
    }
}

}  // namespace ingot::capture
