// How a loop nest is cut into Triton's blocks: outer points by elements of a phase's loops, and how
// many warps work on one. Decided from the nest alone, before any text.
#pragma once
#include "schedule/nest.h"

namespace ingot {

struct TritonBlocks {
    std::int64_t x = 1;       // outer points of a program
    std::int64_t r = 1;       // elements of the phases' loops that are taken at once
    int warps = 4;            // of a program
    bool whole_rows = false;  // every phase's loop has one and the same constant extent, at most r:
                              // no loop is left, and values stay in registers from phase to phase
    bool wide = true;         // some index needs 64 bits
};

/// The product of the loops' extents.
Expr points_of(const std::vector<Loop>& loops);

TritonBlocks choose_blocks(const Kernel& kernel, const Nest& nest);

}  // namespace ingot
