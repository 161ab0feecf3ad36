// The Python class `_ingot.Recorder`: records what a Python program does to promised tensors and
// compiles it.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include <optional>

namespace ingot::bindings {

void add_recorder(pybind11::module_& module);

/// The symbolic number that Python's argument parser has put `stand_in` for, if it is such a
/// tensor.
std::optional<c10::Scalar> read_number(const at::Tensor& stand_in);
/// The float with the recorder's node, which Python's bindings wrap in one of their own.
c10::SymFloat own_float(const c10::SymFloat& wrapped);

}  // namespace ingot::bindings
