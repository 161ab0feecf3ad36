// Observing the interpreter: what each operation means for a recording; see recording.h.
#include "capture/recording.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <opcode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <unordered_set>

#include "bindings/errors.h"
#include "capture/captured.h"
#include "capture/objects.h"
#include "capture/perform.h"

namespace ingot::capture {
namespace {

thread_local Recording* current_recording = nullptr;

std::string text_of(PyObject* name) {
    const char* s = name == nullptr ? nullptr : PyUnicode_AsUTF8(name);
    if (s == nullptr) PyErr_Clear();
    return s == nullptr ? "?" : s;
}

bool any_tensor(std::span<PyObject* const> objects, int depth = 2) {
    for (PyObject* o : objects) {
        if (o == nullptr) continue;
        if (is_tensor(o)) return true;
        if (depth > 0 && (PyTuple_Check(o) || PyList_Check(o)) &&
            any_tensor({PySequence_Fast_ITEMS(o), static_cast<std::size_t>(Py_SIZE(o))}, depth - 1))
            return true;
    }
    return false;
}

/// Built-in functions that turn a tensor into text or a number of Python's.
bool needs_data(const std::string& name) {
    static const std::unordered_set<std::string> names = {"repr",  "format", "print", "ascii",
                                                          "round", "bin",    "hex",   "oct"};
    return names.contains(name);
}
bool class_needs_data(PyTypeObject* type) {
    return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyBool_Type || type == &PyComplex_Type;
}
/// Methods of tensors written in Python that need data.
bool method_needs_data(PyObject* function) {
    static const std::unordered_set<std::string> names = {"__repr__",
                                                          "__format__",
                                                          "__deepcopy__",
                                                          "__reduce_ex__",
                                                          "__contains__",
                                                          "storage",
                                                          "backward",
                                                          "register_hook",
                                                          "unique",
                                                          "unique_consecutive",
                                                          "__array__",
                                                          "__dlpack__",
                                                          "untyped_storage",
                                                          "is_shared",
                                                          "share_memory_",
                                                          "__hash__",
                                                          "register_post_accumulate_grad_hook",
                                                          "to_sparse_coo",
                                                          "__cuda_array_interface__"};
    return names.contains(text_of(reinterpret_cast<PyFunctionObject*>(function)->func_name));
}

/// What a class statement without __slots__ adds to `object`.
constexpr Py_ssize_t kDictAndWeakReferences = 2 * sizeof(PyObject*);

bool is_in_place(int detail) { return detail >= NB_INPLACE_ADD && detail <= NB_INPLACE_XOR; }

}  // namespace

Recording* Recording::current() { return current_recording; }

Recording::Recording(RecordingContext context, std::shared_ptr<SegmentList> list)
    : context_(std::move(context)), outer_(current_recording) {
    current_recording = this;
    begin_segment(std::move(list));
}

Recording::~Recording() {
    scope_.reset();
    current_recording = outer_;
}

void Recording::add_slot(Py_ssize_t index, PyObject* value, const std::string& name) {
    try {
        world_->add_slot(index, value, name);
    } catch (const Puzzle& e) {
        if (refusal_.empty()) refusal_ = e.what();
    }
}
void Recording::pin(PyObject* object, const char* name) { world_->pin(object, name); }
void Recording::start() {
    if (const char* reason = segment_->guards.modes.obstacle(); reason != nullptr) {
        give_up(reason);
        return;
    }
    scope_ = std::make_unique<trace::Recorder::Scope>(*recorder_);
    depth_ = c10::impl::TorchDispatchModeTLS::stack_len();
    if (!refusal_.empty()) give_up(std::exchange(refusal_, {}));
}
void Recording::answer_first(Operation operation, PyObject* result) {
    first_ = operation;
    first_result_ = Ref::borrow(result);
}

bool Recording::is_our_tensor(PyObject* o) const {
    return is_tensor(o) && recorder_->owns(THPVariable_Unpack(o));
}

void Recording::read_arguments(std::span<PyObject* const> arguments, int depth) {
    for (PyObject* o : arguments)
        if (o != nullptr) world_->read_whole(o, depth);
}

Verdict Recording::entered(Frame frame, Entry entry) {
    if (over_) return Verdict::hand_back;
    // Python code that PyTorch runs to describe an operator (a meta function): not the program's.
    if (scope_ != nullptr && c10::impl::TorchDispatchModeTLS::stack_len() < depth_)
        return Verdict::hand_back;
    try {
        return enter(frame, entry);
    } catch (const std::exception& e) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, e.what());
        return Verdict::raise;
    }
}

