// The part of legalising that has a GPU's convolutions read and write channels last: an image that
// is given otherwise is copied once, by a kernel of ours, and its filters with it (ahead of the
// calls where they are frozen), so that the library converts nothing and what follows reads what
// it wrote. Cost: a copy of the image at the memory's bandwidth.
#pragma once
#include <vector>

#include "ir/graph.h"
#include "schedule/layout.h"

namespace ingot::sched {

/// Rewrites `n`, a convolution of `old`, which lies in memory as `layouts` says; false where it
/// stays as it is. Values that should have memory are added to `in_memory`.
bool convolve_channels_last(Rewriter& r, const Graph& old, const Node& n, const Layouts& layouts,
                            std::vector<ValueId>& in_memory);

}  // namespace ingot::sched
