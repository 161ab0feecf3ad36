// Order, merging and kinds of a nest's loops.
//
// The cost of walking along a variable is how many bytes apart neighbours are, summed over all
// accesses; cheap variables go inside. Neighbouring loops that every access walks like one become
// one. One loop is chosen for vectors: the phases' innermost when memory is contiguous along it
// (row reductions), else the innermost outer one (reductions over outer dims, pooling). Cost:
// linear in accesses times loops.
#pragma once
#include "schedule/emit.h"

namespace ingot::sched {

/// Rewrites all nests of the draft in place; variables get their final names. `gpu`: threads take
/// the points, so nothing is blocked for one core's registers.
void arrange_loops(Draft& draft, ExprPool& pool, bool gpu = false);

/// Whether some phase's inner loop is the vector loop.
bool vector_inside(const Nest& nest);

}  // namespace ingot::sched
