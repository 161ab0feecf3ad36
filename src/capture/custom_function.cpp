// See custom_function.h.
#include "capture/custom_function.h"

#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "capture/objects.h"
#include "trace/replay.h"

namespace ingot::capture {
namespace {

using Map = trace::CustomFunction::Map;

/// A new reference, or the Python error as an exception.
Ref owned(PyObject* object) {
    if (object == nullptr) throw pybind11::error_already_set();
    return Ref::steal(object);
}

/// `{forward, setup_context}` for a class of which only the forward is another: a function of one
/// form, whatever form the program's has.
pybind11::dict with_forward(pybind11::object forward) {
    const auto module = pybind11::module_::import("torch.autograd.function");
    const auto make_static = pybind11::module_::import("builtins").attr("staticmethod");
    pybind11::dict names;
    names["forward"] = make_static(std::move(forward));
    names["setup_context"] = make_static(module.attr("_SingleLevelFunction").attr("setup_context"));
    return names;
}

/// What PyTorch hands to a custom operator's gradient beside the arguments: which keys, and how
/// lists of tensors are taken apart.
bool is_of_custom_operators(PyObject* o) {
    const Ref module =
        Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "__module__"));
    PyErr_Clear();
    const bool ours = module && PyUnicode_Check(module.get()) &&
                      text_of(module.get()) == "torch._library.autograd";
    PyObject** dict = ours ? _PyObject_GetDictPtr(o) : nullptr;
    PyObject* names = dict == nullptr || *dict == nullptr
                          ? nullptr
                          : PyDict_GetItemString(*dict, "keyword_only_args");
    return ours && (names == nullptr || (PyDict_Check(names) && PyDict_GET_SIZE(names) == 0));
}

void set_all(PyObject* context, const std::vector<std::pair<std::string, Kept>>& values,
             const trace::Replay& replay) {
    for (const auto& [name, kept] : values) {
        const Ref value = owned(kept.made(replay));
        if (PyObject_SetAttrString(context, name.c_str(), value.get()) != 0)
            throw pybind11::error_already_set();
    }
}

void add_tensors(const Kept& kept, std::vector<at::Tensor>& out) {
    if (kept.tensor.defined()) out.push_back(kept.tensor);
    for (const Kept& item : kept.items) add_tensors(item, out);
}

}  // namespace

bool is_function_context(PyObject* object) { return PyObject_TypeCheck(object, &THPFunctionType); }

Kept Kept::of(PyObject* o, const World& world, trace::Recorder& recorder, Numbers& numbers,
              int depth) {
    Kept kept;
    if (is_tensor(o)) {
        if (!THPVariable_CheckExact(o)) throw Puzzle("a tensor of a subclass in a custom function");
        kept.kind = Kind::Tensor;
        kept.tensor = recorder.promise_of(THPVariable_Unpack(o));
        return kept;
    }
    if (const c10::SymInt* number = numbers.find(o)) {
        kept.kind = Kind::Number;
        kept.number = *number;
        return kept;
    }
    const bool dict = PyDict_CheckExact(o), list = PyList_CheckExact(o), size = THPSize_Check(o);
    if (PyTuple_CheckExact(o) || list || dict || size) {
        if (depth == 0) throw Puzzle("deep containers in a custom function");
        if ((list || dict) && Py_REFCNT(o) > 1)
            throw Puzzle("a container that others hold in a custom function");
        kept.kind = dict ? Kind::Dict : list ? Kind::List : size ? Kind::Size : Kind::Tuple;
        if (dict) {
            Py_ssize_t at = 0;
            PyObject *key = nullptr, *value = nullptr;
            while (PyDict_Next(o, &at, &key, &value)) {
                kept.items.push_back(of(key, world, recorder, numbers, depth - 1));
                kept.items.push_back(of(value, world, recorder, numbers, depth - 1));
            }
        } else {
            for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
                kept.items.push_back(
                    of(PySequence_Fast_GET_ITEM(o, i), world, recorder, numbers, depth - 1));
        }
        return kept;
    }
    const Known* known = world.find(o);
    const bool fixed = is_of_custom_operators(o) || PyType_Check(o) || PyModule_Check(o) ||
                       is_immutable_c_object(o) || (known != nullptr && !known->dynamic());
    if (!fixed) throw Puzzle(std::string("a ") + Py_TYPE(o)->tp_name + " in a custom function");
    numbers.specialise(o);
    kept.constant = Ref::borrow(o);
    return kept;
}

