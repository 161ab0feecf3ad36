// How a reduction is said in Triton: what it starts from and which function of the prelude joins
// two parts.
#pragma once
#include <string>

#include "schedule/nest.h"

namespace ingot {

inline bool is_arg(ReduceOp op) { return op == ReduceOp::ArgMax || op == ReduceOp::ArgMin; }

/// The value with which the accumulator starts, as text.
std::string triton_initial(const Reduction& r);
/// The name of the function that joins two accumulators.
std::string triton_combiner(ReduceOp op);

}  // namespace ingot
