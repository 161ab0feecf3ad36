// See captured.h.
#include "capture/captured.h"

#include <structmember.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "bindings/errors.h"
#include "capture/news.h"
#include "capture/replay.h"

namespace ingot::capture {

/// What a captured function keeps besides Python objects.
struct CapturedState {
    /// The segments that begin with a call of this shape.
    struct Shape {
        Py_ssize_t positional = 0;
        Ref names;  // of keyword arguments: a tuple or none
        std::shared_ptr<SegmentList> list;
        bool full = false;  // said so
        bool met = false;   // called under the stance that runs first calls eagerly
    };

    CapturedState(const pybind11::dict& values, Counters& counters)
        : settings(values.contains("settings") ? values["settings"].cast<pybind11::dict>()
                                               : pybind11::dict()),
          tree(std::make_shared<SegmentTree>()),
          context{settings, counters} {
        const auto flag = [&](const char* key) {
            return values.contains(key) && values[key].ptr() == Py_True;
        };
        context.fullgraph = flag("fullgraph");
        forced = flag("forced");
        if (values.contains("recompile_limit") && !values["recompile_limit"].is_none()) {
            context.limit = values["recompile_limit"].cast<std::size_t>();
            has_limit = true;
        }
        if (values.contains("name") && pybind11::isinstance<pybind11::str>(values["name"]))
            context.name = values["name"].cast<std::string>();
        if (values.contains("place") && pybind11::isinstance<pybind11::str>(values["place"]))
            context.place = values["place"].cast<std::string>();
        if (values.contains("backend") && !values["backend"].is_none())
            context.backend = values["backend"].ptr();
        if (values.contains("reproduce")) context.reproduce = values["reproduce"].ptr();
        if (values.contains("dynamic") && !values["dynamic"].is_none()) {
            context.dynamic = flag("dynamic") ? Dynamic::Always : Dynamic::Never;
            has_dynamic = true;
        }
        context.tree = tree;
        context.arena_of_steps = state().arena_of_steps;
        if (context.name.empty()) context.name = "a function";
    }

    /// Another thread may add shapes or forget all of them while a call is served.
    std::shared_ptr<Shape> shape(Py_ssize_t positional, PyObject* names) {
        for (const auto& s : shapes)
            if (s->positional == positional && same_names(s->names.get(), names)) return s;
        auto s = std::make_shared<Shape>();
        s->positional = positional;
        s->names = Ref::borrow(names);
        s->list = tree->list("call " + std::to_string(shapes.size()));
        shapes.push_back(s);
        return s;
    }
    /// What `torch._dynamo.config` says, where the options say nothing. False: the Python error is
    /// set. `may_record`: a recording may be made.
    bool follow_torch(bool* may_record) {
        TorchControls::Settings torch;
        if (!state().torch.read(torch)) return false;
        if (!has_limit && torch.limit >= 0) context.limit = static_cast<std::size_t>(torch.limit);
        if (!has_dynamic)
            context.dynamic = torch.dynamic == Py_None   ? Dynamic::WhenChanged
                              : torch.dynamic == Py_True ? Dynamic::Always
                                                         : Dynamic::Never;
        std::size_t recordings = 0;
        for (const auto& s : shapes) recordings += s->list->size();
        accumulated_full =
            torch.accumulated >= 0 && recordings >= static_cast<std::size_t>(torch.accumulated);
        *may_record = !torch.disabled;
        return true;
    }
    static bool same_names(PyObject* a, PyObject* b) {
        if (a == b) return true;
        const Py_ssize_t n = a == nullptr ? 0 : PyTuple_GET_SIZE(a);
        if (n != (b == nullptr ? 0 : PyTuple_GET_SIZE(b))) return false;
        for (Py_ssize_t i = 0; i < n; ++i)
            if (PyTuple_GET_ITEM(a, i) != PyTuple_GET_ITEM(b, i) &&
                PyUnicode_Compare(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i)) != 0)
                return false;
        return true;
    }
    void reset() {
        shapes.clear();
        tree = std::make_shared<SegmentTree>();
        context.tree = tree;
    }

