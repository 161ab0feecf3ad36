// Whether two views of one storage have an element in common.
//
// A write whose operands lie partly in the written memory depends on the order of the elements:
// eager refuses most of them and leaves the others undefined. Recording would make every write see
// its operands as they were. It costs nothing where no operand shares the target's storage.
#pragma once
#include <ATen/core/Tensor.h>

#include "trace/sym_node.h"

namespace ingot::trace {

enum class Overlap : std::uint8_t { None, Same, Part };

/// How `a` and `b` lie in one storage: apart, the same elements in the same places, or anything
/// else (also what cannot be told quickly). Symbolic sizes are tried with the example's numbers and
/// a few others; where the answers differ, they become numbers.
Overlap overlap(const at::Tensor& a, const at::Tensor& b, const SymbolicSizes& symbols);

/// Whether two indices into the tensor may mean one element, as they do where it was expanded: by
/// the example's numbers, and "yes" where strides alone do not tell.
bool overlaps_itself(const at::Tensor& tensor, const SymbolicSizes& symbols);

}  // namespace ingot::trace
