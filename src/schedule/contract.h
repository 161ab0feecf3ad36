// From a contraction node and its epilogue to the Contraction form: which dims are batch, rows,
// columns and summed, where the operands' elements are, and what happens to the finished sums.
//
// matmul: batch dims that the right side does not depend on join the rows. conv: rows are (image,
// spatial..), columns output channels, the sum runs over (kernel.., channel). A convolution's
// gradient for its weight: rows are output channels, columns (kernel.., channel), the sum runs over
// (image, spatial..). Neighbouring loops that all accesses walk like one are merged. Linear in the
// instructions.
#pragma once
#include "schedule/emit.h"

namespace ingot::sched {

/// Whether the node has the Contraction form at all.
bool has_contraction_form(const Graph& graph, const Node& node);

/// The contraction alone, its operands read as their memory will lie, for a cost model.
Kernel bare_contraction(const Graph& graph, NodeId node, const Layouts& layouts);

/// The group's contraction with its epilogue.
Draft emit_contraction_group(const EmitContext& context, std::uint32_t group);

}  // namespace ingot::sched