Verdict Recording::enter(Frame frame, Entry entry) {
    auto* function = reinterpret_cast<PyObject*>(frame.function());
    try {
        if (function == nullptr) return Verdict::run;
        if (world_->find(function) == nullptr && entry == Entry::called) {
            // A special method: found by C code in the class of the first argument.
            const auto slots = frame.slots();
            PyObject* self = frame.code()->co_argcount > 0 && !slots.empty() ? slots[0] : nullptr;
            if (self != nullptr && !PyCell_Check(self)) {
                PyObject* name = frame.code()->co_name;
                world_->read_class(Py_TYPE(self), name);
                if (PyType_Check(self))
                    world_->read_class(reinterpret_cast<PyTypeObject*>(self), name);
            }
        }
        world_->read_function(function);
        if (world_->find(frame.globals()) == nullptr) world_->pin(frame.globals(), "globals()");
        if (entry == Entry::called && method_needs_data(function)) {
            // Called by C code, say by `sorted` for its key; else the call has broken already.
            const auto slots = frame.slots();
            if (!slots.empty() && is_tensor(slots[0])) {
                give_up("the data of a tensor (" + callable_name(function) + ")");
                return Verdict::run;
            }
        }
        if (const Mark mark = state().mark_of(function); mark == Mark::DisableOnce) {
            give_up("a function that is not to be compiled");
            return Verdict::run;
        }
    } catch (const std::exception& e) {
        give_up(e.what());
    }
    return Verdict::run;
}

bool Recording::after(Frame, const Event&, PyObject*) { return true; }

Verdict Recording::before(Frame frame, const Event& event, PyObject** result) {
    if (over_) return Verdict::run;
    if (first_ && *first_ == event.operation) {
        first_.reset();
        *result = first_result_.release();
        return Verdict::handled;
    }
    try {
        try {
            return guarded(frame, event, result);
        } catch (const Handover& e) {
            return leave_at(frame, event, e.what());
        } catch (const Puzzle& e) {
            return break_at(frame, event, e.what(), result);
        } catch (const Error& e) {
            return break_at(frame, event, std::string("internal: ") + e.what(), result);
        }
    } catch (const std::exception& e) {
        // What could be made real has been; this is an error of an operator that was put off.
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, e.what());
        return Verdict::raise;
    }
}

