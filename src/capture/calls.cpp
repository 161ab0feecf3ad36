// Calls while recording: which run, which are recorded, which break; see recording.h.
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "capture/captured.h"
#include "capture/keys.h"
#include "capture/numpy_numbers.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"
#include "capture/replaced_calls.h"
#include "capture/torch_words.h"
#include "capture/warnings.h"

namespace ingot::capture {
namespace {

/// What a class statement without __slots__ adds to `object`.
constexpr Py_ssize_t kDictAndWeakReferences = 2 * sizeof(PyObject*);

/// `torch._foreach_addcdiv_(xs, as, bs, vs)` or `addcmul` with a tensor of numbers.
PyObject* update_all_scaled(bool divides, std::span<PyObject* const> all) {
    static PyObject* const torch = PyImport_ImportModule("torch");
    const Ref pairs = Ref::steal(PyObject_CallMethod(
        torch, divides ? "_foreach_div" : "_foreach_mul", "OO", all[1], all[2]));
    const Ref scaled = pairs ? Ref::steal(PySequence_List(pairs.get())) : Ref();
    if (!scaled) return nullptr;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(scaled.get()); ++i) {
        const Ref index = Ref::steal(PyLong_FromSsize_t(i));
        const Ref number = index ? Ref::steal(PyObject_GetItem(all[3], index.get())) : Ref();
        PyObject* product =
            number ? PyNumber_Multiply(PyList_GET_ITEM(scaled.get(), i), number.get()) : nullptr;
        if (product == nullptr || PyList_SetItem(scaled.get(), i, product) != 0) return nullptr;
    }
    return PyObject_CallMethod(torch, "_foreach_add_", "OO", all[0], scaled.get());
}

/// `x.addcdiv_(a, b, value=v)` and the like with a tensor for v, which eager would turn into a
/// number, as optimizers have it while they are compiled: by operators that take tensors. nullptr
/// without an error: the call is none of these.
PyObject* update_scaled_by_tensor(const Event& event, std::string_view name,
                                  std::span<PyObject* const> all) {
    if (event.operation != Operation::call || all.size() != 4 || !is_tensor(all[3])) return nullptr;
    const bool divides = name.ends_with("addcdiv_");
    PyObject* names = event.keyword_names;
    if (name == "torch._foreach_addcdiv_" || name == "torch._foreach_addcmul_")
        return names == nullptr ? update_all_scaled(divides, all) : nullptr;
    if ((name != "Tensor.addcdiv_" && name != "Tensor.addcmul_") || names == nullptr ||
        PyTuple_GET_SIZE(names) != 1)
        return nullptr;
    const Ref pair = Ref::steal(divides ? PyNumber_TrueDivide(all[1], all[2])
                                        : PyNumber_Multiply(all[1], all[2]));
    const Ref scaled = pair ? Ref::steal(PyNumber_Multiply(pair.get(), all[3])) : Ref();
    return scaled ? PyObject_CallMethod(all[0], "add_", "O", scaled.get()) : nullptr;
}

/// A function of PyTorch's optimizers behind a wrapper that keeps TorchDynamo from compiling it:
/// one that waits for the first call to make another, or one that TorchDynamo has made where it is
/// in use. Borrowed; nullptr if `callable` is none of these.
PyObject* function_of_optimizers(PyObject* callable) {
    if (!PyFunction_Check(callable)) return nullptr;
    auto* wrapper = reinterpret_cast<PyFunctionObject*>(callable);
    PyObject* place = PyDict_GetItemString(wrapper->func_globals, "__name__");
    const bool waits = place != nullptr && PyUnicode_Check(place) &&
                       PyUnicode_CompareWithASCIIString(place, "torch._compile") == 0;
    const char* key = waits ? "__wrapped__" : "_torchdynamo_orig_callable";
    PyObject* dict = wrapper->func_dict;
    PyObject* inner = dict == nullptr ? nullptr : PyDict_GetItemString(dict, key);
    if (inner == nullptr || !PyFunction_Check(inner)) return nullptr;
    PyObject* module = reinterpret_cast<PyFunctionObject*>(inner)->func_module;
    const char* name =
        module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
    return name != nullptr && std::string_view(name).starts_with("torch.optim.") ? inner : nullptr;
}

/// What `Function.apply` asks for the arguments of a forward with those that it has by default: a
/// function of the forward's signature.
bool binds_defaults(PyObject* function) {
    auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
    return PyUnicode_CompareWithASCIIString(code->co_name, "bind_default_args") == 0 &&
           text_of(code->co_filename).ends_with("/torch/autograd/function.py");
}

/// `x.requires_grad_(False)` and `x.detach_()` of what needs no gradient, `x.requires_grad_()` of
/// what does.
bool changes_nothing(std::string_view name, std::span<PyObject* const> all) {
    if (all.empty() || !THPVariable_CheckExact(all[0])) return false;
    if (THPVariable_Unpack(all[0]).requires_grad())
        return name == "Tensor.requires_grad_" && (all.size() == 1 || all[1] == Py_True);
    return (name == "Tensor.requires_grad_" && all.size() == 2 && all[1] == Py_False) ||
           (name == "Tensor.detach_" && all.size() == 1);
}

/// `torch.rand(4, requires_grad=True)`: a leaf to which gradients go. Made at a break it is one.
void refuse_leaf(PyObject* name, PyObject* value) {
    const std::string_view text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
    if (text == "requires_grad" && value != Py_False && value != Py_None)
        throw Puzzle("a leaf that needs a gradient is made");
}

/// Of a call: with the names of its last arguments, or with a dict of named ones.
void refuse_leaves(PyObject* keywords, std::span<PyObject* const> all, PyObject* dict) {
    const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t i = 0; i < named; ++i)
        refuse_leaf(PyTuple_GET_ITEM(keywords, i),
                    all[all.size() - static_cast<std::size_t>(named - i)]);
    Py_ssize_t position = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (dict != nullptr && PyDict_Check(dict) && PyDict_Next(dict, &position, &key, &value))
        refuse_leaf(key, value);
}

