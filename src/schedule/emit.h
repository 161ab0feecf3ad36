// From a group of anchors to a loop nest: phases, instructions, loads and stores.
//
// Every anchor of the group is computed at its index expressions; inlined values are computed by
// walking the graph with the index at hand, equal instructions of a phase are shared. The result's
// loops are in the order of the group's variables; loops.h orders, merges and vectorises them.
// Cost: linear in the instructions made.
#pragma once
#include <functional>

#include "schedule/fuse.h"
#include "schedule/nest.h"

namespace ingot::sched {

/// A kernel under construction: its buffers are the plan's values.
struct Draft {
    Kernel kernel;
    std::vector<ValueId> values;  // by Argument buffer: whose memory it is
    std::vector<Expr> bound;      // symbols bound by instructions
};

struct EmitContext {
    const Graph& graph;
    const Placement& placement;
    const Fusion& fusion;
    const Layouts& layouts;
};

/// Builds the group's nest. With `scratch`, expensive values needed in several phases are kept in
/// rows private to the thread.
Draft emit_nest(const EmitContext& context, std::uint32_t group, bool scratch);

/// Fills Kernel::sizes: the symbols of the kernel that are neither loops' nor bound ones.
void find_sizes(Draft& draft);

}  // namespace ingot::sched
