// Carrying out an operation of the interpreter through CPython's API.
#pragma once
#include <Python.h>

#include <string>

#include "capture/interpreter/observer.h"

namespace ingot::capture {

/// Does what the event says and gives its result (None where there is none, True or False for a
/// bool), or nullptr with the error set.
PyObject* perform(const Event& event);
/// The same, with the frames that start meanwhile left to CPython.
PyObject* perform_unobserved(const Event& event);
/// Whether `perform` knows the operation.
bool can_perform(const Event& event);
/// Makes `result` what a hook hands over for `handled`.
Verdict finish_result(const Event& event, PyObject** result);
/// Whether the event is one operator of PyTorch, which may be carried out again if it failed.
bool is_operator_event(const Event& event);
/// A callable's name for messages.
std::string callable_name(PyObject* callable);
/// The pending Python error in one line; it stays set.
std::string error_text();

}  // namespace ingot::capture