/// What asks a tensor for the one number that it holds.
bool gives_number(std::string_view name) {
    static const std::unordered_set<std::string_view> names = {
        "Tensor.item",      "Tensor.is_nonzero", "Tensor.__bool__",   "Tensor.__int__",
        "Tensor.__float__", "Tensor.__index__",  "Tensor.__complex__"};
    return names.contains(name);
}

/// Whether the function looks at all that its arguments hold: it makes a text of them, or compares
/// items, which may be containers.
bool looks_deep(std::string_view name) {
    static const std::unordered_set<std::string_view> names = {"repr",
                                                               "ascii",
                                                               "sorted",
                                                               "min",
                                                               "max",
                                                               "str.format",
                                                               "str.format_map",
                                                               "str.__new__",
                                                               "list.sort",
                                                               "list.remove",
                                                               "collections.deque.remove"};
    return names.contains(name) || name.ends_with(".__repr__") || name.ends_with(".__str__") ||
           name.starts_with("_heapq.") || name.starts_with("_bisect.");
}

/// Whether a method that changes a container keeps all that is in there.
bool only_adds(std::string_view name, PyObject* container) {
    static const std::unordered_set<std::string_view> names = {
        "append", "appendleft", "extend",  "extendleft",  "insert",      "add",
        "sort",   "reverse",    "rotate",  "setdefault",  "__iadd__",    "move_to_end",
        "insort", "heappush",   "heapify", "insort_left", "insort_right"};
    if (is_deque(container) && most_of_deque(container).get() != Py_None) return false;
    return names.contains(name.substr(name.rfind('.') + 1));
}

/// Whether C code of this name hashes what it is given, or what that holds.
bool takes_keys(std::string_view name) {
    for (std::string_view type :
         {"set", "frozenset", "dict", "collections.OrderedDict", "collections.defaultdict"})
        if (name == type || (name.starts_with(type) && name[type.size()] == '.')) return true;
    return name == "hash";
}

/// Whether all that it holds is there, not made by an iterator.
bool is_sequence(PyObject* o) {
    return PyList_Check(o) || PyTuple_Check(o) || PyRange_Check(o) || PyUnicode_Check(o) ||
           PyDict_Check(o) || PyAnySet_Check(o);
}

/// Whether C code of this name calls what it is given.
bool calls_back(std::string_view name) {
    static const std::unordered_set<std::string_view> names = {
        "sorted", "min", "max", "iter", "list.sort", "_functools.reduce", "map", "filter"};
    return names.contains(name) || name.starts_with("itertools.") || name.starts_with("_bisect.");
}

