// A kernel's identity within one compilation: equal keys mean equal kernels, names aside. Faster
// than its text, because expressions of one pool are equal when their nodes are; not stable across
// runs (to_string is). Linear in the kernel.
#pragma once
#include <string>

#include "schedule/nest.h"

namespace ingot::sched {

std::string kernel_key(const Kernel& kernel);

}  // namespace ingot::sched
