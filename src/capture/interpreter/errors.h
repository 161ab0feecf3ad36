// The error messages of Python's instructions, and names that they look up. Not on any fast path.
#pragma once
#include "capture/interpreter/cpython.h"

namespace ingot::capture {

/// Strings that instructions look up, interned once.
struct Names {
    PyObject *aenter, *aexit, *all, *annotations, *build_class, *dict, *enter, *exit, *get, *import,
        *init, *initializing, *name, *module_name, *send, *spec, *split, *close, *throw_, *call,
        *match_args, *empty, *class_;
};
const Names& names();

/// Raises `type` with `format`, which has one %s for the name; NameErrors carry the name.
void raise_for_name(PyObject* type, const char* format, PyObject* name);
void raise_name_error(PyObject* name);
void raise_unbound_local(PyObject* name);
/// For `f(*args)`: false with the error set when `args` cannot be iterated over.
bool check_expandable(PyObject* function, PyObject* args);
/// Makes the error of merging keyword arguments that of the call.
void raise_for_keywords(PyObject* function, PyObject* keywords);
/// False with the error set when `type` cannot stand in `except` (`star`: in `except*`).
bool check_catchable(PyObject* type, bool star);

}  // namespace ingot::capture
