// PyTorch's fused optimizer steps, taken apart: calls over lists of tensors that nothing could fuse
// with, that copy every list they write, and for which a learning rate is a number like any other.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

namespace ingot::trace {

/// Carries out `op` by operators on single tensors, if it is a fused step of numbers of 32 or 64
/// bits without a gradient scaler: the arguments leave the stack. False: nothing has happened.
bool run_fused_step(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace ingot::trace
