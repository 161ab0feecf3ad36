// Exponentials of a nest that are nothing but terms of a sum with a one among them: softmax's
// denominator, whose terms are exp(a - m) with m the greatest a of the same row. None is greater
// than one, and what they are to 2^-24 beside one decides, so that they may be computed with half
// the instructions (emit_exp_beside_one). Asked by emit_nvptx before it emits a nest; quadratic in
// the instructions of a phase.
#pragma once
#include <vector>

#include "schedule/nest.h"

namespace ingot::codegen {

/// By phase and instruction.
std::vector<std::vector<bool>> exponentials_beside_one(const Nest& nest);

}  // namespace ingot::codegen
