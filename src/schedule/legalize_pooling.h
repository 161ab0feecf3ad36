// The part of legalising that concerns max pooling: a maximum over windows, and where positions are
// wanted, what eager's loop finds: the first of equal elements, but the last that is not a number,
// and the first inside the image where all are the type's least.
//
// Cost: linear, a handful of nodes.
#pragma once
#include "ir/graph.h"

namespace ingot::sched {

/// Rewrites `n`, a MaxPoolIndices of `old`.
void legalize_max_pool(Rewriter& r, const Graph& old, const Node& n, bool positions);

}  // namespace ingot::sched
