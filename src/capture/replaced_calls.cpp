// See replaced_calls.h.
#include "capture/replaced_calls.h"

#include <ATen/ATen.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "capture/callables.h"
#include "capture/objects.h"

namespace ingot::capture {
namespace {

/// Arguments of a call by position and by name.
struct Given {
    std::vector<PyObject*> positional;
    Ref names;  // a dict
    bool has_only(std::initializer_list<std::string_view> allowed) const {
        Py_ssize_t position = 0;
        PyObject *key = nullptr, *value = nullptr;
        while (PyDict_Next(names.get(), &position, &key, &value))
            if (value != Py_None && std::ranges::find(allowed, text_of(key)) == allowed.end())
                return false;
        return true;
    }
    PyObject* named(const char* name) const { return PyDict_GetItemString(names.get(), name); }
};

Given given_to(const Event& event) {
    Given given{{}, Ref::steal(PyDict_New())};
    const Py_ssize_t names =
        event.keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(event.keyword_names);
    const std::size_t count = event.operands.size() - static_cast<std::size_t>(names);
    given.positional.assign(event.operands.begin() + 1,
                            event.operands.begin() + static_cast<std::ptrdiff_t>(count));
    for (Py_ssize_t i = 0; given.names && i < names; ++i)
        PyDict_SetItem(given.names.get(), PyTuple_GET_ITEM(event.keyword_names, i),
                       event.operands[count + static_cast<std::size_t>(i)]);
    return given;
}

PyObject* torch_module() {
    static PyObject* const torch = PyImport_ImportModule("torch");
    return torch;
}

/// `torch.<name>(arguments, **names)`; nothing with the error set.
Ref call_torch(const char* name, std::initializer_list<PyObject*> arguments, PyObject* names) {
    const Ref function = Ref::steal(PyObject_GetAttrString(torch_module(), name));
    const Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(arguments.size())));
    if (!function || !tuple) return {};
    Py_ssize_t i = 0;
    for (PyObject* o : arguments) {
        if (o == nullptr) return {};
        PyTuple_SET_ITEM(tuple.get(), i++, Py_NewRef(o));
    }
    return Ref::steal(PyObject_Call(function.get(), tuple.get(), names));
}

// ---- torch.tensor ----

constexpr Py_ssize_t kMostItems = 64;

bool is_sequence(PyObject* o) {
    return PyList_CheckExact(o) || PyTuple_CheckExact(o) || THPSize_Check(o);
}

/// What a list of lists of numbers is.
struct Contents {
    bool numbers = true, symbolic = false, floats = false;
    void look(const Numbers& known, PyObject* o) {
        if (is_sequence(o)) {
            numbers = numbers && Py_SIZE(o) > 0 && Py_SIZE(o) <= kMostItems;
            for (Py_ssize_t i = 0; numbers && i < Py_SIZE(o); ++i)
                look(known, PySequence_Fast_GET_ITEM(o, i));
            return;
        }
        numbers = numbers && (PyLong_CheckExact(o) || PyFloat_CheckExact(o));
        symbolic = symbolic || known.is_symbolic(o);
        floats = floats || PyFloat_CheckExact(o);
    }
};

Ref tensor_of(Numbers& numbers, PyObject* o, PyObject* names) {
    if (!is_sequence(o)) {
        const Ref other = numbers.stand_in(o);
        return call_torch("scalar_tensor", {other ? other.get() : o}, names);
    }
    const Ref parts = Ref::steal(PyList_New(0));
    for (Py_ssize_t i = 0; parts && i < Py_SIZE(o); ++i) {
        const Ref part = tensor_of(numbers, PySequence_Fast_GET_ITEM(o, i), names);
        if (!part || PyList_Append(parts.get(), part.get()) != 0) return {};
    }
    return parts ? call_torch("stack", {parts.get()}, nullptr) : Ref();
}

std::optional<PyObject*> make_tensor(Numbers& numbers, const Given& given) {
    if (given.positional.size() != 1 || !given.has_only({"dtype", "device"})) return std::nullopt;
    PyObject* data = given.positional[0];
    Contents contents;
    contents.look(numbers, data);
    if (!contents.numbers || !contents.symbolic) return std::nullopt;
    const Ref names = Ref::steal(PyDict_Copy(given.names.get()));
    PyObject* dtype = given.named("dtype");
    if (names && (dtype == nullptr || dtype == Py_None)) {
        const Ref type = contents.floats
                             ? call_torch("get_default_dtype", {}, nullptr)
                             : Ref::steal(PyObject_GetAttrString(torch_module(), "int64"));
        if (!type || PyDict_SetItemString(names.get(), "dtype", type.get()) != 0) return nullptr;
    }
    return tensor_of(numbers, data, names.get()).release();
}

