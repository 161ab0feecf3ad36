// Which contractions have generated code on a GPU, and the tile each takes: products of 16-bit
// floats whose operands both run along the sum (activations by rows, weights as Linear stores
// them), for the matrix units of compute capability 9.0.
//
// A block of threads makes `rows` by `columns` of the result; pieces of 64 elements of the sum are
// on their way from memory, `stages` of them in shared memory. No LLVM here: the scheduler's choice
// asks the same questions as the emitter. A few linear_in a contraction.
#pragma once
#include <array>
#include <optional>

#include "schedule/nest.h"

namespace ingot::codegen {

/// The matrices' elements along the sum in one piece: 128 bytes, the widest swizzle.
inline constexpr unsigned kDepth = 64;
/// Elements that one thread of the epilogue has, neighbours in a row of the result.
inline constexpr unsigned kEpilogueLanes = 8;

/// The one compute capability that has these units: 9.0.
inline constexpr int kProductCapability = 90;

struct ProductTile {
    unsigned groups;   // of four warps, 64 rows each
    unsigned columns;  // of the result, a multiple of 16
    unsigned stages;
    unsigned blocks;  // that a multiprocessor shall hold at once
    friend constexpr bool operator==(const ProductTile&, const ProductTile&) = default;

    constexpr unsigned rows() const { return groups * 64; }
    constexpr unsigned threads() const { return groups * 128; }
    constexpr unsigned stage_bytes() const { return (rows() + columns) * kDepth * 2; }
    /// A row of finished sums in shared memory: 32 bytes more, so that rows start at other banks.
    constexpr unsigned staged_row() const { return columns + 8; }
    constexpr unsigned shared_bytes() const {
        const unsigned pieces = stages * stage_bytes(), sums = rows() * staged_row() * 4;
        return 1024 + (pieces > sums ? pieces : sums);  // the swizzle wants multiples of 1024
    }
};

/// Tiles that were best for some shape on an H200.
inline constexpr std::array kProductTiles = {
    ProductTile{1, 64, 6, 2},  ProductTile{1, 128, 4, 2}, ProductTile{1, 96, 4, 2},
    ProductTile{2, 64, 4, 2},  ProductTile{2, 64, 8, 1},  ProductTile{2, 96, 4, 2},
    ProductTile{2, 96, 7, 1},  ProductTile{2, 128, 3, 2}, ProductTile{2, 128, 6, 1},
    ProductTile{2, 192, 5, 1}, ProductTile{3, 128, 5, 1}, ProductTile{4, 192, 4, 1},
};

/// A matrix whose rows run along the sum: row r, element k at `base + r * stride + k` of `buffer`.
struct ProductOperand {
    std::int32_t buffer = -1;
    Expr base, stride;
};

struct ProductForm {
    ProductOperand a, b;
    Expr rows;  // of the result; known at run time at the latest
    std::int64_t columns = 0, depth = 0;
    DType dtype = DType::BF16;
    /// Rows of the result begin at odd places (a vocabulary of 50257 words), which no library's
    /// fast product writes: a product without an epilogue.
    bool odd() const { return columns % kEpilogueLanes != 0; }
};

/// The kernel's contraction in that form; nothing where it has another one.
std::optional<ProductForm> product_form(const Kernel& kernel);

/// Microseconds that a tile's product with an epilogue like a GELU takes on an H200.
double estimated_time(const ProductForm& form, std::int64_t rows, const ProductTile& tile);
/// The tile of least estimated time.
const ProductTile& tile_of(const ProductForm& form);

/// Whether the product with something costly behind it (passes/epilogues.h) takes clearly less time
/// than the library's and a kernel for the rest: of an odd product, for the copy of its rows to
/// where they belong. Only `rows`, `columns` and `depth` count.
bool product_wins(const ProductForm& form);

}  // namespace ingot::codegen
