// The part of legalising that concerns gradients of windows where an element of the image lies in
// at most four of them: of max pooling, and on GPUs of depthwise convolutions that step. Images are
// [images, channels, rows, columns], in memory with channels innermost, which vectors run along.
//
// Cost: linear, a few nodes for each window that an element may lie in.
#pragma once
#include <limits>

#include "ir/graph.h"

namespace ingot::sched {

/// Whether an element lies in so few windows that its gradient is better gathered than scattered.
bool few_windows(const Ints& kernel, const Ints& stride);

/// Whether gradients of images of this type are gathered: on a GPU those of 16 bits.
bool is_gathered_type(DType type, bool gpu);

/// Elements of the largest image whose gradient is gathered: sums of two places fit into 32 bits.
constexpr std::int64_t kLargestImage = std::numeric_limits<std::int32_t>::max() / 2;

/// Whether a convolution of so many groups, with a weight of these sizes, has one channel a group.
bool is_depthwise_weight(const Sizes& weight, std::int64_t groups);

/// Rewrites `n`, a MaxPoolGrad of `old` that knows its windows, or a ConvGradInput; false when it
/// stays as it is. Values of the new graph that should have memory are added to `in_memory`.
bool gathered_gradient(Rewriter& r, const Graph& old, const Node& n,
                       std::vector<ValueId>& in_memory, bool gpu);

}  // namespace ingot::sched