    bindings::Settings settings;
    std::shared_ptr<SegmentTree> tree;
    RecordingContext context;
    std::vector<std::shared_ptr<Shape>> shapes;
    std::string failure;
    bool forced = false;                          // made for a stance that forces a backend
    bool has_limit = false, has_dynamic = false;  // by options
    bool accumulated_full = false;  // as many recordings as PyTorch's configuration allows
};

void say(const std::string& line) {
    const Ref module = Ref::steal(PyImport_ImportModule("ingot._backend"));
    const Ref done =
        module ? Ref::steal(PyObject_CallMethod(module.get(), "_say_once", "s", line.c_str()))
               : Ref();
    if (!done) PyErr_Clear();
}

namespace {

PyTypeObject* captured_type = nullptr;

/// How many arguments a vectorcall has, named ones included.
Py_ssize_t count_of(Py_ssize_t positional, PyObject* names) {
    return positional + (names == nullptr ? 0 : PyTuple_GET_SIZE(names));
}

CapturedObject* as_captured(PyObject* o) { return reinterpret_cast<CapturedObject*>(o); }

PyObject* run_eagerly(CapturedObject* self, PyObject* const* arguments, std::size_t flags,
                      PyObject* names) {
    ++self->counters->eager_calls;
    return PyObject_Vectorcall(self->function, arguments, flags, names);
}

/// Runs a call eagerly that `fullgraph` may refuse. `eager`: the segment whose guards say so;
/// nullptr: an operator of the graph fails, which eager says in its own words.
PyObject* run_unrecorded(CapturedObject* self, const Segment* eager, PyObject* const* arguments,
                         std::size_t flags, PyObject* names) {
    const RecordingContext& context = self->state->context;
    if (eager != nullptr && eager->refused)
        return raise_error(unsupported(context, eager->reason, eager->places));
    PyObject* result = run_eagerly(self, arguments, flags, names);
    if (result == nullptr || !context.fullgraph) return result;
    Py_DECREF(result);
    return raise_error(unsupported(context, kHandledFailure, {}));
}

/// Records a call. Its arguments are the slots.
PyObject* record(CapturedObject* self, CapturedState::Shape shape, PyObject* const* arguments,
                 std::size_t flags, PyObject* names, std::size_t count) {
    Recording recording(self->state->context, shape.list);
    PyObject* function = self->function;
    recording.pin(function, "the function");
    while (PyMethod_Check(function)) {
        recording.pin(PyMethod_GET_SELF(function), "self");
        recording.pin(PyMethod_GET_FUNCTION(function), "the function");
        function = PyMethod_GET_FUNCTION(function);
    }
    auto* code = PyFunction_Check(function)
                     ? reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))
                     : nullptr;
    const auto positional = static_cast<std::size_t>(PyVectorcall_NARGS(flags));
    const std::size_t first = function != self->function ? 1 : 0;
    std::vector<PyObject*> actual;
    for (std::size_t i = 0; i < count; ++i) {
        std::string name = "argument " + std::to_string(i);
        if (i >= positional)
            name =
                PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i - positional)));
        else if (code != nullptr && first + i < static_cast<std::size_t>(code->co_argcount))
            name = PyUnicode_AsUTF8(
                PyTuple_GET_ITEM(code->co_localsplusnames, static_cast<Py_ssize_t>(first + i)));
        actual.push_back(recording.add_slot(static_cast<Py_ssize_t>(i), arguments[i], name, true));
    }
    recording.begins_call();
    recording.begin_again_by([&] { return run_eagerly(self, arguments, flags, names); });
    PyObject* result = nullptr;
    {
        Session session(&recording);
        // The place below the first argument is not ours to lend.
        if (recording.start())
            result =
                PyObject_Vectorcall(self->function, actual.data(),
                                    static_cast<std::size_t>(PyVectorcall_NARGS(flags)), names);
    }
    return recording.conclude(result);
}

