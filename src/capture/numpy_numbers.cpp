// See numpy_numbers.h.
#include "capture/numpy_numbers.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "capture/interpreter/observer.h"

namespace ingot::capture {
namespace {

/// Not one that `np.frompyfunc` has made, which runs Python code.
bool is_of_numpy(PyObject* callable) {
    if (std::string_view(Py_TYPE(callable)->tp_name) != "numpy.ufunc") return false;
    PyObject* numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
    const Ref name = Ref::steal(PyObject_GetAttrString(callable, "__name__"));
    const Ref found =
        numpy != nullptr && name ? Ref::steal(PyObject_GetAttr(numpy, name.get())) : Ref();
    return found.get() == callable;
}

/// The call where nothing is said about results that are no numbers or too small.
Ref call_silently(PyObject* callable, std::span<PyObject* const> arguments) {
    const Ref numpy = Ref::steal(PyImport_ImportModule("numpy"));
    const Ref make = numpy ? Ref::steal(PyObject_GetAttrString(numpy.get(), "errstate")) : Ref();
    const Ref none = Ref::steal(PyTuple_New(0));
    const Ref names = Ref::steal(Py_BuildValue("{s:s}", "all", "ignore"));
    if (!make || !none || !names) return {};
    const Ref state = Ref::steal(PyObject_Call(make.get(), none.get(), names.get()));
    if (!state || !Ref::steal(PyObject_CallMethod(state.get(), "__enter__", nullptr))) return {};
    Ref result =
        Ref::steal(PyObject_Vectorcall(callable, arguments.data(), arguments.size(), nullptr));
    if (!result) PyErr_Clear();
    const Ref left =
        Ref::steal(PyObject_CallMethod(state.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    return left ? std::move(result) : Ref();
}

}  // namespace

Ref number_of_numpy(PyObject* callable, std::span<PyObject* const> arguments) {
    const auto is_number = [](PyObject* o) {
        return o != nullptr && (PyFloat_Check(o) || PyLong_CheckExact(o));
    };
    if (arguments.empty() || !std::ranges::all_of(arguments, is_number)) return {};
    const Quiet quiet;
    Ref result = is_of_numpy(callable) ? call_silently(callable, arguments) : Ref();
    if (!result || !PyFloat_Check(result.get()) || !std::isnormal(PyFloat_AS_DOUBLE(result.get())))
        result = Ref();
    PyErr_Clear();
    return result;
}

}  // namespace ingot::capture
