// The part of legalising that concerns convolutions. Depthwise ones become windows times weights,
// summed; those of inputs get a padded copy of them. Gradients become what the templates can
// generate: convolutions with the weight turned round, products with windows, sums of windows; the
// rest stays a call of the vendor's library. Weights that are not packed ahead get a copy with
// channels innermost where the templates will read them.
//
// Cost: linear; a copy of the weight, or of the input with its border, for a gradient.
#pragma once
#include "schedule/legalize.h"

namespace ingot::sched {

/// Rewrites `n`, a convolution of `old` or a gradient of one; false when it stays as it is.
/// Values of the new graph that should have memory are added to `in_memory`.
bool legalize_convolution(Rewriter& r, const Graph& old, const Node& n,
                          std::vector<ValueId>& in_memory, const LegalizeOptions& options);

}  // namespace ingot::sched
