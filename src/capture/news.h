// What capture tells people: lines in the log, and the errors of `fullgraph`.
//
// The words, the levels and what is said once are the package's (python/ingot/_news.py); here is
// only the way there. Called where something is recorded, breaks or runs eagerly, never by a replay
// that succeeds. Neither a log that fails nor a signal's exception in it ends a recording.
#pragma once
#include <Python.h>

#include <string>
#include <vector>

#include "capture/places.h"
#include "capture/segment.h"

namespace ingot::capture {

struct RecordingContext;

/// `kind`: "graph_break", "eager" (a whole call runs eagerly), "rest" (what is behind a break
/// does), "compiled", "recompile".
void tell(const RecordingContext& context, const char* kind, const std::string& reason,
          const std::vector<CodePlace>& places = {}, const std::vector<std::string>& details = {});
/// Whether anybody wants to know about guards.
bool tells_guards();

/// The limit of recordings is reached: the line for that.
void tell_limit(const RecordingContext& context, const std::string& failure);

/// The error of a call that `fullgraph` refuses: a new exception (a failure to make one gives
/// that).
PyObject* unsupported(const RecordingContext& context, const std::string& reason,
                      const std::vector<CodePlace>& places);
/// The same for the limit of recordings.
PyObject* limit_error(const RecordingContext& context, const std::string& failure);
/// The error of the stance `fail_on_recompile`.
PyObject* recompile_error(const RecordingContext& context, const std::string& failure);

/// Sets it as the Python error, taking it over; gives nullptr.
PyObject* raise_error(PyObject* error);

}  // namespace ingot::capture