Verdict Recording::guarded(Frame frame, const Event& event, PyObject** result) {
    const auto& o = event.operands;
    switch (event.operation) {
        case Operation::read_global:
            for (PyObject* dict : {o[0], o[1]}) {
                if (world_->find(dict) == nullptr) world_->pin(dict, "globals()");
                world_->read_dict(dict, event.name);
                if (PyDict_GetItemWithError(dict, event.name) != nullptr) break;
            }
            return Verdict::run;
        case Operation::read_name:
            throw Puzzle("code that is no function");
        case Operation::read_cell:
            world_->read_cell(o[0]);
            return Verdict::run;
        case Operation::read_attribute:
            if (is_tensor(o[0])) return on_tensor_attribute(frame, event, result);
            world_->read_attribute(o[0], event.name);
            return Verdict::run;
        case Operation::read_item:
            if (any_tensor(o)) {
                read_arguments(o, 4);
                if (is_tensor(o[0])) return carried(frame, event, result);
            }
            world_->read_special_methods(o[0]);
            world_->read_item(o[0], o[1]);
            return Verdict::run;
        case Operation::store_cell:
        case Operation::store_global:
        case Operation::store_attribute:
        case Operation::delete_cell:
        case Operation::delete_global:
        case Operation::delete_attribute:
        case Operation::delete_item:
            on_store(event);
            return Verdict::run;
        case Operation::store_item:
            if (is_tensor(o[0])) {
                read_arguments(o, 4);
                return carried(frame, event, result);
            }
            on_store(event);
            return Verdict::run;
        case Operation::call:
            return on_call(frame, event, result);
        case Operation::call_expanded:
            return on_expanded_call(frame, event, result);
        case Operation::unary:
        case Operation::binary:
        case Operation::compare:
        case Operation::contains:
        case Operation::truth:
            return on_operator(frame, event, result);
        case Operation::identical:
            world_->relate(o[0], o[1]);
            return Verdict::run;
        case Operation::is_none:
        case Operation::import_star:
        case Operation::yield_value:
        case Operation::send:
        case Operation::await:
        case Operation::read_local:
        case Operation::match_exception:
            return Verdict::run;
        case Operation::iterate:
        case Operation::unpack:
        case Operation::length:
            world_->read_special_methods(o[0]);
            world_->read_whole(o[0], 1);
            return Verdict::run;
        case Operation::next:
            if (const Known* k = world_->find(o[0]);
                k != nullptr && !has_python_layout(Py_TYPE(o[0])))
                throw Puzzle("an iterator from outside");
            return Verdict::run;
        case Operation::extend_list:
        case Operation::extend_set:
        case Operation::extend_dict:
            world_->read_whole(o[1], 1);
            return Verdict::run;
        case Operation::format:
            if (any_tensor(o)) throw Puzzle("a tensor as text");
            world_->read_special_methods(o[0]);
            read_arguments(o, 4);
            return Verdict::run;
        case Operation::enter_context: {
            static PyObject* const enter = PyUnicode_InternFromString("__enter__");
            static PyObject* const exit = PyUnicode_InternFromString("__exit__");
            PyObject* method = world_->read_class(Py_TYPE(o[0]), enter);
            world_->read_class(Py_TYPE(o[0]), exit);
            if (method != nullptr && !PyFunction_Check(method))
                throw Puzzle(std::string("a context of type ") + Py_TYPE(o[0])->tp_name);
            return Verdict::run;
        }
        case Operation::exit_context:
            return Verdict::run;
        case Operation::match_class:
        case Operation::match_keys:
        case Operation::match_kind:
            for (PyObject* operand : o)
                if (operand != nullptr) world_->read_special_methods(operand);
            world_->read_whole(o[0], 2);
            return Verdict::run;
        case Operation::import_name: {
            PyObject* modules = PyImport_GetModuleDict();
            if (PyDict_GetItemWithError(modules, event.name) == nullptr)
                throw Handover("an import for the first time");
            return Verdict::run;
        }
        case Operation::import_from:
            world_->read_attribute(o[0], event.name);
            return Verdict::run;
        case Operation::store_name:
        case Operation::delete_name:
            throw Puzzle("code that is no function");
    }
    return Verdict::run;
}

void Recording::on_store(const Event& event) {
    const auto& o = event.operands;
    switch (event.operation) {
        case Operation::store_cell:
        case Operation::delete_cell:
            world_->write_cell(o[0]);
            return;
        case Operation::store_global:
        case Operation::delete_global:
            if (world_->find(o[0]) == nullptr) world_->pin(o[0], "globals()");
            world_->write_dict(o[0], event.name);
            return;
        case Operation::store_attribute:
        case Operation::delete_attribute:
            if (is_tensor(o[0])) {
                PyObject* found = _PyType_Lookup(Py_TYPE(o[0]), event.name);
                if (found != nullptr || world_->find(o[0]) != nullptr)
                    throw Puzzle("a store to the attribute " + text_of(event.name) +
                                 " of a tensor");
                return;
            }
            world_->read_special_methods(o[0]);
            if (!has_python_setattr(Py_TYPE(o[0]))) world_->write_attribute(o[0], event.name);
            return;
        default:
            break;
    }
    // Items.
    world_->read_special_methods(o[0]);
    const bool python = [&] {
        if (!PyType_HasFeature(Py_TYPE(o[0]), Py_TPFLAGS_HEAPTYPE)) return false;
        static PyObject* const set = PyUnicode_InternFromString("__setitem__");
        static PyObject* const del = PyUnicode_InternFromString("__delitem__");
        PyObject* found =
            _PyType_Lookup(Py_TYPE(o[0]), event.operation == Operation::store_item ? set : del);
        return found != nullptr && PyFunction_Check(found);
    }();
    if (python || world_->find(o[0]) == nullptr) return;
    if (PyDict_Check(o[0]))
        world_->write_dict(o[0], o[1]);
    else if (PyList_Check(o[0]))
        world_->write_whole(o[0]);
    else
        throw Puzzle(std::string("a store to an item of a ") + Py_TYPE(o[0])->tp_name);
}

