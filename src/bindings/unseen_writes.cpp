// See unseen_writes.h.
#include "bindings/unseen_writes.h"

#include <utility>

#include "trace/frozen_checks.h"
#include "trace/silent_changes.h"
#include "trace/watched_operators.h"

namespace ingot::bindings {
namespace {

/// The callable, called from whatever thread makes a call; what it raises goes to the hook for
/// exceptions that nobody can catch.
void tell(PyObject* callable, const std::string& name) {
    const pybind11::gil_scoped_acquire lock;
    PyObject* result = PyObject_CallFunction(callable, "s", name.c_str());
    if (result == nullptr) PyErr_WriteUnraisable(callable);
    Py_XDECREF(result);
}

void on_unseen_write(const pybind11::object& callable) {
    if (callable.is_none()) return trace::on_unseen_write({});
    // Never freed: a thread may be about to call it.
    PyObject* const kept = Py_NewRef(callable.ptr());
    trace::on_unseen_write([kept](const std::string& name) { tell(kept, name); });
}

}  // namespace

void add_unseen_writes(pybind11::module_& module) {
    module.def("watched_operators", [] {
        trace::watch_operators();
        return trace::watched_operators();
    });
    module.def("unseen_changes", [](const at::Tensor& tensor) {
        return tensor.has_storage() ? trace::silent_changes(*tensor.unsafeGetTensorImpl())
                                    : std::optional<std::uint32_t>(0);
    });
    module.def("on_unseen_write", &on_unseen_write);
}

}  // namespace ingot::bindings
