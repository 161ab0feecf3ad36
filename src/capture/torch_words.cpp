// See torch_words.h.
#include "capture/torch_words.h"

#include <string_view>

#include "capture/ref.h"

namespace ingot::capture {
namespace {

std::string_view text_of(PyObject* text) {
    const char* s = text == nullptr || !PyUnicode_Check(text) ? nullptr : PyUnicode_AsUTF8(text);
    return s == nullptr ? std::string_view() : s;
}

PyObject* attribute(PyFunctionObject* function, const char* name) {
    return function->func_dict == nullptr ? nullptr
                                          : PyDict_GetItemString(function->func_dict, name);
}

/// The name of the module in which the function's code stands; functools.wraps leaves it alone.
std::string_view home_of(PyFunctionObject* function) {
    return text_of(PyDict_GetItemString(function->func_globals, "__name__"));
}

/// Whether the attributes are the function's own. functools.wraps copies those of what is wrapped,
/// and PyTorch's functions have their address among them for that.
bool are_its_own(PyFunctionObject* function) {
    PyObject* id = attribute(function, "_torchdynamo_wrapper_id");
    if (id == nullptr || !PyLong_Check(id)) return true;
    const std::size_t address = PyLong_AsSize_t(id);
    if (PyErr_Occurred()) PyErr_Clear();
    return address == reinterpret_cast<std::size_t>(function);
}

/// Whether PyTorch keeps the callable among those that it takes as they are.
bool is_allowed(PyObject* callable) {
    PyObject* allowed = state().torch.allowed;
    if (allowed == nullptr || !PyAnySet_Check(allowed) || PySet_GET_SIZE(allowed) == 0)
        return false;
    const Ref id = Ref::steal(PyLong_FromVoidPtr(callable));
    const int found = id ? PySet_Contains(allowed, id.get()) : -1;
    if (found < 0) PyErr_Clear();
    return found == 1;
}

}  // namespace

Mark mark_of_torch(PyObject* callable) {
    if (!PyFunction_Check(callable)) return Mark::None;
    auto* function = reinterpret_cast<PyFunctionObject*>(callable);
    if (is_allowed(callable)) return Mark::Allow;
    if (function->func_dict == nullptr || PyDict_GET_SIZE(function->func_dict) == 0)
        return Mark::None;
    if (attribute(function, "_torchdynamo_disable") == Py_True && are_its_own(function))
        return attribute(function, "_torchdynamo_disable_recursive") == Py_False ? Mark::DisableOnce
                                                                                 : Mark::Disable;
    if (attribute(function, "_dynamo_marked_constant") == Py_True && are_its_own(function))
        return Mark::Constant;
    // PyTorch's own functions that are disabled once they are called first.
    if (home_of(function) == "torch._compile" && attribute(function, "__wrapped__") != nullptr)
        return Mark::Disable;
    return Mark::None;
}

std::string reason_of_torch(PyObject* callable) {
    if (!PyFunction_Check(callable)) return "";
    const std::string_view reason = text_of(
        attribute(reinterpret_cast<PyFunctionObject*>(callable), "_torchdynamo_disable_msg"));
    return reason.empty() ? "" : " (" + std::string(reason) + ")";
}

PyObject* function_within(PyObject* callable) {
    return PyFunction_Check(callable) ? attribute(reinterpret_cast<PyFunctionObject*>(callable),
                                                  "_torchdynamo_orig_callable")
                                      : nullptr;
}

PyObject* compiled_by_torch(PyObject* callable) {
    if (state().torch.stances == nullptr || !PyFunction_Check(callable)) return nullptr;
    auto* function = reinterpret_cast<PyFunctionObject*>(callable);
    PyObject* inner = attribute(function, "_torchdynamo_inline");
    return inner != nullptr && function->func_globals == state().torch.stances ? inner : nullptr;
}

PyObject* forward_of_torch(PyObject* callable) {
    PyObject* module = state().torch.stances;
    if (module == nullptr) return nullptr;
    PyObject* type = PyDict_GetItemString(module, "OptimizedModule");
    if (reinterpret_cast<PyObject*>(Py_TYPE(callable)) != type) return nullptr;
    PyObject** dict = _PyObject_GetDictPtr(callable);
    return dict != nullptr && *dict != nullptr ? PyDict_GetItemString(*dict, "forward") : nullptr;
}

}  // namespace ingot::capture
