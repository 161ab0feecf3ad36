// In which order a plan's groups run.
//
// A group runs behind all it needs, and a write to an input behind all that reads its old
// contents. Among those ready, the earliest in the program is next (with what it needs), apart from
// what only leads to writes of inputs (an optimizer's update): that runs as soon as it needs no
// more memory than it frees, so that a gradient dies with its update instead of waiting for the
// whole backward. It stands between fusion and the making of steps. Near-linear, but for updates
// that are ready and wait for memory.
#pragma once
#include <cstdint>
#include <vector>

#include "schedule/fuse.h"

namespace ingot::sched {

/// All groups, those of frozen values first.
std::vector<std::uint32_t> order_groups(const Graph& graph, const Placement& placement,
                                        const Layouts& layouts, const Fusion& fusion);

}  // namespace ingot::sched
