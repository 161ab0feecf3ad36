// See errors.h.
#include "bindings/errors.h"

namespace ingot::bindings {

ErrorTypes& error_types() {
    static ErrorTypes types;
    return types;
}

bool add_error_types(PyObject* module) {
    ErrorTypes& types = error_types();
    types.unsupported = PyErr_NewExceptionWithDoc(
        "ingot._ingot.Unsupported", "Correct input that this version does not compile.",
        PyExc_RuntimeError, nullptr);
    types.internal = PyErr_NewExceptionWithDoc(
        "ingot._ingot.InternalError", "A mistake of the compiler.", PyExc_RuntimeError, nullptr);
    types.missing = PyErr_NewExceptionWithDoc(
        "ingot._ingot.MissingCompiler", "The compiler that an option asks for is not installed.",
        PyExc_RuntimeError, nullptr);
    return types.unsupported != nullptr && types.internal != nullptr && types.missing != nullptr &&
           PyModule_AddObjectRef(module, "MissingCompiler", types.missing) == 0 &&
           PyModule_AddObjectRef(module, "Unsupported", types.unsupported) == 0 &&
           PyModule_AddObjectRef(module, "InternalError", types.internal) == 0;
}

bool interrupted() {
    pybind11::gil_scoped_acquire lock;
    return PyErr_CheckSignals() != 0;
}

void raise_if_final(const trace::Failure& failure) {
    if (!failure.raised) return;
    try {
        std::rethrow_exception(failure.raised);
    } catch (python_error& e) {
        if (PyErr_GivenExceptionMatches(e.type, PyExc_Exception) == 0) throw;
    } catch (const pybind11::error_already_set& e) {
        if (!e.matches(PyExc_Exception)) throw;
    } catch (...) {  // eager says it
    }
}

bool translate_ingot_error() {
    try {
        throw;
    } catch (const runtime::Interrupted& e) {
        // The signal's handler has set its exception already.
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_KeyboardInterrupt, e.what());
    } catch (const NotSupported& e) {
        PyErr_SetString(error_types().unsupported, e.what());
    } catch (const InternalError& e) {
        PyErr_SetString(error_types().internal, e.what());
    } catch (const runtime::MissingCompiler& e) {
        PyErr_SetString(error_types().missing, e.what());
    } catch (const Error& e) {
        PyErr_SetString(PyExc_RuntimeError, e.what());
    } catch (...) {
        return false;
    }
    return true;
}

}  // namespace ingot::bindings
