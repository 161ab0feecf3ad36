// The inner loops of minimal filtering besides its products: functions of the generated module
// which bring points, taps and sums from one form into the other, vectors of channels at a time.
// Shared by name as those of micro_kernel.h. What the forms are: winograd.h.
//
// Cost: 16 loads and stores of vectors each and some thirty sums for a tile, and so bound by
// stores.
#pragma once
#include <llvm/IR/Module.h>

#include "codegen/contraction/micro_kernel.h"

namespace ingot::codegen {

/// Sentinels such as -1e9 are told from numbers by this; what is lost below is ten bits at most.
inline constexpr double kWinogradContrast = 1024;

/// i1 f(ptr table, i64 points, i64 tiles, i64 channels, ptr out, i64 pitch, i64 plane)
/// table: [4][points] pointers to the channels (whole vectors) of a row of tiles' points, of which
/// tile t reads columns 2 t to 2 t + 3. out: [16] planes, `plane` elements apart, of [tiles] rows
/// of `channels`, `pitch` apart. Whether some tile has a point over kWinogradContrast times larger
/// than all points of one of its four windows, or than one: that window's result would drown in it.
llvm::Function* winograd_input(llvm::Module& module, const TileShape& tile);

/// void f(ptr taps, i64 channels, i64 channel, i64 tap, ptr out, i64 plane)
/// taps: rows of the tile's columns, that of tap t and channel c `t * tap + c * channel` elements
/// on. out: [16] planes, `plane` elements apart, of [channels] rows of the tile's columns.
llvm::Function* winograd_weights(llvm::Module& module, const TileShape& tile);

/// void f(ptr taps, i64 channels, i64 channel, i64 tap, ptr out, i64 plane)
/// The same with the nine taps of a column side by side, and these of the next column behind them;
/// `tap` is 1, or -1 with `taps` the last one's place.
llvm::Function* winograd_interleaved(llvm::Module& module, const TileShape& tile);

/// i1 f(ptr sums, i64 plane, i64 tiles, ptr out, i64 row)
/// sums: [16] planes, `plane` elements apart, of [tiles] rows of the tile's columns. out: two rows
/// of points, `row` elements apart, 2 * tiles of them each. Whether any is infinite or no number.
llvm::Function* winograd_output(llvm::Module& module, const TileShape& tile);

}  // namespace ingot::codegen
