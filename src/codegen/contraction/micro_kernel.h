// The inner loops of contractions: functions of the generated module that compute one register tile
// of C, and those that bring operands into the order the tile wants. They know nothing of the
// contraction around them; every contraction of a module shares them by name, so a model's twenty
// matmuls cost a handful of inner loops. Called by the driver that emit_contraction writes.
//
// Cost: a full tile runs at 95 % of the FMA peak once k is past some 64; filling and storing it
// costs two moves a vector.
#pragma once
#include <llvm/ADT/StringRef.h>
#include <llvm/IR/Module.h>

#include <cstdint>

namespace ingot::codegen {

/// Whether this is the name of one of the functions below. They call no other function of the
/// module and their names say all that decides their code, so that modules can share them too.
inline bool is_shareable(llvm::StringRef name) { return name.starts_with("ingot_"); }

/// What the micro-kernel multiplies. With pairs, an "element" of A is two neighbouring bf16 (of one
/// row, k and k + 1) seen as one f32, and k counts pairs.
enum class DotKind : std::uint8_t {
    Elements,          // f32 or f64
    Pairs,             // bf16; B has the row of k and the row of k + 1 one after the other
    InterleavedPairs,  // bf16; B has pairs too
};

/// After so many k the sums are added to C and start again from zero: a single chain over thousands
/// of k would round several times worse than the vendor's libraries, which block k too. Callers
/// that divide k do it at multiples of this, so that every way of computing a sum adds in the same
/// order.
inline constexpr std::int64_t kSumBlock = 256;
/// The same where all rows fit a small tile or two: there the vendor's libraries keep a sum in
/// each lane of a vector, and their chains are as short as k / 16. Costs 2 % of the work.
inline constexpr std::int64_t kFewRowsSumBlock = 64;
inline constexpr std::int64_t kFewRows = 15;

/// A register tile: `rows` of A against `vectors` vectors of `lanes` columns of B.
struct TileShape {
    llvm::Type* element = nullptr;  // float or double
    int lanes = 16;
    int vectors = 2;
    int rows = 12;
    DotKind dot = DotKind::Elements;
    std::uint64_t sum_block = kSumBlock;  // a divisor of it
    bool ahead = false;  // with each k a line of what comes next is fetched into the second cache
    int columns() const { return lanes * vectors; }
};

/// Distance in elements between two k of B: a constant, or passed at run time.
inline constexpr std::int64_t kRuntimeStride = -1;

/// void f(ptr a, i64 k, ptr b, i64 ldb, ptr c, i64 ldc, i1 add, ptr next, i64 next_step)
/// a: packed [k][rows]. b: [k] rows of `columns` elements, `ldb` apart. c: [rows] rows of `columns`
/// elements, `ldc` apart, which the sums replace or, with `add`, are added to. next: with a tile
/// that looks ahead, the memory to fetch, `next_step` bytes further with each k; it need not be
/// mapped.
llvm::Function* packed_kernel(llvm::Module& module, const TileShape& tile, std::int64_t ldb);

/// void f(ptr table, i64 segments, i64 k, ptr b, i64 ldb, ptr c, i64 ldc, i1 add,
///        i64 shift, ptr next, i64 next_step)
/// table: [segments][rows] pointers to k consecutive elements of A each, `shift` bytes further on;
/// B goes on from segment to segment. A is read where it lies: a convolution without im2col.
llvm::Function* rows_kernel(llvm::Module& module, const TileShape& tile, std::int64_t ldb);

/// void f(ptr a, i64 lda, i64 k, ptr b, i64 ldb, ptr c, i64 ldc, i1 add)
/// a: [k] rows of A's elements, those of the tile's rows side by side, `lda` apart. The rest is as
/// packed_kernel's. k is at least 1.
llvm::Function* turned_kernel(llvm::Module& module, const TileShape& tile);

/// void f(ptr table, i64 segments, i64 k, i64 step, i64 rows, ptr out, ptr zero)
/// Packs [segments][rows] pointers to k elements each, `step` apart, into packed_kernel's order:
/// out[segments * k][rows]. The pointer `zero` stands for k times the element there.
llvm::Function* row_packer(llvm::Module& module, llvm::Type* element);

/// void f(ptr b, i64 ldb, i64 k, i64 columns, ptr out)
/// Copies a panel of row-major B: out[k][tile.columns()], zero from `columns` on. Here the tile's
/// element may be of any type.
llvm::Function* panel_copier(llvm::Module& module, const TileShape& tile);

}  // namespace ingot::codegen