Verdict Recording::on_tensor_attribute(Frame frame, const Event& event, PyObject** result) {
    PyObject* tensor = event.operands[0];
    if (!THPVariable_CheckExact(tensor))
        throw Puzzle(std::string("a tensor of the subclass ") + Py_TYPE(tensor)->tp_name);
    PyObject* found = world_->read_class(Py_TYPE(tensor), event.name);
    const std::string name = text_of(event.name);
    if (found == nullptr || Py_TYPE(found) != &PyGetSetDescr_Type) {
        if (found == nullptr || Py_TYPE(found)->tp_descr_set == nullptr)
            world_->read_attribute(tensor, event.name);
        return Verdict::run;
    }
    if (name == "data") {  // the same memory without history; a promise where eager has an alias
        *result = PyObject_CallMethod(tensor, "detach", nullptr);
        if (*result != nullptr) return Verdict::handled;
        PyErr_Clear();
        throw Puzzle("the data of a tensor");
    }
    const Known* known = world_->find(tensor);
    if (known != nullptr && known->tensor >= 0)
        segment_->guards.tensors[static_cast<std::size_t>(known->tensor)].inspected = true;
    if (name == "is_leaf")
        if (const auto leaf = histories_.true_leaf(THPVariable_Unpack(tensor))) {
            *result = PyBool_FromLong(*leaf);
            return Verdict::handled;
        }
    if (name == "grad" || name == "grad_fn" || name == "_base") {
        const at::Tensor& t = THPVariable_Unpack(tensor);
        if (t.requires_grad() || (name == "_base" && t.is_view()) ||
            (name == "grad" && known != nullptr))
            throw Puzzle("the attribute " + name + " of a tensor");
        return Verdict::run;
    }
    if (!is_known_tensor_attribute(event.name))
        throw Puzzle("the attribute " + name + " of a tensor");
    static const std::unordered_set<std::string> operators = {"T", "mT", "H", "mH", "real", "imag"};
    return operators.contains(name) ? carried(frame, event, result) : Verdict::run;
}

Verdict Recording::on_operator(Frame frame, const Event& event, PyObject** result) {
    const auto& o = event.operands;
    const bool tensors = std::any_of(o.begin(), o.end(), is_tensor);
    if (event.operation == Operation::truth ||
        (event.operation == Operation::unary &&
         event.detail == static_cast<int>(UnaryOperator::logical_not))) {
        if (tensors) throw Puzzle("a tensor decides a branch");
        world_->read_special_methods(o[0]);
        world_->read_whole(o[0], 1);
        return Verdict::run;
    }
    if (tensors) {
        for (PyObject* x : o)
            if (is_tensor(x) && !THPVariable_CheckExact(x))
                throw Puzzle(std::string("a tensor of the subclass ") + Py_TYPE(x)->tp_name);
        if (event.operation == Operation::contains && is_tensor(o[1]))
            throw Puzzle("a search in a tensor");
        read_arguments(o, 4);
        return carried(frame, event, result);
    }
    for (PyObject* x : o) world_->read_special_methods(x);
    if (event.operation == Operation::binary && is_in_place(event.detail) &&
        (PyList_Check(o[0]) || PyDict_Check(o[0]) || PyAnySet_Check(o[0])))
        world_->write_whole(o[0]);
    const bool deep =
        event.operation == Operation::compare || event.operation == Operation::contains;
    if (event.operation == Operation::contains && PyDict_Check(o[1])) {
        if (world_->find(o[1]) != nullptr) world_->read_dict(o[1], o[0]);
        return Verdict::run;
    }
    if (deep && o.size() > 1) world_->relate(o[0], o[1]);
    read_arguments(o, deep ? 6 : 1);
    return deep && any_tensor(o) ? carried(frame, event, result) : Verdict::run;
}

