// What Python sees of the watch over writes that no version counter notices: functions of `_ingot`.
//
// `watched_operators()`: the operators whose writes are noted (trace/watched_operators.h).
//
// `unseen_changes(tensor)`: grows with each write that was noted; None while one may come.
//
// `on_unseen_write(callable)`: called with the name of a parameter that had changed and of which
// nobody knew; None: no more.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace ingot::bindings {

void add_unseen_writes(pybind11::module_& module);

}  // namespace ingot::bindings
