// Products of f32 on matrix units that only know bf16 (AMX). Each f32 is the sum of three bf16, to
// the last bit: a = a1 + a2 + a3 with 8 bits each. Of the nine products of such parts the six
// largest are added up in f32, the small ones first; the three that are left out come to less than
// 2^-23 of a product, without bias, so that the error of a sum is that of a chain of fused
// multiply-adds or less. (Henry, Tang, Heinecke: Leveraging the bfloat16 Artificial Intelligence
// Datatype For Higher-Precision Computations, ARITH 2019.)
//
// The units take what is subnormal for zero and know no infinity: inf = inf + 0 + 0 and inf * 0 is
// no number. So the splitters note the smallest and the largest element that they see. Only where
// these allow that parts or products of them are lost, a finished tile is looked at: if a sum is
// not finite, or so small that the loss could be seen in it, the tile is computed again with fused
// multiply-adds.
//
// Layouts, in steps of 32 k (k is rounded up with zeros):
//     A  [steps][part 3][rows][k % 16][k / 16]              bf16, rows a multiple of 16
//     B  [steps][part 3][column / 16][k % 16][column % 16][k / 16]
// A pair is k and k + 16, so that two vectors of words become one of pairs by a shift.
//
// Called by the driver that emit_contraction writes. Cost: six products of bf16 at 512 FMAs a cycle
// are 85 FMAs of f32 a cycle, where vectors do 32; 33 to 45 are reached in whole products of real
// numbers, with which the clock falls. Splitting costs about a cycle an element that lies in the
// second cache, and what reading it costs beyond.
#pragma once
#include <llvm/IR/Module.h>

#include <cstdint>

#include "codegen/contraction/matrix_kernel.h"

namespace ingot::codegen {

/// So many k of B's panel are split at a time and stay in the first cache.
inline constexpr std::int64_t kSplitBlock = 128;

/// void f(ptr a, i64 steps, ptr b, ptr c, ptr room, i1 add, ptr next, i64 next_count,
///        i64 next_distance, i64 step_distance)
/// `rows` (16 or 32) rows of A against 32 columns of B; c: [rows][32] sums, replaced or added to;
/// room: as much memory, needed to add. Callers add after so few k (kSplitBlock) that the chain is
/// no longer than the vendor's libraries'.
/// What is fetched ahead: as matrix_kernel.
llvm::Function* split_kernel(llvm::Module& module, int rows);

/// The same with two more parameters, i64 tile_bytes, i64 part_bytes: `a` is a table of pointers to
/// the first of three parts of each step, of which the tile's rows begin `tile_bytes` behind; parts
/// are `part_bytes` apart.
llvm::Function* split_image_kernel(llvm::Module& module, int rows);

/// What a splitter has seen, as the bits of magnitudes; splitters widen what stands there.
struct Extremes {
    std::uint32_t smallest = 0xFFFFFFFF;  // less one; of elements other than zero
    std::uint32_t largest = 0;
};

/// void f(ptr table, i64 segments, i64 k, i64 rows, ptr out, ptr extremes)
/// Splits [segments][rows] pointers to k consecutive f32 each; k is a multiple of 32 where there
/// are several segments.
llvm::Function* row_splitter(llvm::Module& module);

/// void f(ptr first, i64 distance, i64 k, i64 rows, i64 exist, ptr out, ptr extremes)
/// The same where neighbours along the rows lie side by side and those along k `distance` elements
/// apart; rows from `exist` on are zeros.
llvm::Function* column_splitter(llvm::Module& module);

/// void f(ptr b, i64 ldb, i64 k, ptr out, ptr extremes)
/// Splits k rows of 32 columns, `ldb` elements apart, and fetches some that follow.
llvm::Function* panel_splitter(llvm::Module& module);

/// void f(ptr table, i64 column, i64 k, ptr out, ptr extremes)
/// The same where rows lie anywhere: the table has pointers to them, and to some that follow, the
/// panel begins `column` elements behind each.
llvm::Function* panel_point_splitter(llvm::Module& module);

/// void f(ptr table, i64 from, i64 k, ptr out, ptr extremes)
/// The same from 32 pointers to columns whose k are consecutive, beginning with k `from`.
llvm::Function* panel_row_splitter(llvm::Module& module);

/// i1 f(ptr c, i64 rows, i64 k, ptr extremes of A, ptr extremes of B)
/// Whether the sums in c may be wrong by more than the rounding of a chain of sums.
llvm::Function* split_check(llvm::Module& module);

/// void f(ptr c, i64 rows, ptr a, i64 tile_rows, ptr b, i64 ldb, i64 k)
/// The tile anew by fused multiply-adds.
llvm::Function* split_repair(llvm::Module& module);

}  // namespace ingot::codegen
