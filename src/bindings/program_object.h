// The Python type `_ingot.Program`: a compiled function called through CPython's vectorcall, so
// that a call costs no argument tuple and no dictionary.
#pragma once
#include <torch/csrc/python_headers.h>

#include <memory>
#include <vector>

#include "trace/compiled_function.h"
#include "trace/differentiable.h"

namespace ingot::bindings {

/// Adds the type to the module; false with a Python error set if that fails.
bool add_program_type(PyObject* module);
/// Which arguments are numbers instead of tensors, and which results.
struct Signature {
    std::vector<bool> number_arguments;
    std::vector<bool> number_results;
};
/// A new program object.
PyObject* make_program(std::shared_ptr<trace::CompiledFunction> function, Signature signature);
/// The same for one whose inputs need gradients.
PyObject* make_program(std::shared_ptr<trace::DifferentiableFunction> function,
                       Signature signature);

}  // namespace ingot::bindings