/// What C code is given to call and calls unseen: what it reads of an object that it is bound to
/// becomes known, and what is more than a function of its arguments is a break.
void read_callable(World& world, PyObject* callable) {
    const std::string_view type = Py_TYPE(callable)->tp_name;
    if (type == "operator.attrgetter" || type == "operator.methodcaller")
        throw Puzzle("C code that uses an object of type " + std::string(type));
    if (type == "functools.partial") {
        const Ref inner = Ref::steal(PyObject_GetAttrString(callable, "func"));
        if (inner) return read_callable(world, inner.get());
        return PyErr_Clear();
    }
    const bool bound_wrapper = Py_TYPE(callable) == &_PyMethodWrapper_Type;
    if (!PyCFunction_Check(callable) && !bound_wrapper &&
        Py_TYPE(callable) != &PyMethodDescr_Type && Py_TYPE(callable) != &PyWrapperDescr_Type &&
        type != "functools._lru_cache_wrapper")
        return;
    const CallClass c = classify(callable);
    PyObject* self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr;
    Ref owner;
    if (bound_wrapper) {
        owner = Ref::steal(PyObject_GetAttrString(callable, "__self__"));
        self = owner.get();
    }
    if (self != nullptr && (PyModule_Check(self) || PyType_Check(self))) self = nullptr;
    const bool outside = self != nullptr && world.find(self) != nullptr && !is_tensor(self) &&
                         !is_immutable_c_object(self);
    const bool fresh = self != nullptr && !outside;
    switch (c.kind) {
        case CallKind::Torch:
        case CallKind::Shallow:
            return;
        case CallKind::Pure:
        case CallKind::Deep:
        case CallKind::GetItem:
            if (c.name == "next") break;
            if (outside) world.read_whole(self, 6);
            return;
        case CallKind::Mutator:
        case CallKind::SetItem:
            if (fresh) return;
            break;
        default:
            break;
    }
    throw Puzzle("a call of " + c.name + " by C code");
}

/// Autocast of a device that is no part of Modes.
bool is_autocast_elsewhere(std::string_view name, std::span<PyObject* const> all) {
    if (name.find("autocast_") == std::string_view::npos || name.ends_with("_available") ||
        all.empty() || !PyUnicode_Check(all[0]))
        return false;
    return PyUnicode_CompareWithASCIIString(all[0], "cpu") != 0 &&
           PyUnicode_CompareWithASCIIString(all[0], "cuda") != 0;
}

/// PyTorch's optimizers break around their steps for what TorchDynamo makes of gradient modes.
bool is_hint_of_optimizers(Frame frame) { return module_of(frame) == "torch.optim.optimizer"; }

}  // namespace

std::vector<PyObject*> arguments_of(const Event& event, bool* named) {
    if (event.operation == Operation::call) {
        if (named != nullptr) *named = event.keyword_names != nullptr;
        return {event.operands.begin() + 1, event.operands.end()};
    }
    std::vector<PyObject*> arguments;
    PyObject* tuple = event.operands[1];
    PyObject* names = event.operands.size() > 2 ? event.operands[2] : nullptr;
    for (Py_ssize_t i = 0; tuple != nullptr && PyTuple_Check(tuple) && i < PyTuple_GET_SIZE(tuple);
         ++i)
        arguments.push_back(PyTuple_GET_ITEM(tuple, i));
    if (names == nullptr || !PyDict_Check(names)) return arguments;
    Py_ssize_t position = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(names, &position, &key, &value)) arguments.push_back(value);
    if (named != nullptr) *named = position != 0;
    return arguments;
}

Verdict Recording::on_call(Frame frame, const Event& event, PyObject** result) {
    return dispatch_call(frame, event, event.operands[0], nullptr, event.operands.subspan(1),
                         result);
}

void Recording::read_expanded(const Event& event) {
    PyObject* tuple = event.operands[1];
    PyObject* names = event.operands.size() > 2 ? event.operands[2] : nullptr;
    if (tuple != nullptr) {
        if (!PyTuple_Check(tuple)) throw Puzzle("arguments that are no tuple");
        world_->read_whole(tuple);
    }
    if (names != nullptr) {
        if (!PyDict_Check(names)) throw Puzzle("keyword arguments that are no dict");
        world_->read_whole(names);
    }
}