// ---- torch.linspace ----

bool is_number(PyObject* o) { return PyLong_CheckExact(o) || PyFloat_CheckExact(o); }

/// As eager's kernel for floats counts: the first half from the start, the second from the end.
std::optional<PyObject*> make_linspace(Numbers& numbers, const Given& given) {
    if (given.positional.size() != 3 || !given.has_only({"dtype", "device"})) return std::nullopt;
    PyObject *first = given.positional[0], *last = given.positional[1], *n = given.positional[2];
    const c10::SymInt* count = numbers.find(n);
    if (count == nullptr || !is_number(first) || !is_number(last) || *count < 3)
        return std::nullopt;
    Ref type = Ref::borrow(given.named("dtype"));
    if (!type || type.get() == Py_None) type = call_torch("get_default_dtype", {}, nullptr);
    if (!type || !THPDtype_Check(type.get())) return std::nullopt;
    const at::ScalarType scalar = reinterpret_cast<THPDtype*>(type.get())->scalar_type;
    if (scalar != at::kFloat && scalar != at::kDouble) return std::nullopt;
    const Ref names = Ref::steal(PyDict_Copy(given.names.get()));
    if (!names || PyDict_SetItemString(names.get(), "dtype", type.get()) != 0) return nullptr;
    const auto wrapped = [](const c10::SymInt& value) {
        return Ref::steal(py::cast(value).release().ptr());
    };
    const auto scalar_of = [&](PyObject* number) {
        const Ref other = numbers.stand_in(number);
        return call_torch("scalar_tensor", {other ? other.get() : number}, names.get());
    };
    const auto binary = [](PyObject* (*operation)(PyObject*, PyObject*), const Ref& a,
                           const Ref& b) {
        return a && b ? Ref::steal(operation(a.get(), b.get())) : Ref();
    };
    const Ref a = scalar_of(first), b = a ? scalar_of(last) : Ref();
    const Ref most =
        b ? call_torch("scalar_tensor", {wrapped(*count - 1).get()}, names.get()) : Ref();
    const Ref step = binary(PyNumber_TrueDivide, binary(PyNumber_Subtract, b, a), most);
    const Ref i = step ? call_torch("arange", {wrapped(*count).get()}, names.get()) : Ref();
    const Ref low = binary(PyNumber_Add, binary(PyNumber_Multiply, i, step), a);
    const Ref back = binary(PyNumber_Subtract, most, i);
    const Ref high = binary(PyNumber_Subtract, b, binary(PyNumber_Multiply, back, step));
    const Ref half = high ? wrapped(*count / 2) : Ref();
    const Ref early = half ? Ref::steal(PyObject_RichCompare(i.get(), half.get(), Py_LT)) : Ref();
    if (!early) return nullptr;
    return call_torch("where", {early.get(), low.get(), high.get()}, nullptr).release();
}

// ---- items of tensors ----

constexpr std::int64_t kMany = -1;

/// How many dims an item of an index stands for; kMany for `...`, nothing where it depends.
std::optional<std::int64_t> dims_of(PyObject* item) {
    if (item == Py_None) return 0;
    if (item == Py_Ellipsis) return kMany;
    if (PySlice_Check(item) || PyLong_CheckExact(item)) return 1;
    if (PyList_CheckExact(item))
        return std::ranges::all_of(std::span(PySequence_Fast_ITEMS(item),
                                             static_cast<std::size_t>(PyList_GET_SIZE(item))),
                                   [](PyObject* o) { return PyLong_CheckExact(o); })
                   ? std::optional<std::int64_t>(1)
                   : std::nullopt;
    if (!is_tensor(item)) return std::nullopt;
    const at::Tensor& t = THPVariable_Unpack(item);
    if (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte) return std::nullopt;
    return 1;
}

/// An index with integers that are symbolic: those are selected first, as eager does; what is left.
struct Selected {
    at::Tensor tensor;
    Ref rest;  // a tuple
};

