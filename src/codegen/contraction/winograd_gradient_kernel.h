// The inner loops of weights' gradients by minimal filtering besides its products: functions of the
// generated module, shared by name as those of micro_kernel.h. What the forms are:
// winograd_gradient.h; points are brought into theirs by winograd_kernel.h.
#pragma once
#include <llvm/IR/Module.h>

#include "codegen/contraction/micro_kernel.h"

namespace ingot::codegen {

/// void f(ptr table, i64 tiles, i64 channels, ptr out, i64 plane)
/// table: [2][2 * tiles] pointers to the channels (whole vectors) of a row of tiles' results, two
/// and two of each. out: [16] planes, `plane` elements apart, of [tiles] rows of `channels`.
llvm::Function* winograd_results(llvm::Module& module, const TileShape& tile);

/// i1 f(ptr sums, i64 plane, i64 distance, i64 rows, ptr out)
/// sums: [16] planes, `plane` elements apart, of [rows] rows of the tile's columns, `distance`
/// apart. out: [9][rows] rows of the tile's columns, by tap. Whether any is infinite or no number.
llvm::Function* winograd_taps(llvm::Module& module, const TileShape& tile);

}  // namespace ingot::codegen