// ---- calls ----

Verdict Recording::on_call(Frame frame, const Event& event, PyObject** result) {
    return dispatch_call(frame, event, event.operands[0], nullptr, event.operands.subspan(1),
                         result);
}

Verdict Recording::on_expanded_call(Frame frame, const Event& event, PyObject** result) {
    std::vector<PyObject*> arguments;
    PyObject* tuple = event.operands[1];
    PyObject* names = event.operands.size() > 2 ? event.operands[2] : nullptr;
    if (tuple != nullptr) {
        if (!PyTuple_Check(tuple)) throw Puzzle("arguments that are no tuple");
        world_->read_whole(tuple);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
            arguments.push_back(PyTuple_GET_ITEM(tuple, i));
    }
    if (names != nullptr) {
        if (!PyDict_Check(names)) throw Puzzle("keyword arguments that are no dict");
        world_->read_whole(names);
        Py_ssize_t position = 0;
        PyObject *key = nullptr, *value = nullptr;
        while (PyDict_Next(names, &position, &key, &value)) arguments.push_back(value);
    }
    return dispatch_call(frame, event, event.operands[0], nullptr, arguments, result);
}

Verdict Recording::dispatch_call(Frame frame, const Event& event, PyObject* callable,
                                 PyObject* self, std::span<PyObject* const> arguments,
                                 PyObject** result) {
    switch (state().mark_of(callable)) {
        case Mark::Disable:
            throw Puzzle("a call of a function that is not to be compiled: " +
                         callable_name(callable));
        case Mark::Break:
            throw Puzzle("a graph break that was asked for");
        case Mark::True:
            *result = Py_NewRef(Py_True);
            return Verdict::handled;
        case Mark::Allow:
        case Mark::Constant:
            read_arguments(arguments, 4);
            return carried(frame, event, result);
        case Mark::DisableOnce:
        case Mark::None:
            break;
    }
    if (PyFunction_Check(callable)) {
        PyObject* first = self != nullptr ? self : arguments.empty() ? nullptr : arguments[0];
        if (is_tensor(first) && method_needs_data(callable) &&
            _PyType_Lookup(Py_TYPE(first),
                           reinterpret_cast<PyFunctionObject*>(callable)->func_name) == callable)
            throw Puzzle("the data of a tensor (" + callable_name(callable) + ")");
        return Verdict::run;
    }
    if (PyMethod_Check(callable)) {
        const Known* k = world_->find(callable);
        if (k != nullptr && k->dynamic()) throw Puzzle("a bound method from outside");
        return dispatch_call(frame, event, PyMethod_GET_FUNCTION(callable),
                             PyMethod_GET_SELF(callable), arguments, result);
    }
    if (PyObject* inner = captured_function(callable)) {
        // A compiled function within a compiled function: one recording.
        Event direct = event;
        std::vector<PyObject*> operands(event.operands.begin(), event.operands.end());
        operands[0] = inner;
        direct.operands = operands;
        world_->pin(inner, "a captured function");
        return carried(frame, direct, result);
    }
    if (PyType_Check(callable)) {
        auto* type = reinterpret_cast<PyTypeObject*>(callable);
        if (class_needs_data(type) && any_tensor(arguments)) throw Puzzle("the data of a tensor");
        const Verdict v = on_class(type, arguments);
        return v == Verdict::run && any_tensor(arguments) && classify_class(type) == CallKind::Pure
                   ? carried(frame, event, result)
                   : v;
    }
    if (std::string_view(Py_TYPE(callable)->tp_name) == "functools.partial")
        return on_partial(frame, event, callable, arguments, result);
    static PyObject* const call = PyUnicode_InternFromString("__call__");
    if (PyType_HasFeature(Py_TYPE(callable), Py_TPFLAGS_HEAPTYPE)) {
        PyObject* method = world_->read_class(Py_TYPE(callable), call);
        if (method != nullptr && PyFunction_Check(method)) return Verdict::run;
    }
    return on_c_function(frame, event, callable, self, arguments, result);
}

