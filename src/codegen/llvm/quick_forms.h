// Other forms of a body's formulas, with fewer instructions, for kernels whose results have few
// bits (MathContext::quick): 1 + tanh(u) and 1 - tanh(u)^2 by one sigmoid, which cancels no digits
// and needs no case of its own near 0; 1 + erf(v) by erfc(-v). Used by emit_nvptx before it emits a
// nest. Linear.
#pragma once
#include "schedule/nest.h"

namespace ingot::codegen {

Nest quick_forms(const Nest& nest);

}  // namespace ingot::codegen
