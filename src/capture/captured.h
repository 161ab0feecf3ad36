// The Python type `Captured`: a function, its recordings, and the dispatch of a call to them.
#pragma once
#include <Python.h>

#include <memory>
#include <string>

#include "capture/state.h"

namespace ingot::capture {

struct CapturedState;

struct CapturedObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject* function;
    PyObject* options;  // a dict
    PyObject* dict;
    PyObject* weak_references;
    Counters* counters;
    CapturedState* state;
};

/// Adds the type to the module; false with a Python error set.
bool add_captured_type(PyObject* module);
/// A new captured function (steals nothing), or nullptr with an error set.
PyObject* make_captured(PyObject* function, PyObject* options);
/// Drops the recordings of a captured function.
void forget(PyObject* captured);
/// One line for people, through the package's logger, once in a process.
void say(const std::string& line);
/// Whether this thread records just now.
bool is_recording();
/// The function behind a captured one, nullptr for any other object.
PyObject* captured_function(PyObject* object);

}  // namespace ingot::capture