/// Under a stance that has another backend for every function.
PyObject* call_forced(CapturedObject* self, PyObject* const* arguments, std::size_t flags,
                      PyObject* names) {
    const Py_ssize_t positional = PyVectorcall_NARGS(flags);
    const Py_ssize_t count = count_of(positional, names);
    std::vector<PyObject*> all{reinterpret_cast<PyObject*>(self)};
    all.insert(all.end(), arguments, arguments + count);
    const Ref callable = Ref::borrow(state().forced);
    return PyObject_Vectorcall(callable.get(), all.data(), static_cast<std::size_t>(positional) + 1,
                               names);
}

/// Of each recording the guard that does not hold for this call, where somebody wants to know.
std::vector<std::string> failures_of(const SegmentList& list, std::span<PyObject* const> slots) {
    std::vector<std::string> failures;
    if (!tells_guards()) return failures;
    for (const auto& segment : SegmentList(list)) {
        Values values;
        std::string failure;
        if (!segment->guards.check(slots, values, &failure)) failures.push_back(failure);
    }
    return failures;
}

PyObject* call_checked(CapturedObject* self, PyObject* const* arguments, std::size_t flags,
                       PyObject* names) {
    if (!state().torch.follow_stance()) return nullptr;
    const Stance stance = state().stance;
    CapturedState& s = *self->state;
    Recording* running = Recording::current();
    if (state().forced != nullptr && !s.forced && running == nullptr)
        return call_forced(self, arguments, flags, names);
    if (stance == Stance::ForceEager || (running != nullptr && running->follows_operators()))
        return run_eagerly(self, arguments, flags, names);
    const Py_ssize_t positional = PyVectorcall_NARGS(flags);
    const Py_ssize_t count = count_of(positional, names);
    const std::shared_ptr<CapturedState::Shape> held = s.shape(positional, names);
    CapturedState::Shape& shape = *held;
    const std::shared_ptr<SegmentList> list = shape.list;
    std::shared_ptr<const Segment> eager;
    const ReplayContext context{s.context, stance, nullptr, &eager};
    const std::span<PyObject* const> slots(arguments, static_cast<std::size_t>(count));
    PyObject* result = nullptr;
    switch (replay(context, *list, slots, &result)) {
        case ReplayStatus::Done:
            ++self->counters->replays;
            return result;
        case ReplayStatus::Eager:
            return run_unrecorded(self, eager.get(), arguments, flags, names);
        case ReplayStatus::NoMatch:
            break;
    }
    if (stance == Stance::EagerThenCompile && list->empty() && !std::exchange(shape.met, true))
        return run_eagerly(self, arguments, flags, names);
    if (!list->empty()) {
        ++self->counters->guard_failures;
        Values values;
        list->back()->guards.check(slots, values, &s.failure);
    }
    if (stance == Stance::EagerOnRecompile) return run_eagerly(self, arguments, flags, names);
    if (stance == Stance::FailOnRecompile)
        return raise_error(recompile_error(
            s.context, list->empty() ? s.context.name + " is not compiled yet" : s.failure));
    bool may_record = true;
    if (!s.follow_torch(&may_record)) return nullptr;
    if (!may_record) return run_eagerly(self, arguments, flags, names);
    if (s.accumulated_full || is_full(*list, s.context.limit, Modes::now())) {
        if (s.context.fullgraph) return raise_error(limit_error(s.context, s.failure));
        if (!shape.full) {
            shape.full = true;
            const std::string text = "more than " + std::to_string(s.context.limit) +
                                     " recordings; the last guard that failed: " + s.failure;
            ++state().reasons[text];
            tell_limit(s.context, s.failure);
        }
        return run_eagerly(self, arguments, flags, names);
    }
    if (frames_are_traced()) {
        const char* const reason = "a debugger or a profiler traces Python";
        if (s.context.fullgraph) return raise_error(unsupported(s.context, reason, {}));
        tell(s.context, "eager", reason);
        return run_eagerly(self, arguments, flags, names);
    }
    if (!list->empty()) tell(s.context, "recompile", s.failure, {}, failures_of(*list, slots));
    return record(self, shape, arguments, flags, names, static_cast<std::size_t>(count));
}

