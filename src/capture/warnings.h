// Warnings: how a recorded call of `warnings.warn` is repeated by each replay.
//
// `warn` says where it was called by looking at frames, which a replay has not. The recording finds
// the place once, and replays call `warnings.warn_explicit` with it. Which filters were set is
// guarded, as one of them may make an error of the warning, and errors steer the program.
//
// Stands between calls.cpp, which meets the call, and the recipes. A check costs some 20 ns.
#pragma once
#include <Python.h>

#include <span>

#include "capture/interpreter/frame.h"
#include "capture/ref.h"

namespace ingot::capture {

/// The list `warnings.filters` as a tuple, nullptr if there is none.
Ref warning_filters();
/// Whether the filters are these (a result of `warning_filters`), though the list may be another.
bool has_warning_filters(PyObject* expected);

/// The arguments for `warnings.warn_explicit` that make what `warnings.warn` makes, called in
/// `frame` with these positional and then named arguments. Empty if that is not known: a category
/// or message that is computed, a place beyond the outermost frame of the recording. Without an
/// error set. Makes the place's registry of warnings, as the call would.
Ref explicit_warning(Frame frame, std::span<PyObject* const> arguments, PyObject* names);
/// `warnings.warn_explicit`.
PyObject* warn_explicit();

}  // namespace ingot::capture
