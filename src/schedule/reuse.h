// Memory that a kernel may take over from one of its operands: its result has the same size and
// each element is read (for the last time) by the point that writes it.
//
// Two uses: a plan's results that are new contents of inputs are computed straight into the input
// where nothing reads the old contents later, and the arena lets results take over dying buffers.
// It stands after all steps are known, before (and inside) plan_memory. Linear in the kernels.
#pragma once
#include "schedule/plan.h"

namespace ingot::sched {

/// Whether Argument buffers `in` and `out` of the kernel may be the same memory.
bool may_share(const Kernel& kernel, std::int32_t in, std::int32_t out);

/// Drops copies into inputs that the kernel before can write itself.
void write_inputs_directly(Plan& plan);

/// The step's pairs (operand, result) of equal size that may_share; indices of Plan::buffers.
std::vector<std::pair<std::int32_t, std::int32_t>> shareable(const Plan& plan,
                                                             const KernelStep& step);

}  // namespace ingot::sched
