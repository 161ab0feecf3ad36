// One arena for all intermediate buffers of a call.
//
// A buffer lives from the step that first writes it to the last step that touches it (or a view of
// it); a result may take over the memory of an operand that dies (reuse.h). Buffers are placed in
// order of falling size at the lowest offset that no buffer alive at the same time occupies.
// Symbolic sizes get an offset behind everything whose relation is unknown. Cost: buffers times
// those alive with them.
#pragma once
#include "schedule/plan.h"

namespace ingot::sched {

/// Sets the offsets of Arena buffers and Plan::arena_bytes.
void plan_memory(Plan& plan);

}  // namespace ingot::sched