std::optional<Selected> select_symbolic(Numbers& numbers, PyObject* tensor, PyObject* index) {
    std::vector<PyObject*> items{index};
    if (PyTuple_CheckExact(index))
        items.assign(PySequence_Fast_ITEMS(index),
                     PySequence_Fast_ITEMS(index) + PyTuple_GET_SIZE(index));
    if (std::ranges::none_of(items, [&](PyObject* o) { return numbers.find(o) != nullptr; }))
        return std::nullopt;
    const Ref other = numbers.stand_in(tensor);
    Selected found{THPVariable_Unpack(other ? other.get() : tensor), Ref()};
    std::int64_t used = 0, gaps = 0;
    for (PyObject* item : items) {
        const auto dims = dims_of(item);
        if (!dims) return std::nullopt;
        if (*dims == kMany)
            ++gaps;
        else
            used += *dims;
    }
    if (gaps > 1 || used > found.tensor.dim()) return std::nullopt;
    const std::int64_t skipped = found.tensor.dim() - used;
    std::int64_t dim = 0;
    const Ref whole = Ref::steal(PySlice_New(nullptr, nullptr, nullptr));
    std::vector<PyObject*> rest;
    for (PyObject* item : items) {
        if (const c10::SymInt* n = numbers.find(item)) {
            found.tensor = found.tensor.select_symint(dim, *n);
            continue;
        }
        if (item == Py_None) {  // in its turn: its stride is that of what is behind it then
            found.tensor = found.tensor.unsqueeze(dim++);
            rest.push_back(whole.get());
            continue;
        }
        rest.push_back(item);
        dim += item == Py_Ellipsis ? skipped : *dims_of(item);
    }
    found.rest = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(rest.size())));
    for (std::size_t i = 0; found.rest && i < rest.size(); ++i)
        PyTuple_SET_ITEM(found.rest.get(), static_cast<Py_ssize_t>(i), Py_NewRef(rest[i]));
    if (const Ref symbolic = numbers.stand_in(found.rest.get())) found.rest = symbolic;
    return found;
}

std::optional<PyObject*> perform_item(Numbers& numbers, const Event& event) {
    const auto& o = event.operands;
    if (!is_tensor(o[0])) return std::nullopt;
    try {
        const auto selected = select_symbolic(numbers, o[0], o[1]);
        if (!selected) return std::nullopt;
        const Ref part = Ref::steal(THPVariable_Wrap(selected->tensor));
        if (!part || !selected->rest) return nullptr;
        if (event.operation == Operation::read_item)
            return PyTuple_GET_SIZE(selected->rest.get()) == 0
                       ? Py_NewRef(part.get())
                       : PyObject_GetItem(part.get(), selected->rest.get());
        const Ref value = numbers.stand_in(o[2]);
        const int status =
            PyObject_SetItem(part.get(), selected->rest.get(), value ? value.get() : o[2]);
        return status == 0 ? Py_NewRef(Py_None) : nullptr;
    } catch (const std::exception& e) {
        PyErr_SetString(PyExc_IndexError, e.what());
        return nullptr;
    }
}

}  // namespace

std::optional<PyObject*> perform_one_hot(Numbers& numbers, const Event& event) {
    if (event.operation != Operation::call) return std::nullopt;
    const Given given = given_to(event);
    if (given.positional.empty() || given.positional.size() > 2 || !given.has_only({"num_classes"}))
        return std::nullopt;
    PyObject* labels = given.positional[0];
    PyObject* classes =
        given.positional.size() == 2 ? given.positional[1] : given.named("num_classes");
    if (classes == nullptr || !PyLong_CheckExact(classes) || !is_tensor(labels) ||
        !THPVariable_CheckExact(labels))
        return std::nullopt;
    const at::Tensor& t = THPVariable_Unpack(labels);
    if (t.scalar_type() != at::kLong || !t.is_cpu() || PyLong_AsLongLong(classes) < 1) {
        PyErr_Clear();
        return std::nullopt;
    }
    numbers.specialise(classes);
    const Ref other = numbers.stand_in(labels);
    const at::Tensor index = other ? THPVariable_Unpack(other.get()) : t;
    try {
        const at::Tensor row = at::arange(PyLong_AsLongLong(classes), at::kLong);
        const at::Tensor known = row.gather(0, index.reshape({-1})).view_symint(index.sym_sizes());
        return THPVariable_Wrap(known.unsqueeze(-1).eq(row).to(at::kLong));
    } catch (const std::exception& e) {
        PyErr_SetString(PyExc_RuntimeError, e.what());
        return nullptr;
    }
}

std::optional<PyObject*> perform_replaced(Numbers& numbers, const Event& event) {
    if (event.operation == Operation::read_item || event.operation == Operation::store_item)
        return perform_item(numbers, event);
    if (event.operation != Operation::call || !PyCFunction_Check(event.operands[0]))
        return std::nullopt;
    const std::string name = classify(event.operands[0]).name;
    if (name != "torch.tensor" && name != "torch.linspace") return std::nullopt;
    const Given given = given_to(event);
    if (!given.names) return nullptr;
    return name == "torch.tensor" ? make_tensor(numbers, given) : make_linspace(numbers, given);
}

}  // namespace ingot::capture
