// What a call's meta function says of its results where sizes are symbolic.
//
// PyTorch's meta functions in Python follow symbols; those in C++ insist on numbers, which would
// fix every size of the operands. So they are asked on trial, with symbols whose guards do not
// count yet: where nothing was fixed, the guards are kept. Where something was, the meta function
// is asked for the example and for a dozen other sets of sizes with numbers, and the results' sizes
// are expressions of the operands' that have given the right ones for all of them: one of them, or
// a sum, multiple or quotient with small numbers, or a product of two. A call whose result has
// other sizes than its expression says all the same fails when it is made, and eager goes on.
//
// Flow: from record_extern. Costs one more run of the meta function where it follows symbols, else
// some 20 runs, a few microseconds each.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>

#include "trace/sym_node.h"

namespace ingot::trace {

/// Meta tensors in the places of the call's results, given its arguments with meta tensors whose
/// sizes are symbols of `symbols`; nothing where they are not found. `run`: the meta function.
std::optional<torch::jit::Stack> symbolic_results(
    const std::shared_ptr<ExprPool>& pool, SymbolicSizes& symbols,
    const torch::jit::Stack& arguments, const std::function<void(torch::jit::Stack&)>& run);

}  // namespace ingot::trace