Verdict Recording::on_partial(Frame frame, const Event& event, PyObject* callable,
                              std::span<PyObject* const> arguments, PyObject** result) {
    const Known* known = world_->find(callable);
    if (known != nullptr && known->dynamic()) throw Puzzle("a partial function from outside");
    const Ref function = Ref::steal(PyObject_GetAttrString(callable, "func"));
    const Ref first = Ref::steal(PyObject_GetAttrString(callable, "args"));
    const Ref names = Ref::steal(PyObject_GetAttrString(callable, "keywords"));
    if (!function || !first || !names) {
        PyErr_Clear();
        throw Puzzle("a partial function");
    }
    if (known != nullptr) {  // it holds these three as long as it lives
        world_->pin(function.get(), "func");
        world_->pin(first.get(), "args");
        world_->pin(names.get(), "keywords");
        world_->read_whole(first.get());
        world_->read_whole(names.get());
    }
    std::vector<PyObject*> all;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(first.get()); ++i)
        all.push_back(PyTuple_GET_ITEM(first.get(), i));
    all.insert(all.end(), arguments.begin(), arguments.end());
    return dispatch_call(frame, event, function.get(), nullptr, all, result);
}

Verdict Recording::on_class(PyTypeObject* type, std::span<PyObject* const> arguments) {
    static PyObject* const create = PyUnicode_InternFromString("__new__");
    static PyObject* const init = PyUnicode_InternFromString("__init__");
    static PyObject* const call = PyUnicode_InternFromString("__call__");
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) ||
        classify_class(type) != CallKind::Unknown) {
        const CallKind kind = classify_class(type);
        if (type == &PyType_Type && arguments.size() != 1) throw Puzzle("a class is made");
        if (kind == CallKind::Unknown) throw Puzzle(std::string("a call of ") + type->tp_name);
        if (kind == CallKind::Pure) read_arguments(arguments, 2);
        return Verdict::run;
    }
    PyObject* meta_call = world_->read_class(Py_TYPE(type), call);
    if (meta_call != nullptr && PyFunction_Check(meta_call)) return Verdict::run;
    world_->read_class(type, init);
    PyObject* maker = world_->read_class(type, create);
    PyTypeObject* layout = type;
    while (is_python_class(layout)) layout = layout->tp_base;
    const bool python_new = maker != nullptr && !PyCFunction_Check(maker);
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(THPVariableClass)))
        throw Puzzle(std::string("a tensor of class ") + type->tp_name + " is made");
    if (python_new) return Verdict::run;
    if (layout == &PyDict_Type || layout == &PyODict_Type || layout == &PyList_Type ||
        layout == &PyTuple_Type || layout == &PySet_Type)
        read_arguments(arguments, 2);
    else if (layout != &PyBaseObject_Type && classify_class(layout) == CallKind::Unknown)
        throw Puzzle(std::string("a call of ") + type->tp_name);
    return Verdict::run;
}

