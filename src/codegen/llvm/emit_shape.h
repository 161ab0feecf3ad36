// What a nest's loops will look like as vector code: which loop is the vector, how many lanes, how
// the outer loops are cut into work items, what an item costs. Decided before any IR is written and
// independent of the instruction set beyond its vector width.
#pragma once
#include <optional>

#include "codegen/llvm/emit.h"
#include "codegen/llvm/emit_transpose.h"

namespace ingot::codegen {

/// Lanes of a vector loop and of its rest.
struct LoopLanes {
    unsigned main = 1, rest = 1;
};

struct NestShape {
    bool outer_vector = false;  // the last outer loop is the vector
    unsigned lanes = 1;         // of the main loop
    unsigned rest_lanes = 1;    // of the masked rest; 1: a scalar loop
    std::int64_t chunk = 0;     // outer vector: points of the vector loop in a work item
    std::vector<Loop>
        item_loops;  // outer loops that are counted in work items (without the vector)
    std::vector<LoopLanes> phase_lanes;  // by phase, where the vector loop is inside
    std::vector<bool> streamed;          // by buffer: stores go past the caches where they can
    Expr chunks = 1;                     // outer vector: how many chunks it has
    TilePlan tile;  // transposed loads; its loop is counted in blocks of `lanes` in item_loops
    Expr work;
    Expr grain;
};

NestShape shape_of(const Kernel& kernel, const Nest& nest, const TargetInfo& target,
                   const EmitOptions& options);

/// An output of at least so many bytes, which caches of that size will not hold any more when
/// somebody reads it.
bool is_large_output(const KernelBuffer& buffer, const TargetInfo& target, std::size_t size);

/// For loops of constant extent no more lanes than they need.
LoopLanes fit_lanes(Expr extent, LoopLanes lanes);

/// Index of the phase's vector loop, if it has one.
std::optional<std::size_t> vector_loop(const Phase& phase);

/// For every inst of the phase, how many of the phase's loops must be entered before it can be
/// computed (0: invariant).
std::vector<std::size_t> inst_levels(const Phase& phase);

}  // namespace ingot::codegen
