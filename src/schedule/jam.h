// Register blocking of windowed sums: several neighbouring points of the loop beside the vector
// loop are computed together, so that they share loads (a depthwise convolution's weights and
// overlapping rows) and their sums do not wait for one another.
//
// It stands after the loops have their order and kinds. Cost: the nest's instructions times the
// block.
#pragma once
#include "schedule/nest.h"

namespace ingot::sched {

/// Blocks the nest if its last outer loop is the vector loop and its phases reduce over small
/// windows without scratch rows (which belong to one point); otherwise leaves it as it is.
void jam_windows(Nest& nest, const std::vector<KernelBuffer>& buffers, ExprPool& pool);

}  // namespace ingot::sched
