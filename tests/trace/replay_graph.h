// Runs a recording on real tensors: prims through the reference evaluator, extern calls through
// ATen, then the recipes of outputs. The oracle of the tracer's tests.
#pragma once
#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "trace/recorder.h"

namespace ingot::trace {

/// The outputs of the recorded function on `inputs` (those given to add_input, in order), which are
/// written where the program writes them.
std::vector<at::Tensor> replay_graph(const Recording& recording,
                                     std::span<const at::Tensor> inputs);

}  // namespace ingot::trace