PyObject* call(PyObject* o, PyObject* const* arguments, std::size_t flags, PyObject* names) {
    CapturedObject* self = as_captured(o);
    ++self->counters->calls;
    return bindings::with_python_errors(
        [&] { return call_checked(self, arguments, flags, names); });
}

int traverse(PyObject* o, visitproc visit, void* arg) {
    CapturedObject* self = as_captured(o);
    Py_VISIT(self->function);
    Py_VISIT(self->options);
    Py_VISIT(self->dict);
    Py_VISIT(Py_TYPE(o));
    return self->state == nullptr ? 0 : self->state->tree->traverse(visit, arg);
}

int clear(PyObject* o) {
    CapturedObject* self = as_captured(o);
    Py_CLEAR(self->function);
    Py_CLEAR(self->options);
    Py_CLEAR(self->dict);
    if (self->state != nullptr) self->state->reset();
    return 0;
}

void finalize(PyObject* o) {
    CapturedObject* self = as_captured(o);
    PyTypeObject* type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (self->weak_references != nullptr) PyObject_ClearWeakRefs(o);
    clear(o);
    state().captured.erase(o);
    state().dropped.add(*self->counters);
    delete self->state;
    delete self->counters;
    type->tp_free(o);
    Py_DECREF(type);
}

PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
    return object == nullptr || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

PyObject* counters(PyObject* o, PyObject*) { return as_captured(o)->counters->as_dict(); }

namespace rows {
namespace py = pybind11;

py::dict row_of(const Segment& segment, bool root) {
    py::dict row;
    const bool eager = segment.end == Segment::End::Eager;
    row["kind"] = eager ? "eager" : "graph";
    const bool whole = segment.end == Segment::End::Return;
    row["end"] = eager ? "raise" : whole ? "return" : "break";
    row["reason"] = segment.reason;
    row["line"] = segment.line;
    row["stack"] = py::list();
    for (const CodePlace& place : segment.places)
        row["stack"].cast<py::list>().append(place.text());
    py::list operators, guards;
    for (const std::string& name : segment.operators) operators.append(name);
    for (const std::string& text : segment.guards.sentences()) guards.append(text);
    row["operators"] = operators;
    row["guards"] = guards;
    row["inputs"] = segment.inputs.size();
    row["outputs"] = segment.outputs;
    row["saved_bytes"] = segment.program ? segment.program->saved_bytes() : 0;
    const runtime::CompileReport made =
        segment.program ? segment.program->report() : runtime::CompileReport();
    py::dict report;
    report["kernels"] = made.kernels;
    report["externs"] = made.externs;
    report["seconds"] = made.seconds();
    row["report"] = report;
    row["root"] = root;
    row["children"] = segment.children ? segment.children->size() : 0;
    return row;
}

py::dict row_of(const SegmentTree::Abandoned& abandoned) {
    py::dict row;
    row["kind"] = "abandoned";
    row["end"] = "raise";
    row["operators"] = py::list();
    row["guards"] = py::list();
    row["reason"] = abandoned.reason;
    row["line"] = abandoned.line;
    return row;
}

}  // namespace rows

PyObject* explain(PyObject* o, PyObject*) {
    return bindings::with_python_errors([&]() -> PyObject* {
        std::vector<std::pair<std::size_t, pybind11::dict>> all;
        const SegmentTree& tree = *as_captured(o)->state->tree;
        for (const auto& [key, list] : tree.lists)
            for (const auto& segment : *list)
                all.emplace_back(segment->number, rows::row_of(*segment, key.starts_with("call ")));
        for (const auto& abandoned : tree.abandoned)
            all.emplace_back(abandoned.number, rows::row_of(abandoned));
        std::ranges::stable_sort(all, {}, [](const auto& row) { return row.first; });
        pybind11::list sorted;
        for (const auto& [number, row] : all) sorted.append(row);
        return sorted.release().ptr();
    });
}

