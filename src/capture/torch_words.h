// What PyTorch's decorators have said of a function: `torch.compile`, `torch.compiler.disable`,
// `assume_constant_result`, `allow_in_graph` and those of `torch._dynamo`. They leave attributes on
// the function, or on one of theirs that they put around it, and are understood by these alone, so
// that nothing of TorchDynamo is imported.
//
// Used by the recorder, at each call of a Python function; costs a comparison where the function
// has no attributes.
#pragma once
#include <Python.h>

#include <string>

#include "capture/state.h"

namespace ingot::capture {

/// The mark that PyTorch's words amount to.
Mark mark_of_torch(PyObject* callable);
/// The reason that was given with `disable`, in a form to be put behind others; "" without one.
std::string reason_of_torch(PyObject* callable);
/// The function that such a decorator was put around, borrowed; nullptr if there is none.
PyObject* function_within(PyObject* callable);
/// What `torch.compile` was given, behind the function or module that it has returned; borrowed,
/// nullptr for any other object.
PyObject* compiled_by_torch(PyObject* callable);

/// `forward` of the module that `torch.compile` or `disable` has put around another, with which a
/// call of it begins; borrowed, nullptr for any other object.
PyObject* forward_of_torch(PyObject* callable);

}  // namespace ingot::capture
