// Composite operators of PyTorch's that are taken apart in another way while recording.
//
// Products ask for sizes as numbers, which would specialise every symbolic size of their operands.
// Attention with a mask takes its unfused form on GPUs where the mask only looks unfit. Recordings
// with symbolic sizes, and of training on a GPU, come here through the mode's python_dispatcher;
// the operators below are PyTorch's, so autograd sees what it always sees.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace ingot::trace {

/// Carries the call out if it is such an operator with such operands: replaces the arguments on the
/// stack by the result.
bool run_composite(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace ingot::trace
