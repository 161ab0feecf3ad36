// The call that a generator goes back to, as long as its code has not begun: another call with the
// same arguments gives another such generator. Stands beside frame.h, for recipes.
#pragma once
#include <Python.h>

#include <optional>
#include <vector>

namespace ingot::capture {

/// All borrowed from the generator's frame.
struct GeneratorCall {
    PyObject* function;
    std::vector<PyObject*> positional;
    std::vector<PyObject*> keyword_names, keyword_values;
};

/// Nothing for a generator whose code has begun or ended, whose frame has another shape than a
/// call leaves, or whose name was changed.
std::optional<GeneratorCall> call_of_unstarted(PyObject* generator);

}  // namespace ingot::capture
