// The prim `philox` as machine code; see ir/philox.h for what it computes.
//
// Ten rounds of two wide products each: about 60 instructions for a block of four numbers. Four
// neighbours that eager draws from one block are given one computation (`philox_neighbours`), which
// is a quarter of the work of computing each by itself.
#pragma once
#include "codegen/llvm/emit_types.h"
#include "ir/philox.h"

namespace ingot::codegen {

/// The bits (i64) for a place of i64, alone or a vector; seed and offset have its type.
IrValue emit_philox(llvm::IRBuilder<>& b, IrValue place, IrValue seed, IrValue offset,
                    PhiloxLayout layout);

/// The bits (a vector of i64) for `lanes` neighbours from `first` on, a multiple of four. Seed and
/// offset are scalars. For widths of at least 4.
IrValue emit_philox_neighbours(llvm::IRBuilder<>& b, IrValue first, unsigned lanes, IrValue seed,
                               IrValue offset, PhiloxLayout layout);

}  // namespace ingot::codegen
