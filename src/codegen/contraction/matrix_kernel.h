// Products of bf16 on matrix units (AMX): tiles of 32 rows and 32 columns, summed in f32.
//
// The units round as a chain of sums over pairs of k does and take what is subnormal for zero, as
// the vendor's library does on the same units.
//
// Layouts, in steps of 32 k (k is rounded up with zeros), an element of a pair beside the other:
//     A  [steps][rows][32 k]          rows a multiple of 16
//     B  [k / 2][column][k % 2]       32 columns
//
// Called by the driver that emit_contraction writes. Cost: 512 multiplications and additions a
// cycle, sixteen times a vector unit's of f32. Pairing the rows of B takes about as long as the
// products of 32 rows.
#pragma once
#include <llvm/IR/Module.h>

#include <cstdint>

#include "schedule/contraction_model.h"

namespace ingot::codegen {

inline constexpr std::int64_t kMatrixStep = kMatrixK;  // k of a step
/// So many k of B's panel are brought into order at a time and stay in the first cache.
inline constexpr std::int64_t kMatrixBlock = 256;

/// Bytes of the tile registers' description, which configure_tiles writes at a 64 byte boundary.
inline constexpr std::int64_t kTileShapeBytes = 64;

/// void f(ptr a, i64 steps, ptr b, ptr c, i1 add, ptr next, i64 next_count, i64 next_distance,
///        i64 step_distance)
/// `rows` (16 or 32) rows of A against 32 columns of B; c: [rows][32] sums, replaced or added to.
/// With each step `next_count` pairs of lines of 64 bytes are fetched into the second cache, the
/// first at `next`, each of the others `next_distance` bytes further, and all of them
/// `step_distance` bytes further with the next step. They need not be mapped.
llvm::Function* matrix_kernel(llvm::Module& module, int rows);

/// void f(ptr table, i64 segments, i64 pairs, i64 rows, ptr out)
/// Brings [segments][rows] pointers to that many consecutive pairs each into A's order; whole steps
/// where there are several segments.
llvm::Function* matrix_rows(llvm::Module& module);

/// void f(ptr b, i64 ldb, i64 k, ptr out)
/// Pairs k rows (an even number) of 32 columns, `ldb` elements apart.
llvm::Function* matrix_panel(llvm::Module& module);

}  // namespace ingot::codegen
