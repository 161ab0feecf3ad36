// The Python class `_ingot.Recorder`: records what a Python program does to promised tensors and
// compiles it.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace ingot::bindings {

void add_recorder(pybind11::module_& module);

}  // namespace ingot::bindings
