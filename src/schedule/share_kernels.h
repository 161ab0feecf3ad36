// Kernels that differ in numbers alone become one kernel with sizes: a strided offset, a number of
// channels, a place in a concatenation. A network of many stages repeats a few dozen kernels with
// other numbers, and each costs milliseconds of machine code.
//
// Only numbers that differ become sizes, so a kernel without a twin stays as it is. Steps through
// memory by one, divisors, and what decides how many terms a nest's sum has stay numbers. So do the
// extents of loops that run at every call; those that fold and pack weights run once. The owner
// says by `choices` what else depends on numbers: kernels become one where their shared form is
// generated like each of them. Kernels with symbolic sizes of their own are left alone.
//
// Cost: linear in the kernels, a few microseconds each.
#pragma once
#include <functional>
#include <string>

#include "schedule/plan.h"

namespace ingot {

/// What code generation decides by the numbers of a kernel, as text.
using KernelChoices = std::function<std::string(const Kernel&)>;

void share_kernels(Plan& plan, const KernelChoices& choices);

}  // namespace ingot
