// Numbers that are tensors for a while: `torch.div(n, 2, rounding_mode="trunc")` of an integer,
// asked for its value. No data decides it, so the recorded calls that lead to it are made at once.
//
// Costs a walk over the log where a program asks for a number that the graph does not show.
#pragma once
#include <c10/core/Scalar.h>

#include <optional>
#include <span>

#include "trace/recorder.h"
#include "trace/sym_node.h"

namespace ingot::trace {

/// The number in `tensor`, a promise of the recording with this log, if only numbers have gone into
/// it and nobody has written to it. What is symbolic among them is fixed.
std::optional<c10::Scalar> known_number(std::span<const LoggedCall> log, const at::Tensor& tensor,
                                        SymbolicSizes& symbols);

}  // namespace ingot::trace