Verdict Recording::on_c_function(Frame frame, const Event& event, PyObject* callable,
                                 PyObject* self, std::span<PyObject* const> arguments,
                                 PyObject** result) {
    const CallClass c = classify(callable);
    if (self == nullptr && PyCFunction_Check(callable)) {
        self = PyCFunction_GET_SELF(callable);
        if (const Known* k = world_->find(callable); k != nullptr && k->dynamic())
            throw Puzzle("a bound method from outside");
        if (self != nullptr && (PyModule_Check(self) || PyType_Check(self))) self = nullptr;
    } else if (Py_TYPE(callable) == &_PyMethodWrapper_Type) {
        Ref owner = Ref::steal(PyObject_GetAttrString(callable, "__self__"));
        self = owner.get();  // the wrapper holds it
    }
    const bool unbound =
        Py_TYPE(callable) == &PyMethodDescr_Type || Py_TYPE(callable) == &PyWrapperDescr_Type;
    if (self == nullptr && unbound && !arguments.empty()) {
        self = arguments[0];
        arguments = arguments.subspan(1);
    }
    std::vector<PyObject*> all;
    if (self != nullptr) all.push_back(self);
    all.insert(all.end(), arguments.begin(), arguments.end());
    const bool tensors = any_tensor(all);
    const auto run = [&] { return tensors ? carried(frame, event, result) : Verdict::run; };
    if (self != nullptr && PyContextVar_CheckExact(self)) {
        if (c.name.ends_with(".get"))
            world_->read_variable(self);
        else
            world_->write_variable(self);
        return Verdict::run;
    }
    if (c.name == "torch._C._len_torch_dispatch_stack" && depth_ == 1) {  // the recorder's is none
        *result = PyLong_FromLong(0);
        return *result == nullptr ? Verdict::raise : Verdict::handled;
    }
    if (c.name == "id" && all.size() == 1) {
        // Of what is the same object at each replay, or as the key of what a deep copy remembers.
        static PyObject* const copy = PyImport_ImportModule("copy");
        const Known* k = world_->find(all[0]);
        if ((k != nullptr && !k->dynamic()) ||
            (copy != nullptr && frame.globals() == PyModule_GetDict(copy)))
            return Verdict::run;
    }
    switch (c.kind) {
        case CallKind::Unknown:
            throw Puzzle("a call of " + c.name);
        case CallKind::Frames:
            if (c.name == "dir" && !all.empty()) throw Puzzle("a call of dir");
            throw Handover("a call of " + c.name + ", which looks at frames");
        case CallKind::Data:
            throw Puzzle("the data of a tensor (" + c.name + ")");
        case CallKind::Torch:
            read_arguments(all, 4);
            for (PyObject* o : all)
                if (is_tensor(o) && !THPVariable_CheckExact(o))
                    throw Puzzle(std::string("a tensor of the subclass ") + Py_TYPE(o)->tp_name);
            if (c.name.ends_with(".apply") && c10::GradMode::is_enabled() &&
                std::any_of(all.begin(), all.end(), [](PyObject* o) {
                    return is_tensor(o) && THPVariable_Unpack(o).requires_grad();
                }))
                throw Puzzle("a custom autograd.Function");  // its backward is Python's
            return carried(frame, event, result);
        case CallKind::Pure:
            if (tensors && needs_data(c.name))
                throw Puzzle("the data of a tensor (" + c.name + ")");
            for (PyObject* o : all) {
                if (o == nullptr) continue;
                if (!PyType_Check(o)) world_->read_special_methods(o);
                // A method that changes an object of C code from outside is not known here.
                const Known* k = world_->find(o);
                if (k != nullptr && o == self && !PyDict_Check(o) && !PyList_Check(o) &&
                    !PyTuple_Check(o) && !PyAnySet_Check(o) && !is_immutable_c_object(o) &&
                    !has_python_layout(Py_TYPE(o)))
                    throw Puzzle("a call of " + c.name + " of an outside object");
            }
            if (c.name == "isinstance" || c.name == "issubclass" || c.name == "callable")
                return Verdict::run;
            if (c.name == "next" && !all.empty() && world_->find(all[0]) != nullptr &&
                !has_python_layout(Py_TYPE(all[0])))
                throw Puzzle("an iterator from outside");
            read_arguments(all, 2);
            return run();
        case CallKind::Deep:
            if (tensors && needs_data(c.name))
                throw Puzzle("the data of a tensor (" + c.name + ")");
            read_arguments(all, 6);
            return run();
        case CallKind::Shallow:
        case CallKind::Modes:
            return Verdict::run;
        case CallKind::Cached:
            for (PyObject* o : all) {
                const Known* k = world_->find(o);
                if (is_tensor(o) || (k != nullptr && k->dynamic()))
                    throw Puzzle("a cached function of objects that may change");
            }
            return carried(frame, event, result);
        case CallKind::Mutator:
            if (self == nullptr && !all.empty()) self = all[0];
            if (self == nullptr) throw Puzzle("a call of " + c.name);
            world_->write_whole(self);
            for (PyObject* o : all)
                if (o != self) world_->read_whole(o, 1);
            return run();
        case CallKind::GetAttr:
            if (all.size() < 2 || !PyUnicode_Check(all[1])) throw Puzzle("a call of " + c.name);
            if (is_tensor(all[0])) {
                PyObject* operands[] = {all[0]};
                Event read{Operation::read_attribute, 0, operands, all[1], nullptr};
                PyObject* value = nullptr;
                const Verdict v = on_tensor_attribute(frame, read, &value);
                Py_XDECREF(value);
                return v == Verdict::run || v == Verdict::handled ? carried(frame, event, result)
                                                                  : v;
            }
            world_->read_attribute(all[0], all[1]);
            return Verdict::run;
        case CallKind::SetAttr: {
            if (all.size() < 2 || !PyUnicode_Check(all[1])) throw Puzzle("a call of " + c.name);
            PyObject* operands[] = {all[0], all.size() > 2 ? all[2] : nullptr};
            Event store{Operation::store_attribute, 0, operands, all[1], nullptr};
            if (c.name.starts_with("object.")) {
                if (is_tensor(all[0])) throw Puzzle("a call of " + c.name);
                world_->write_attribute(all[0], all[1]);
            } else {
                on_store(store);
            }
            return Verdict::run;
        }
        case CallKind::GetItem:
            if (all.size() < 2) throw Puzzle("a call of " + c.name);
            world_->read_special_methods(all[0]);
            world_->read_item(all[0], all[1]);
            return Verdict::run;
        case CallKind::SetItem:
            if (all.size() < 2 || !PyDict_Check(all[0])) throw Puzzle("a call of " + c.name);
            if (world_->find(all[0]) != nullptr) world_->write_dict(all[0], all[1]);
            return Verdict::run;
        case CallKind::State: {
            static PyObject* const name = PyUnicode_InternFromString("__dict__");
            if (all.empty() || is_tensor(all[0]) || PyType_Check(all[0]))
                throw Puzzle("a call of " + c.name);
            if (PyObject** dict = _PyObject_GetDictPtr(all[0])) {
                world_->read_attribute(all[0], name);
                if (*dict != nullptr) world_->read_whole(*dict);
            }
            if (const Known* k = world_->find(all[0]);
                k != nullptr && !is_immutable_c_object(all[0])) {
                PyTypeObject* type = Py_TYPE(all[0]);
                if (type->tp_basicsize > PyBaseObject_Type.tp_basicsize + kDictAndWeakReferences ||
                    type->tp_itemsize != 0)
                    throw Puzzle("a call of " + c.name + " of an object with more than a dict");
            }
            return Verdict::run;
        }
        case CallKind::Vars: {
            static PyObject* const name = PyUnicode_InternFromString("__dict__");
            if (all.size() != 1) throw Handover("a call of vars, which looks at frames");
            world_->read_attribute(all[0], name);
            return Verdict::run;
        }
    }
    return Verdict::run;
}

Verdict Recording::carried(Frame frame, const Event& event, PyObject** result) {
    recorder_->clear_failure();
    {
        Observed observed;
        *result = perform(event);
    }
    if (over_) {  // a break in Python code that the call led to
        return *result != nullptr ? finish_result(event, result) : Verdict::raise;
    }
    if (*result != nullptr) return finish_result(event, result);
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return Verdict::raise;
    std::string reason;
    if (recorder_->failure()) {
        reason = *recorder_->failure();
    } else if (!is_operator_event(event)) {
        return Verdict::raise;  // the program's own exception
    } else {
        reason = "an operator raises " + error_text();
    }
    PyErr_Clear();
    recorder_->clear_failure();
    throw Puzzle(reason);
}

}  // namespace ingot::capture
