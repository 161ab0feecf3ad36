// The history of a promise that is a view, made while its recorder can still record.
//
// A change in place of a view's memory makes its node of PyTorch's graph stale, and PyTorch makes
// another when it is next asked for: by making the view again, which are operators on promises. Who
// asks for histories while nothing is recorded has them made before. Costs nothing for other
// tensors.
#pragma once
#include <ATen/core/Tensor.h>

namespace ingot::trace {

/// Until the recording is handed over; nothing from then on.
void settle_history(const at::Tensor& promise);

}  // namespace ingot::trace
