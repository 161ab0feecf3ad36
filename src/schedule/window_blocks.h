// On GPUs: sums over windows of images (depthwise convolutions, pooling) and the gradients of their
// weights, so that a thread computes several neighbouring points at once and reads what they share
// once.
//
// Two forms. Windows of a few taps for each point: a block of points beside each other, of one row,
// becomes one point, and all taps of all its points one phase without loops. Correlations, sums
// over images for each tap: all taps become one point, whose phase walks the image some columns at
// a time and has a sum for each tap. In both, loads of one place are one load, and borders are
// asked for only where a block may cross them: a range of indices says where it cannot. What steps
// (a gradient of a convolution with strides) loses its quotients and remainders where the block has
// the step's size.
//
// It stands after the loops have their order and kinds; the result is a nest as any other. Cost: a
// nest's instructions times the block for each block that is tried, a few.
#pragma once
#include "schedule/nest.h"

namespace ingot::sched {

/// Blocks the nest if its last outer loop is the vector loop, along which all that it reads is
/// neighbours, and it has one of the two forms; otherwise leaves it as it is. Blocks of windows
/// leave at least so many threads.
void block_windows(Nest& nest, const std::vector<KernelBuffer>& buffers, ExprPool& pool,
                   std::int64_t fewest_threads = 24 * 1024);

}  // namespace ingot::sched
