// The part of legalising that concerns gradients of windows on GPUs, where an element of the image
// lies in at most four of them: of max pooling, and of depthwise convolutions that step. Images are
// [images, channels, rows, columns], in memory with channels innermost, which vectors run along.
//
// Cost: linear, a few nodes for each window that an element may lie in.
#pragma once
#include "ir/graph.h"

namespace ingot::sched {

/// Whether an element lies in so few windows that its gradient is better gathered than scattered.
bool few_windows(const Ints& kernel, const Ints& stride);

/// Rewrites `n`, a MaxPoolGrad of `old` that knows its windows, or a ConvGradInput; false when it
/// stays as it is. Values of the new graph that should have memory are added to `in_memory`.
bool gathered_gradient(Rewriter& r, const Graph& old, const Node& n,
                       std::vector<ValueId>& in_memory);

}  // namespace ingot::sched
