// Grouping: which anchored values are computed by the same loop nest.
//
// A group has loop variables; each anchor in it (a reduction, or a value stored) stands at
// expressions of these. Outer variables are shared by all anchors of the group and make up the
// parallel loops; inner ones belong to the phases. An anchor joins the group of a producer (or of
// a sibling that reads the same memory) when its own dims can be matched with the group's
// variables (solve.h), so softmax, the norms and losses become one group by themselves.
//
// No cycles: a group's level exceeds the levels of all groups it needs, and an anchor may join a
// group only if everything else it needs has a lower level. So the check costs a comparison.
// It stands after place(); build.h makes loop nests of the groups. Near-linear.
#pragma once
#include <vector>

#include "schedule/placement.h"
#include "schedule/schedule.h"

namespace ingot::sched {

/// A value an anchor's expression reads, at an index in the anchor's own variables.
struct Read {
    ValueId value = kNone;
    Sizes index;
};

struct Anchor {
    ValueId value = kNone;   // what is computed
    ValueId target = kNone;  // whose buffer gets it: itself, or the concatenation it is a part of
    std::size_t dim = 0;     // part of a concatenation: along dim,
    Expr start;              //   from here on
    NodeId node = kNone;     // the node that stands for it in the order of the program
    bool reduces = false;
    bool contracts = false;  // a generated contraction; its group's other anchors are the epilogue
    Sizes vars;              // its own dims' variables; of a reduction, the operand's dims
    Sizes extents;
    Sizes map;       // the same dims as expressions of the group's variables
    Sizes position;  // of a reduction: the result's dims as expressions of the outer variables
    std::vector<Read> reads;
    std::uint32_t group = kNone;
    int step = 0;          // lower bound of its phase in the group
    bool stored = false;   // it is written to target's buffer
    bool gathers = false;  // a reduction over its group's run, stored once for each
};

struct LoopVar {
    Expr symbol;
    Expr extent;
    bool outer = true;
};

/// On GPUs: neighbouring points along one outer variable, taken one after another, over which sums
/// of columns add up while a kernel of rows is at them.
struct Run {
    Expr symbol;  // 0: there is none
    Expr length = 1;
};

struct Group {
    NodeId node = kNone;  // extern: the step's node; of a nest: the first anchor's
    bool is_extern = false;
    bool contracts = false;
    bool frozen = false;
    bool reduces = false;
    bool late = false;    // it needs what is computed a second time
    bool needed = false;  // by another group
    int level = 0;
    double elements = 1;  // of the largest domain in it
    Expr contiguous;      // the variable along which its first anchor walks memory; 0: unknown
    std::vector<LoopVar> vars;
    Run run;
    std::vector<std::uint32_t> anchors;
    std::vector<std::uint32_t> needs;  // groups, with repetitions
};

struct Fusion {
    std::vector<Anchor> anchors;
    std::vector<Group> groups;
    /// By value: the anchors that make it (several for a concatenation); empty for others.
    std::vector<std::vector<std::uint32_t>> makers;
};

Fusion fuse(const Graph& graph, const Placement& placement, const Layouts& layouts,
            const ScheduleOptions& options);

}  // namespace ingot::sched
