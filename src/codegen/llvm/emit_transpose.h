// Transposed reads in registers. A load that runs along another loop than the store would fetch
// every lane from a line of its own; instead a square tile is loaded along the load's own direction
// and turned round by shuffles, n log n of them for n vectors. Used by the loop nests.
#pragma once
#include <vector>

#include "codegen/llvm/emit_types.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// The loads of a nest that a tile serves, and the outer loop along which they are contiguous.
struct TilePlan {
    std::size_t loop = 0;       // of the nest's outer loops
    std::vector<InstId> loads;  // of its only phase; empty: no tile
};

/// A plan for pointwise nests whose last outer loop is the vector; empty for all others.
TilePlan plan_tile(const Kernel& kernel, const Nest& nest);

/// The transpose of a square of vectors: lane j of result i is lane i of rows[j]. Powers of two.
std::vector<IrValue> emit_transpose(llvm::IRBuilder<>& b, std::vector<IrValue> rows);

}  // namespace ingot::codegen