/// The best of some rounds over the guards of the first recording that serves these arguments.
PyObject* guard_seconds(PyObject* o, PyObject* const* arguments, Py_ssize_t positional,
                        PyObject* names) {
    using Clock = std::chrono::steady_clock;
    constexpr int kRounds = 20, kChecks = 500;
    return bindings::with_python_errors([&]() -> PyObject* {
        const Py_ssize_t count = count_of(positional, names);
        const std::span<PyObject* const> slots(arguments, static_cast<std::size_t>(count));
        const auto list = as_captured(o)->state->shape(positional, names)->list;
        for (const auto& segment : *list) {
            const auto holds = [&] {
                Values values;
                return segment->guards.check(slots, values, nullptr);
            };
            if (!holds()) continue;
            double best = std::numeric_limits<double>::infinity();
            for (int round = 0; round < kRounds; ++round) {
                const auto start = Clock::now();
                for (int i = 0; i < kChecks; ++i) holds();
                best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
            }
            return PyFloat_FromDouble(best / kChecks);
        }
        return Py_NewRef(Py_None);
    });
}

PyObject* reset(PyObject* o, PyObject*) {
    forget(o);
    return Py_NewRef(Py_None);
}

PyObject* last_failure(PyObject* o, void*) {
    const std::string& text = as_captured(o)->state->failure;
    return text.empty() ? Py_NewRef(Py_None) : PyUnicode_FromString(text.c_str());
}

PyMethodDef methods[] = {
    {"counters", counters, METH_NOARGS, "What happened to its calls, as a dict."},
    {"explain", explain, METH_NOARGS, "A list with a dict for each recorded segment."},
    {"guard_seconds", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guard_seconds)),
     METH_FASTCALL | METH_KEYWORDS,
     "Seconds that the guards of a call with these arguments take; None if it was not recorded."},
    {"reset", reset, METH_NOARGS, "Forgets all recordings."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef properties[] = {
    {"last_failure", last_failure, nullptr, "The last guard that failed, as a sentence.", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CapturedObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CapturedObject, weak_references), READONLY,
     nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(CapturedObject, dict), READONLY, nullptr},
    {"function", T_OBJECT, offsetof(CapturedObject, function), READONLY, "What was captured."},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

bool add_captured_type(PyObject* module) {
    static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(finalize)},
                                  {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                  {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                  {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                  {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
                                  {Py_tp_methods, methods},
                                  {Py_tp_getset, properties},
                                  {Py_tp_members, members},
                                  {0, nullptr}};
    static PyType_Spec spec = {"ingot._ingot.Captured", sizeof(CapturedObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                   Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               slots};
    captured_type =
        reinterpret_cast<PyTypeObject*>(PyType_FromModuleAndSpec(module, &spec, nullptr));
    return captured_type != nullptr && PyModule_AddType(module, captured_type) == 0;
}

PyObject* make_captured(PyObject* function, PyObject* options) {
    auto* self = PyObject_GC_New(CapturedObject, captured_type);
    if (self == nullptr) return nullptr;
    self->vectorcall = call;
    self->function = Py_NewRef(function);
    self->options = Py_NewRef(options);
    self->dict = nullptr;
    self->weak_references = nullptr;
    self->counters = new Counters;
    self->state = nullptr;
    state().captured.insert(reinterpret_cast<PyObject*>(self));
    PyObject* made = reinterpret_cast<PyObject*>(self);
    PyObject* ready = bindings::with_python_errors([&] {
        self->state = new CapturedState(pybind11::reinterpret_borrow<pybind11::dict>(options),
                                        *self->counters);
        return made;
    });
    PyObject_GC_Track(self);
    if (ready == nullptr) Py_DECREF(made);
    return ready;
}

void forget(PyObject* captured) { as_captured(captured)->state->reset(); }

bool is_recording() {
    const Recording* running = Recording::current();
    return running != nullptr && running->follows_operators();
}

PyObject* captured_function(PyObject* object) {
    return Py_TYPE(object) == captured_type ? as_captured(object)->function : nullptr;
}

}  // namespace ingot::capture
