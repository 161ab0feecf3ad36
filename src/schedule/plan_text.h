// The plan as text, for people, tests and the debug dump: buffers with their places, kernels,
// steps. Deterministic; not read back.
#pragma once
#include <string>

#include "schedule/plan.h"

namespace ingot {

/// With `kernels`, every kernel's text follows.
std::string to_string(const Plan& plan, bool kernels = true);

}  // namespace ingot
