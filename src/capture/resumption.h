// Going on behind a break: the frames that were live there are built anew from their values and run
// by CPython, or by the interpreter under a session. Stands between segments, which know the
// frames' shapes, and replays and recordings, which have the values. Costs the frames' calls.
#pragma once
#include <Python.h>

#include <span>

#include "capture/segment.h"

namespace ingot::capture {

/// Rebuilds the frames from `slots` and runs them to their end: what the outermost returns, or
/// nullptr with the error set. `result`: the breaking operation's, a new reference that is taken
/// over, or nullptr with the error set.
PyObject* resume(const BreakPoint& at, std::span<PyObject* const> slots, PyObject* result);
/// The same right before the operation, which CPython carries out.
PyObject* resume_before(const BreakPoint& at, std::span<PyObject* const> slots);

}  // namespace ingot::capture
