// Brings a packed panel of bf16 into the order in which instructions multiply pairs.
//
// Packed panels have the row of k and the row of k + 1 one after the other, which is how every
// other reader wants them. Instructions for pairs want both elements of a column side by side. A
// tile can interleave them as it goes, but its shuffles take turns with the products (8 % of a tile
// of 12 rows on Zen 4), and each tile of a block does it again. Done once for a block of rows it
// costs some 5 cycles for each k, which 24 products an instruction and tile soon outweigh.
#pragma once
#include <llvm/IR/Module.h>

#include "codegen/contraction/micro_kernel.h"

namespace ingot::codegen {

/// void f(ptr panel, i64 pairs, ptr out)
/// panel: [2 * pairs][tile.columns()] bf16. out: [pairs][tile.columns()][2], elsewhere.
llvm::Function* pair_rows(llvm::Module& module, const TileShape& tile);

}  // namespace ingot::codegen