Verdict Recording::on_expanded_call(Frame frame, const Event& event, PyObject** result) {
    read_expanded(event);
    return dispatch_call(frame, event, event.operands[0], nullptr, arguments_of(event), result);
}

Verdict Recording::dispatch_call(Frame frame, const Event& event, PyObject* callable,
                                 PyObject* self, std::span<PyObject* const> arguments,
                                 PyObject** result) {
    PyObject* inner = captured_function(callable);
    if (inner == nullptr) inner = function_of_optimizers(callable);
    Mark mark = state().mark_of(callable);
    if (mark == Mark::None && inner == nullptr) mark = mark_of_torch(callable);
    switch (mark) {
        case Mark::Disable:
            throw Puzzle("a call of a function that is not to be compiled: " +
                         callable_name(callable) + reason_of_torch(callable));
        case Mark::Break:
            if (is_hint_of_optimizers(frame)) {
                *result = Py_NewRef(Py_None);
                return Verdict::handled;
            }
            throw Puzzle("a graph break that was asked for");
        case Mark::True:
            *result = Py_NewRef(Py_True);
            return Verdict::handled;
        case Mark::TrueForPrograms:
            *result = PyBool_FromLong(module_of(frame).starts_with("torch.") ? 0 : 1);
            return Verdict::handled;
        case Mark::Wide:
            if (arguments.size() != 1 || !is_tensor(arguments[0])) break;
            read_arguments(arguments, 4);
            recorder_->clear_failure();
            *result = PyObject_CallMethod(arguments[0], "double", nullptr);
            return carried_out(event, recorder_->log().size(), result);
        case Mark::Allow:
            return on_allowed(event, arguments, result);
        case Mark::Constant:
            return on_constant(event, arguments, result);
        case Mark::Checkpoint:
            return on_checkpoint(frame, event, callable, result);
        case Mark::DisableOnce:
        case Mark::Annotation:
        case Mark::None:
            break;
    }
    if (inner == nullptr) inner = compiled_by_torch(callable);
    if (inner != nullptr) {
        // A compiled function within a compiled function: one recording.
        Event direct = event;
        std::vector<PyObject*> operands(event.operands.begin(), event.operands.end());
        const Ref bound =
            Ref::steal(self == nullptr ? Py_NewRef(inner) : PyMethod_New(inner, self));
        operands[0] = bound.get();
        direct.operands = operands;
        world_->pin(inner, "a captured function");
        return carried(frame, direct, result);
    }
    if (PyFunction_Check(callable)) {
        if (is_engine(callable)) return on_backward(event, result);
        if (is_transform(callable)) return on_transform(frame, event, result);
        if (binds_defaults(callable) && !arguments.empty() && PyFunction_Check(arguments[0])) {
            world_->read_function(arguments[0]);
            *result = perform_unobserved(event);
            return *result == nullptr ? Verdict::raise : finish_result(event, result);
        }
        PyObject* first = self != nullptr ? self : arguments.empty() ? nullptr : arguments[0];
        if (is_tensor(first) && method_needs_data(callable) && !may_go_backward(first, callable) &&
            _PyType_Lookup(Py_TYPE(first),
                           reinterpret_cast<PyFunctionObject*>(callable)->func_name) == callable)
            throw Puzzle("the data of a tensor (" + callable_name(callable) + ")");
        return Verdict::run;
    }
    if (PyObject* forward = read_forward_of_torch(callable))
        return dispatch_call(frame, event, forward, nullptr, arguments, result);
    if (PyMethod_Check(callable)) {
        world_->read_method(callable);
        return dispatch_call(frame, event, PyMethod_GET_FUNCTION(callable),
                             PyMethod_GET_SELF(callable), arguments, result);
    }
    if (PyType_Check(callable)) {
        auto* type = reinterpret_cast<PyTypeObject*>(callable);
        if (class_needs_data(type) && any_tensor(arguments)) {
            const bool number = type == &PyLong_Type || type == &PyFloat_Type;
            if (!number || arguments.size() != 1) throw Puzzle("the data of a tensor");
            refuse_unknown(arguments, "the data of a tensor");
            return carried(frame, event, result);
        }
        const Verdict v = on_class(type, arguments);
        return v == Verdict::run && any_tensor(arguments) && classify_class(type) == CallKind::Pure
                   ? carried(frame, event, result)
                   : v;
    }
    if (std::string_view(Py_TYPE(callable)->tp_name) == "functools.partial")
        return on_partial(frame, event, callable, arguments, result);
    if (PyWeakref_CheckRefExact(callable) && arguments.empty()) {
        world_->read_referent(callable);
        return Verdict::run;
    }
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
    const bool comes_in = known != nullptr && known->dynamic();
    if (comes_in)  // each is a member in C
        for (const char* part : {"func", "args", "keywords"})
            world_->read_attribute(callable, Ref::steal(PyUnicode_InternFromString(part)).get());
    const Ref function = Ref::steal(PyObject_GetAttrString(callable, "func"));
    const Ref first = Ref::steal(PyObject_GetAttrString(callable, "args"));
    const Ref names = Ref::steal(PyObject_GetAttrString(callable, "keywords"));
    if (!function || !first || !names) {
        PyErr_Clear();
        throw Puzzle("a partial function");
    }
    if (known != nullptr) {
        if (!comes_in) {  // it holds these three as long as it lives
            world_->pin(function.get(), "func");
            world_->pin(first.get(), "args");
            world_->pin(names.get(), "keywords");
        }
        world_->read_whole(first.get());
        world_->read_whole(names.get());
    }
    std::vector<PyObject*> all;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(first.get()); ++i)
        all.push_back(PyTuple_GET_ITEM(first.get(), i));
    all.insert(all.end(), arguments.begin(), arguments.end());
    if (!is_python_callable(function.get())) {
        // An operator would get them as they are, whatever their sizes stand for.
        if (comes_in && (any_tensor(all) || PyDict_GET_SIZE(names.get()) != 0))
            throw Puzzle("a partial function from outside");
        Py_ssize_t position = 0;
        PyObject *key = nullptr, *value = nullptr;
        while (PyDict_Next(names.get(), &position, &key, &value)) {
            refuse_leaf(key, value);
            read_callable(*world_, value);
            world_->read_whole(value, 6);
        }
    }
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
        if (kind != CallKind::Pure) return Verdict::run;
        const bool calls = calls_back(type->tp_name);
        if (calls && !arguments.empty() && arguments[0] != nullptr && PyType_Check(arguments[0]) &&
            class_needs_data(reinterpret_cast<PyTypeObject*>(arguments[0])) &&
            (any_tensor(arguments) || !std::ranges::all_of(arguments.subspan(1), is_sequence)))
            throw Puzzle("C code that may need the data of tensors");
        for (PyObject* o : arguments)
            if (calls && o != nullptr) read_callable(*world_, o);
        read_arguments(arguments, calls || type == &PyUnicode_Type ? 6 : 2);
        if (takes_keys(type->tp_name))
            for (PyObject* o : arguments) read_keys(*world_, o);
        return Verdict::run;
    }
    static PyObject* const finalizer = PyUnicode_InternFromString("__del__");
    if (_PyType_Lookup(type, finalizer) != nullptr) has_finalizers_ = true;
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
        layout == &PyTuple_Type || layout == &PySet_Type) {
        read_arguments(arguments, 2);
        if (layout != &PyList_Type && layout != &PyTuple_Type)
            for (PyObject* o : arguments) read_keys(*world_, o);
    } else if (layout != &PyBaseObject_Type && classify_class(layout) == CallKind::Unknown) {
        throw Puzzle(std::string("a call of ") + type->tp_name);
    }
    return Verdict::run;
}

