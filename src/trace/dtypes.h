// PyTorch's element types and scalars as the graph's, and back.
#pragma once
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include "ir/graph.h"
#include "trace/sym_node.h"

namespace ingot::trace {

using Ints = ingot::Ints;

/// Throws NotSupported for quantised and other types the graph does not have.
DType to_dtype(c10::ScalarType type);
c10::ScalarType to_scalar_type(DType type);
/// Integers keep their bits, floats their double, complex both parts.
Scalar to_scalar(const c10::Scalar& scalar);
/// `scalar` as a value of `dtype` (a float scalar of an integer type is truncated), as PyTorch's
/// Scalar::to does.
Scalar cast_scalar(const c10::Scalar& scalar, DType dtype);

inline Sizes to_sizes(c10::IntArrayRef ints) { return Sizes(ints.begin(), ints.end()); }
inline Sizes to_sizes(const Ints& ints) { return Sizes(ints.begin(), ints.end()); }
inline Sizes to_sizes(c10::SymIntArrayRef ints) { return unwrap(ints); }
inline Sizes to_sizes(const SymInts& ints) { return unwrap(ints); }
inline Ints to_ints(c10::IntArrayRef ints) { return ints.vec(); }
/// Sizes that are all constants. Throws NotSupported otherwise.
Ints to_ints(const Sizes& sizes);

}  // namespace ingot::trace