PyObject* Kept::made(const trace::Replay& replay) const {
    switch (kind) {
        case Kind::Constant:
            return Py_NewRef(constant.get());
        case Kind::Tensor:
            return THPVariable_Wrap(replay.tensor(tensor));
        case Kind::Number:
            return PyLong_FromLongLong(replay.number(number));
        case Kind::Tuple:
        case Kind::Size:
        case Kind::List: {
            const auto size = static_cast<Py_ssize_t>(items.size());
            Ref all = Ref::steal(kind == Kind::List ? PyList_New(size) : PyTuple_New(size));
            for (Py_ssize_t i = 0; all && i < size; ++i) {
                PyObject* item = items[static_cast<std::size_t>(i)].made(replay);
                if (item == nullptr) return nullptr;
                if (kind == Kind::List)
                    PyList_SET_ITEM(all.get(), i, item);
                else
                    PyTuple_SET_ITEM(all.get(), i, item);
            }
            if (kind != Kind::Size || !all) return all.release();
            return PyObject_CallOneArg(reinterpret_cast<PyObject*>(&THPSizeType), all.get());
        }
        case Kind::Dict: {
            Ref all = Ref::steal(PyDict_New());
            for (std::size_t i = 0; all && i + 1 < items.size(); i += 2) {
                const Ref key = Ref::steal(items[i].made(replay));
                const Ref value = key ? Ref::steal(items[i + 1].made(replay)) : Ref();
                if (!value || PyDict_SetItem(all.get(), key.get(), value.get()) != 0)
                    return nullptr;
            }
            return all.release();
        }
    }
    return nullptr;
}

Kept Kept::mapped(const Map& map) const {
    Kept other;
    other.kind = kind;
    other.constant = constant;
    other.number = number;
    if (tensor.defined()) other.tensor = map(tensor);
    for (const Kept& item : items) other.items.push_back(item.mapped(map));
    return other;
}

RecordedFunction::~RecordedFunction() {
    if (!Py_IsInitialized()) {
        new Parts(std::move(parts_));  // nobody is left to count references
        return;
    }
    const pybind11::gil_scoped_acquire lock;
    parts_ = {};
}

std::shared_ptr<const trace::CustomFunction> RecordedFunction::mapped(const Map& map) const {
    const pybind11::gil_scoped_acquire lock;
    Parts parts;
    parts.function = parts_.function;
    for (const Kept& k : parts_.arguments) parts.arguments.push_back(k.mapped(map));
    for (const auto& [name, k] : parts_.marks) parts.marks.emplace_back(name, k.mapped(map));
    for (const auto& [name, k] : parts_.attributes)
        parts.attributes.emplace_back(name, k.mapped(map));
    parts.result = parts_.result.mapped(map);
    for (const at::Tensor& t : parts_.outputs) parts.outputs.push_back(map(t));
    return std::make_shared<RecordedFunction>(std::move(parts));
}

std::vector<at::Tensor> RecordedFunction::saved() const {
    std::vector<at::Tensor> all;
    if (!reads_saved_) return all;
    for (const auto& [name, kept] : parts_.marks)
        if (name == "to_save") add_tensors(kept, all);
    return all;
}

void RecordedFunction::apply(trace::Replay& replay,
                             std::span<const trace::LoggedCall> forward) const {
    const pybind11::gil_scoped_acquire lock;
    const auto run = [&](const pybind11::args& arguments) {
        {
            const pybind11::gil_scoped_release unlocked;
            for (const trace::LoggedCall& call : forward) replay.run(call);
        }
        set_all(arguments[0].ptr(), parts_.attributes, replay);
        set_all(arguments[0].ptr(), parts_.marks, replay);
        return pybind11::reinterpret_steal<pybind11::object>(
            owned(parts_.result.made(replay)).release());
    };
    auto* type = reinterpret_cast<PyTypeObject*>(parts_.function.get());
    // Its metaclass makes the node's class, which has the name that eager's has.
    const Ref names = Ref::borrow(with_forward(pybind11::cpp_function(run)).ptr());
    const Ref made =
        owned(PyObject_CallFunction(reinterpret_cast<PyObject*>(Py_TYPE(type)), "s(O)O",
                                    type->tp_name, parts_.function.get(), names.get()));
    const Ref arguments = owned(PyTuple_New(static_cast<Py_ssize_t>(parts_.arguments.size())));
    for (std::size_t i = 0; i < parts_.arguments.size(); ++i)
        PyTuple_SET_ITEM(arguments.get(), static_cast<Py_ssize_t>(i),
                         owned(parts_.arguments[i].made(replay)).release());
    // C's `apply`, which a class may have another one over.
    const auto base = pybind11::module_::import("torch._C").attr("_FunctionBase").attr("__dict__");
    const pybind11::object bound = base["apply"].attr("__get__")(
        pybind11::none(), pybind11::reinterpret_borrow<pybind11::object>(made.get()));
    const Ref result = owned(PyObject_Call(bound.ptr(), arguments.get(), nullptr));
    const auto bind = [&](std::size_t i, PyObject* o) {
        if (i < parts_.outputs.size() && parts_.outputs[i].defined() && is_tensor(o))
            replay.bind(parts_.outputs[i], THPVariable_Unpack(o));
    };
    if (!PyTuple_Check(result.get())) return bind(0, result.get());
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result.get()); ++i)
        bind(static_cast<std::size_t>(i), PyTuple_GET_ITEM(result.get(), i));
}

}  // namespace ingot::capture
