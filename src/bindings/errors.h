// How Ingot's and PyTorch's C++ exceptions become Python's.
#pragma once
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include "ir/error.h"
#include "runtime/driver.h"
#include "trace/compiled_function.h"

namespace ingot::bindings {

/// The module's exception classes, all RuntimeErrors: `Unsupported`, `InternalError`,
/// `MissingCompiler`.
struct ErrorTypes {
    PyObject* missing = nullptr;
    PyObject* unsupported = nullptr;
    PyObject* internal = nullptr;
};
ErrorTypes& error_types();
bool add_error_types(PyObject* module);

/// Sets the Python error for the exception being handled, if it is one of Ingot's; false otherwise.
bool translate_ingot_error();

/// Whether a signal's handler wants a compilation to end: its Python error is set. Called without
/// Python's lock.
bool interrupted();

/// f() or, when it throws, nullptr with the matching Python error set.
template <class F>
PyObject* with_python_errors(F&& f) {
    HANDLE_TH_ERRORS
    try {
        return f();
    } catch (const Error&) {
        if (!translate_ingot_error()) throw;
        return nullptr;
    }
    END_HANDLE_TH_ERRORS
}

/// Throws what the program's own code has raised where eager is not to run it again: what is no
/// `Exception`, such as KeyboardInterrupt. Needs Python's lock.
void raise_if_final(const trace::Failure& failure);

/// The exception being handled as a Python error that is thrown on.
[[noreturn]] inline void raise_in_python() {
    with_python_errors([]() -> PyObject* { throw; });
    throw pybind11::error_already_set();
}

}  // namespace ingot::bindings
