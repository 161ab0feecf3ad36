// Composite operators of PyTorch's that ask for sizes as numbers, written anew over symbolic ones.
//
// Their own C++ would specialise every size of a product's operands. Only recordings with symbolic
// sizes come here, through the mode's python_dispatcher; the operators below them are PyTorch's, so
// autograd sees what it always sees.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace ingot::trace {

/// Carries the call out if it is such an operator with symbolic operands: replaces the arguments on
/// the stack by the result.
bool run_symbolic_composite(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace ingot::trace