/// The warning is given now, and each replay gives it again.
Verdict Recording::on_warning(Frame frame, const Event& event, std::span<PyObject* const> arguments,
                              PyObject** result) {
    if (event.operation != Operation::call) throw Puzzle("a warning with expanded arguments");
    const Ref again = explicit_warning(frame, arguments, event.keyword_names);
    if (!again) throw Puzzle("a warning whose place is not known");
    if (recorder_->assumes()) throw Puzzle("a warning behind a branch that may raise");
    world_->read_warning_filters();
    *result = perform_unobserved(event);
    if (*result == nullptr) {
        if (must_be_whole()) PyErr_Clear();
        (void)give_up("a warning that is an error");
        return Verdict::raise;
    }
    world_->repeat_call(warn_explicit(), again.get());
    return Verdict::handled;
}

Verdict Recording::on_c_function(Frame frame, const Event& event, PyObject* callable,
                                 PyObject* self, std::span<PyObject* const> arguments,
                                 PyObject** result) {
    const CallClass c = classify(callable);
    if (self == nullptr && PyCFunction_Check(callable)) {
        self = PyCFunction_GET_SELF(callable);
        if (const Known* k = world_->find(callable); k != nullptr && k->dynamic())
            throw Puzzle("a bound method from outside");
        // What a module's function has for a self is no argument.
        PyObject* module = reinterpret_cast<PyCFunctionObject*>(callable)->m_module;
        if (self != nullptr && (PyModule_Check(self) || PyType_Check(self) ||
                                (module != nullptr && PyUnicode_Check(module) && !is_tensor(self))))
            self = nullptr;
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
    if (self != nullptr && is_lock_of_functools(frame, self)) {
        holds_locks_ = true;
        return Verdict::run;
    }
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
    if (c.name.starts_with("_abc.")) world_->read_registrations();
    if (calls_back(c.name))
        for (PyObject* o : arguments)
            if (o != nullptr) read_callable(*world_, o);
    if (c.name.ends_with(".__init__") && self != nullptr && world_->find(self) != nullptr &&
        (PyDict_Check(self) || PyList_Check(self) || PyAnySet_Check(self) || is_deque(self)))
        throw Puzzle("a container from outside that is filled anew");
    switch (c.kind) {
        case CallKind::Unknown: {
            const Known* k = world_->find(callable);
            if (event.operation == Operation::call && event.keyword_names == nullptr &&
                !(k != nullptr && k->dynamic()))
                *result = number_of_numpy(callable, all).release();
            if (*result == nullptr) throw Puzzle("a call of " + c.name);
            numbers_->specialise(all);  // its code has seen them, not what they stand for
            return Verdict::handled;
        }
        case CallKind::Warning:
            return on_warning(frame, event, all, result);
        case CallKind::Frames:
            if (c.name == "dir" && !all.empty()) throw Puzzle("a call of dir");
            throw Handover("a call of " + c.name + ", which looks at frames");
        case CallKind::Data:
            if (changes_nothing(c.name, all)) {
                *result = Py_NewRef(all[0]);
                return Verdict::handled;
            }
            if (marks_for_level(c.name, all)) return Verdict::run;
            if (!gives_number(c.name) || all.size() != 1)
                throw Puzzle("the data of a tensor (" + c.name + ")");
            refuse_unknown(all, ("the data of a tensor (" + c.name + ")").c_str());
            return carried(frame, event, result);
        case CallKind::Torch:
            if (c.name == "torch._C.redispatch_boxed") all.erase(all.begin());  // the operator
            refuse_leaves(event.operation == Operation::call ? event.keyword_names : nullptr, all,
                          event.operation == Operation::call_expanded && event.operands.size() > 2
                              ? event.operands[2]
                              : nullptr);
            read_arguments(all, 8);
            for (PyObject* o : all)
                if (is_tensor(o) && !THPVariable_CheckExact(o))
                    throw Puzzle(std::string("a tensor of the subclass ") + Py_TYPE(o)->tp_name);
            if (is_custom_function(c.name, all))
                return on_custom_function(
                    event, PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr,
                    all, result);
            recorder_->clear_failure();
            {
                const std::size_t calls = recorder_->log().size();
                if (c.name == "torch._C._nn.one_hot")
                    if (const auto made = perform_one_hot(*numbers_, event)) {
                        *result = *made;
                        return carried_out(event, calls, result);
                    }
                *result = update_scaled_by_tensor(event, c.name, all);
                return *result != nullptr || PyErr_Occurred() ? carried_out(event, calls, result)
                                                              : carried(frame, event, result);
            }
        case CallKind::Pure:
            if (tensors && needs_data(c.name))
                throw Puzzle("the data of a tensor (" + c.name + ")");
            for (PyObject* o : all) {
                if (o == nullptr) continue;
                if (!PyType_Check(o)) world_->read_special_methods(o);
                // A method that changes an object of C code from outside is not known here.
                const Known* k = world_->find(o);
                if (k != nullptr && o == self && !PyDict_Check(o) && !PyList_Check(o) &&
                    !PyTuple_Check(o) && !PyAnySet_Check(o) && !is_deque(o) &&
                    !is_immutable_c_object(o) && !has_python_layout(Py_TYPE(o)))
                    throw Puzzle("a call of " + c.name + " of an outside object");
            }
            if (c.name == "isinstance" || c.name == "issubclass" || c.name == "callable")
                return Verdict::run;
            if (c.name == "next" && !all.empty() && world_->find(all[0]) != nullptr &&
                !has_python_layout(Py_TYPE(all[0]))) {
                if (strict_ != Strict::No || !world_->can_move(all[0]))
                    throw Puzzle("an iterator from outside");
                Ref item = world_->move(all[0]);
                if (!item && all.size() > 1) item = Ref::borrow(all[1]);
                if (!item) PyErr_SetNone(PyExc_StopIteration);
                *result = item.release();
                return *result == nullptr ? Verdict::raise : Verdict::handled;
            }
            if (looks_deep(c.name))
                for (PyObject* o : all)
                    if (o != nullptr && PyType_Check(o)) world_->read_type_names(o, nullptr);
            read_arguments(all, looks_deep(c.name) ? 6 : 2);
            if (takes_keys(c.name))
                for (PyObject* o : all) read_keys(*world_, o);
            return run();
        case CallKind::Deep:
            if (tensors && needs_data(c.name))
                throw Puzzle("the data of a tensor (" + c.name + ")");
            read_arguments(all, 6);
            if (all.size() > 1 && self != nullptr) relate_to_items(*world_, all[1], all[0]);
            return run();
        case CallKind::Shallow:
        case CallKind::Modes:
            if (is_autocast_elsewhere(c.name, all)) throw Puzzle("a call of " + c.name);
            return Verdict::run;
        case CallKind::Level:
            return on_level(c.name, frame, event, all, result);
        case CallKind::Cached:
            return on_cached_function(event, callable, all, result);
        case CallKind::Mutator:
            if (self == nullptr && !all.empty()) self = all[0];
            if (self == nullptr) throw Puzzle("a call of " + c.name);
            if (c.name == "set.pop" && world_->find(self) != nullptr)  // no guard says which one
                throw Puzzle("a member of a set from outside, whichever it is");
            if (looks_deep(c.name) && event.keyword_names == nullptr) read_arguments(all, 6);
            if (all.size() > 1 && c.name.ends_with(".remove"))
                relate_to_items(*world_, all[1], all[0]);
            if (PyList_Check(self) || PyDict_Check(self) || PyAnySet_Check(self) || is_deque(self))
                world_->write_whole(self, !only_adds(c.name, self));
            else  // of a class that says itself what it does
                world_->read_whole(self, 1);
            for (PyObject* o : all) {
                if (o == self) continue;
                world_->read_whole(o, 1);
                read_keys(*world_, o);
                if (!PyList_Check(self)) read_key(*world_, o, self);
            }
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
            world_->read_attribute(all[0], all[1], c.name.ends_with(".__getattribute__"));
            return Verdict::run;
        case CallKind::SetAttr: {
            if (all.size() < 2 || !PyUnicode_Check(all[1])) throw Puzzle("a call of " + c.name);
            PyObject* operands[] = {all[0], all.size() > 2 ? all[2] : nullptr};
            const Operation operation =
                c.name == "delattr" ? Operation::delete_attribute : Operation::store_attribute;
            Event store{operation, 0, operands, all[1], nullptr};
            if (c.name.starts_with("object.")) {
                if (is_tensor(all[0])) throw Puzzle("a call of " + c.name);
                world_->write_attribute(all[0], all[1], c.name.ends_with("delattr__"));
            } else {
                on_store(store);
            }
            return Verdict::run;
        }
        case CallKind::GetItem:
            if (all.size() < 2) throw Puzzle("a call of " + c.name);
            world_->read_special_methods(all[0]);
            read_key(*world_, all[1], all[0]);
            world_->read_item(all[0], all[1]);
            return PyDict_Check(all[0]) ? Verdict::run : run();
        case CallKind::SetItem:
            if (all.size() < 2 || !PyDict_Check(all[0])) throw Puzzle("a call of " + c.name);
            read_key(*world_, all[1], all[0]);
            if (world_->find(all[0]) != nullptr)
                world_->write_dict(all[0], all[1], c.name.ends_with("__delitem__"));
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

}  // namespace ingot::capture
