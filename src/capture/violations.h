// Sizes that the user marked as dynamic and that a recording has fixed all the same: an error.
//
// Asked when a segment ends, before it is compiled. Costs nothing without such marks.
#pragma once
#include <span>
#include <string>

#include "capture/guards.h"
#include "trace/sym_node.h"

namespace ingot::capture {

/// Throws ConstraintViolationError as a Python error if a symbol of `mark_dynamic` has become a
/// number. `places`: the user's lines, by what was specialised, in order.
void refuse_fixed_marks(const trace::SymbolicSizes& symbols, const GuardSet& guards,
                        std::span<const std::string> places);

}  // namespace ingot::capture
